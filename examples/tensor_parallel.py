r"""Tensor parallel training: every matrix is split over the GPUs, and all see the same data.

              attention                   perceptron
    rank 0    heads 0 \                   hidden values   0..63  \
    rank 1    heads 1  > all-reduce                      64..127  > all-reduce
    rank 2    heads 2 /                                 128..191 /
              columns of qkv, rows of out  columns of up, rows of down

A layer's first matrix is split by columns and its second by rows, so that between them each rank
needs its own columns' values only: what the rows make of them is summed by one all-reduce. In the
backward pass the sum is where the columns begin. The table of bytes and the scores at the end are
split by bytes; of the scores, the ranks exchange three numbers a row in place of 256.

Communication of a step, for L blocks and activations of A bytes on n ranks, each sends 2 (n-1)/n
times: (4 L + 2) A for the layers, and for the loss 3/width A.

Shoeybi et al. 2019, "Megatron-LM".

Run: mpirun -n 4 python -m mpi4py examples/tensor_parallel.py
"""

import numpy as np
import training
from transformer import SPLIT_AXIS, AdamW, build, forward_backward, listed

from pynccl.parallel import TensorParallel, split_cross_entropy


def train(comm, text, args):
    split = TensorParallel(comm)
    layers = build(training.size_of(args), split)
    whole = training.starting_weights(args)
    mine = training.parts_of(whole, SPLIT_AXIS, split)
    first = layers[0].rows.start

    def loss_of(xp, logits, targets, scale):
        return split_cross_entropy(comm, logits, first, targets, scale)

    losses = []
    with comm.compute() as xp:
        weights = [{name: xp.asarray(a) for name, a in layer.items()} for layer in mine]
        optimizer = AdamW(xp, listed(layers, weights))
    for x, y in training.batches(comm, text, args):
        with comm.compute() as xp:
            x, y = xp.asarray(x), xp.asarray(y)
            scale = 1 / x.size
            loss, gradients = forward_backward(xp, layers, weights, x, y, scale, loss_of)
            optimizer.step(xp, listed(layers, weights), listed(layers, gradients))
        losses.append(loss / comm.nranks)  # every rank knows it, and they will be summed

    training.check_traffic(comm, args, formula(comm, args))
    show_memory(comm, layers, weights, args)
    return training.total_losses(comm, losses), training.joined_weights(
        comm, weights, SPLIT_AXIS, whole
    )


def formula(comm, args):
    """Calls and bytes of each operation in a step."""
    if comm.nranks == 1:
        return {}
    rows = args.batch * args.context * np.dtype(args.dtype).itemsize
    sent = 2 * (comm.nranks - 1) / comm.nranks * rows
    layers = 4 * args.layers + 2
    return {"allreduce": (layers + 2, (layers * args.width + 3) * sent)}


def show_memory(comm, layers, weights, args):
    here = 4 * sum(array.nbytes for array in listed(layers, weights))
    size = np.dtype(args.dtype).itemsize
    shapes = [shape for layer in build(training.size_of(args)) for shape in layer.shapes.values()]
    whole = 4 * size * sum(int(np.prod(shape)) for shape in shapes)
    if comm.rank == 0:
        print(
            f"parameters, gradients and moments take {here / 1e3:.0f} kB on a rank; "
            f"data parallel's {whole / 1e3:.0f} kB"
        )


if __name__ == "__main__":
    training.run("tensor parallel", train, training.options("tensor parallel").parse_args())
