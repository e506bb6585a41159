"""Fully sharded data parallel training: the data and the model's state are split, the work is not.

    rank 0   rows 0..2    1/4 of each layer's parameters, gradients, moments
    rank 1   rows 3..5    the next 1/4                       |
    rank 2   rows 6..8    ...                                v
    rank 3   rows 9..11        layer by layer: all-gather -> forward or backward -> free
                                               gradients: reduce-scatter -> step on the own quarter

Data parallel training keeps the whole state on every rank, and an all-reduce of the gradients. An
all-reduce is a reduce-scatter and an all-gather; here they are taken apart: between them lies the
optimizer's step, of which each rank does its share, and the all-gather waits until a layer is used.
While one layer is computed with, the next is gathered on a second stream.

Communication of a step, for P bytes of parameters on n ranks, each sends: all-gather 2 (n-1)/n P
(forward and backward), reduce-scatter (n-1)/n P. That is 1.5 times data parallel's all-reduce.

Zhao et al. 2023, "PyTorch FSDP"; Rajbhandari et al. 2020, "ZeRO" (stage 3).

Run: mpirun -n 4 python -m mpi4py examples/fully_sharded.py
"""

import training
from transformer import AdamW, build, cross_entropy

from pynccl.parallel import ShardedLayers, part_of


def forward_backward(comm, weights, layers, tokens, targets, scale):
    """Leave the gradients' shares in ``weights.gradients``; return this rank's part of the loss."""
    forth = range(len(layers))
    kept = []
    x = tokens
    for index, flat in weights.in_turn(forth):
        with comm.compute() as xp:
            p = weights.layouts[index].views(xp.asarray(flat))
            x, keep = layers[index].forward(xp, p, x)
            kept.append(keep)
    with comm.compute() as xp:
        loss, d = cross_entropy(xp, x, targets, scale)
    for index, flat in weights.in_turn(forth[::-1]):
        with comm.compute() as xp:
            p = weights.layouts[index].views(xp.asarray(flat))
            d, gradients = layers[index].backward(xp, p, kept.pop(), d)
        weights.reduce(index, gradients)
    return loss


def train(comm, text, args):
    layers = build(training.size_of(args))
    weights = ShardedLayers(comm, [layer.shapes for layer in layers], args.dtype)
    for index, whole in enumerate(training.starting_weights(args)):
        weights.load(index, whole)
    with comm.compute() as xp:
        shards = [xp.asarray(shard) for shard in weights.shards]
        optimizer = AdamW(xp, shards)

    losses = []
    mine = part_of(args.batch, comm.rank, comm.nranks)
    for x, y in training.batches(comm, text, args):
        with comm.compute() as xp:
            rows = xp.asarray(x[mine]), xp.asarray(y[mine])
        losses.append(forward_backward(comm, weights, layers, *rows, 1 / x.size))
        with comm.compute() as xp:
            optimizer.step(xp, shards, [xp.asarray(share) for share in weights.gradients])

    training.check_traffic(comm, args, formula(comm, weights))
    show_memory(comm, weights, optimizer)
    return training.total_losses(comm, losses), weights.whole()


def formula(comm, weights):
    """Calls and bytes of each operation in a step."""
    layers = len(weights.layouts)
    once = (comm.nranks - 1) * sum(shard.nbytes for shard in weights.shards)
    return {"allgather": (2 * layers, 2 * once), "reduce_scatter": (layers, once)}


def show_memory(comm, weights, optimizer):
    whole = sum(layout.padded for layout in weights.layouts) * weights.shards[0].dtype.itemsize
    if comm.rank == 0:
        here = weights.nbytes + optimizer.nbytes
        print(
            f"parameters, gradients and moments take {here / 1e3:.0f} kB on a rank, room for whole "
            f"layers included; data parallel's {4 * whole / 1e3:.0f} kB"
        )


if __name__ == "__main__":
    training.run("fully sharded", train, training.options("fully sharded").parse_args())
