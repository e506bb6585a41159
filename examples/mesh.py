"""Several schemes at once: a mesh of data parallel, pipeline parallel and tensor parallel ranks.

                         tensor 0    tensor 1
    data 0    stage 0    rank 0      rank 1       one copy of the model on 4 ranks,
              stage 1    rank 2      rank 3       with the first half of the rows
    data 1    stage 0    rank 4      rank 5       another copy, with the second half
              stage 1    rank 6      rank 7

Every rank belongs to three communicators, made by ``split``: the ranks that hold the other parts of
its matrices (a row of the picture), its pipeline's other stages (the same place in each row of a
copy), and those that hold the same as it does in the other copies. Tensor parallel ranks, which
talk most, are neighbours; copies, which talk least, are farthest apart. Each loss and weight is the
same, however the ranks are arranged.

Communication of a step: each communicator has its scheme's, of its share. Stages pass the
activations of a copy's rows; each of T tensor parallel ranks sums its own stage's; and each rank
sums the gradients of its 1/(P T) of the model over D copies.

Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters".

Run: mpirun -n 4 python -m mpi4py examples/mesh.py --tensor 2 --pipeline 2
     mpirun -n 8 python -m mpi4py examples/mesh.py --tensor 2 --pipeline 2 --data 2
"""

import numpy as np
import training
from pipeline_parallel import Piece, run_step
from transformer import SPLIT_AXIS, AdamW, Embedding, Head, build, listed

from pynccl.parallel import (
    GradientBuckets,
    TensorParallel,
    one_forward_one_backward,
    part_of,
    split_cross_entropy,
)


def axes_of(comm, args):
    """This rank's communicators: its matrices' other parts, other stages, other copies."""
    inner = args.pipeline * args.tensor
    copy, within = divmod(comm.rank, inner)
    stage, part = divmod(within, args.tensor)
    tensor = comm.split(color=comm.rank // args.tensor, key=part)
    pipeline = comm.split(color=copy * args.tensor + part, key=stage)
    data = comm.split(color=within, key=copy)
    return tensor, pipeline, data


def train(comm, text, args):
    args.data = args.data or comm.nranks // (args.pipeline * args.tensor)
    if args.data * args.pipeline * args.tensor != comm.nranks:
        raise SystemExit(
            f"{args.data} x {args.pipeline} x {args.tensor} (data, pipeline, tensor) "
            f"is not {comm.nranks} ranks"
        )
    args.micro = min(args.micro, args.batch // args.data)  # each has a row at least
    if args.micro == 0:
        raise SystemExit(f"a batch of {args.batch} rows is too small for {args.data} copies")
    tensor, pipeline, data = axes_of(comm, args)
    with tensor, pipeline, data:
        return train_on(comm, tensor, pipeline, data, text, args)


def train_on(comm, tensor, pipeline, data, text, args):
    split = TensorParallel(tensor)
    schedule = one_forward_one_backward(args.pipeline, args.micro)
    layers, whole = build(training.size_of(args), split), training.starting_weights(args)
    cuts = [part_of(len(layers), stage, args.pipeline) for stage in range(args.pipeline)]
    mine = cuts[pipeline.rank]
    first = layers[0].rows.start

    def loss_of(xp, logits, targets, scale):
        return split_cross_entropy(tensor, logits, first, targets, scale)

    last = pipeline.rank == args.pipeline - 1
    with comm.compute() as xp:
        parts = training.parts_of(whole[mine], SPLIT_AXIS, split)
        piece = Piece(xp, layers[mine], parts, last, loss_of)
        flat, sums = listed(piece.layers, piece.weights), listed(piece.layers, piece.gradients)
        optimizer = AdamW(xp, flat)
    buckets = GradientBuckets(data, [array.shape for array in sums], args.dtype)

    losses = []
    rows = part_of(args.batch, data.rank, data.nranks)
    for x, y in training.batches(comm, text, args):
        pieces = {pipeline.rank: piece}
        loss, _ = run_step(pipeline, schedule, pieces, x[rows], y[rows], 1 / x.size, args)
        for array in sums:
            buckets.add(array)
        totals = buckets.sums()
        with comm.compute() as xp:
            optimizer.step(xp, flat, totals)
            for array in sums:
                array[...] = 0
        losses.append(loss / args.tensor)  # each of the last stage's ranks knows it

    training.check_traffic(comm, args, formula(args, pipeline, piece, rows, buckets))
    held = training.joined_weights(tensor, piece.weights, SPLIT_AXIS, whole[mine])
    owners = [stage * args.tensor for stage, cut in enumerate(cuts) for _ in layers[cut]]
    return training.total_losses(comm, losses), training.collected(
        comm, dict(enumerate(held, mine.start)), owners, args
    )


def formula(args, pipeline, piece, rows, buckets):
    """Calls and bytes of each operation in a step, of a rank of this stage."""
    size = np.dtype(args.dtype).itemsize
    column = (rows.stop - rows.start) * args.context * size  # one number for each byte
    calls, nbytes = buckets.calls, 2 * (args.data - 1) / args.data * buckets.nbytes
    if args.tensor > 1:
        around = 2 * (args.tensor - 1) / args.tensor
        ends = sum(1 if isinstance(one, (Embedding, Head)) else 2 for one in piece.layers)
        calls += (ends + 2 * piece.last) * args.micro
        nbytes += (ends * args.width + 3 * piece.last) * column * around
    borders = (pipeline.rank > 0) + (pipeline.rank < args.pipeline - 1)
    return {
        "allreduce": (calls, nbytes),
        "send": (borders * args.micro, borders * args.width * column),
    }


if __name__ == "__main__":
    parser = training.options("on a mesh of data, pipeline and tensor parallel ranks")
    parser.add_argument("--tensor", type=int, default=1, help="parts of each matrix")
    parser.add_argument("--pipeline", type=int, default=1, help="stages")
    parser.add_argument("--data", type=int, help="copies of the model; all other ranks if not said")
    parser.add_argument("--micro", type=int, default=4, help="micro-batches in a copy's batch")
    parser.set_defaults(batch=24)
    training.run("mesh", train, parser.parse_args())
