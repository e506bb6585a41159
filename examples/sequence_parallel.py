r"""Sequence parallel training: tensor parallel, and split by place between the split matrices.

                normalize, residual     heads, hidden values      normalize, residual
    rank 0      places  0..11    \        the first quarter,    \     places  0..11
    rank 1      places 12..23     > all-   of all places         > reduce- 12..23
    rank 2      places 24..35    / gather  ...                  / scatter  24..35

Tensor parallel training leaves the normalizations and residuals whole on every rank, and so what
their backward passes need. But each place is normalized by itself: so the places are dealt out, and
the all-reduce comes apart into a reduce-scatter, where a split layer ends, and an all-gather, where
the next begins. What is gathered is not kept; the backward pass gathers it once more.

Communication of a step, for L blocks and activations of A bytes on n ranks, each sends (n-1)/n
times: all-gather (6 L + 3) A, reduce-scatter (4 L + 2) A, which is tensor parallel's and half as
much again in the backward pass; and all-reduces, 6/width A for the loss and twice the bytes of the
normalizations' gradients, of which each rank has its places' part.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models".

Run: mpirun -n 4 python -m mpi4py examples/sequence_parallel.py
"""

import numpy as np
import training
from transformer import SPLIT_AXIS, AdamW, build, forward, forward_backward, listed

from pynccl.parallel import SequenceParallel, TensorParallel, all_reduced, split_cross_entropy

AXES = {**SPLIT_AXIS, "places": 0}


def train(comm, text, args):
    split = SequenceParallel(comm)
    layers = build(training.size_of(args), split)
    first = layers[0].rows.start

    def loss_of(xp, logits, targets, scale):
        return split_cross_entropy(comm, logits, first, targets, scale)

    losses = []
    whole = training.starting_weights(args)
    with comm.compute() as xp:
        mine = training.parts_of(whole, AXES, split)
        weights = [{name: xp.asarray(a) for name, a in layer.items()} for layer in mine]
        optimizer = AdamW(xp, listed(layers, weights))
    for x, y in training.batches(comm, text, args):
        with comm.compute() as xp:
            x, y = xp.asarray(x), xp.asarray(y)
            scale = 1 / x.size
            loss, gradients = forward_backward(xp, layers, weights, x, y, scale, loss_of)
            sum_over_places(comm, xp, gradients)
            optimizer.step(xp, listed(layers, weights), listed(layers, gradients))
        losses.append(loss / comm.nranks)  # every rank knows it, and they will be summed

    training.check_traffic(comm, args, formula(comm, args))
    show_memory(comm, text, args)
    return training.total_losses(comm, losses), training.joined_weights(comm, weights, AXES, whole)


def sum_over_places(comm, xp, gradients):
    """Complete the gradients of what is whole on every rank, all in one all-reduce."""
    partial = [layer[name] for layer in gradients for name in layer if name not in AXES]
    sums = all_reduced(comm, xp.concatenate(partial))
    for gradient, total in zip(partial, xp.split(sums, len(partial))):
        gradient[...] = total


def formula(comm, args):
    """Calls and bytes of each operation in a step."""
    n, blocks = comm.nranks, args.layers
    if n == 1:
        return {}
    size = np.dtype(args.dtype).itemsize
    around = (n - 1) / n
    rows = around * args.batch * args.context * size
    normalizations = (2 * blocks + 1) * 2 * args.width * size
    return {
        "allgather": (6 * blocks + 3, (6 * blocks + 3) * args.width * rows),
        "reduce_scatter": (4 * blocks + 2, (4 * blocks + 2) * args.width * rows),
        "allreduce": (3, 2 * 3 * rows + 2 * around * normalizations),
    }


def show_memory(comm, text, args):
    """What the layers keep for the backward pass, beside tensor parallel training's."""
    kept = []
    with comm.compute() as xp:
        x = xp.asarray(training.batch(text, 0, args.seed, args.batch, args.context)[0])
        for split, axes in (SequenceParallel(comm), AXES), (TensorParallel(comm), SPLIT_AXIS):
            layers = build(training.size_of(args), split)
            mine = training.parts_of(training.starting_weights(args), axes, split)
            weights = [{name: xp.asarray(a) for name, a in layer.items()} for layer in mine]
            embedded, _ = layers[0].forward(xp, weights[0], x)
            _, of_blocks = forward(xp, layers[1:-1], weights[1:-1], embedded)
            kept.append(training.kept_bytes(of_blocks))
    if comm.rank == 0:
        print(
            f"for the backward pass the blocks keep {kept[0] / 1e3:.0f} kB on a rank; "
            f"tensor parallel's {kept[1] / 1e3:.0f} kB"
        )


if __name__ == "__main__":
    training.run("sequence parallel", train, training.options("sequence parallel").parse_args())
