r"""Training on long sequences: the places are dealt out, and keys and values go round a ring.

    rank 0    places  0..11     holds keys of  0..11   then of 36..47   then of 24..35 ...
    rank 1    places 12..23                   12..23            0..11           36..47
    rank 2    places 24..35                   24..35           12..23            0..11
    rank 3    places 36..47                   36..47           24..35           12..23

All but attention is done place by place, and so by each rank for its own stretch, with all
parameters. For attention the keys and values are passed from rank to rank, until every query has
met all keys before it; the softmax is put together from what each stretch gives. Nothing that a
rank keeps grows with the square of the length, and all of it is 1/n of the whole.

Communication of a step, for L blocks, activations of A bytes and parameters of P bytes on n ranks:
send 2 (n-1)/n A a block forward and 2 (2 n - 1)/n A backward; all-reduce 2 (n-1)/n P for the
gradients, but for those of the places, of which each rank has its own.

Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context".

Run: mpirun -n 4 python -m mpi4py examples/ring_attention.py
"""

import numpy as np
import training
from transformer import AdamW, Attention, Whole, build, forward, forward_backward, listed

from pynccl.parallel import RingAttention, all_reduced, part_of

AXES = {"places": 0}


class Stretch(Whole):
    """Nothing is split but the places."""

    def __init__(self, comm):
        self.comm = comm

    def places(self, count):
        return part_of(count, self.comm.rank, self.comm.nranks)


def build_on_ring(comm, size):
    layers = build(size, Stretch(comm))
    ring = RingAttention(comm)
    for layer in layers:
        if isinstance(layer, Attention):
            layer.attend, layer.attend_backward = ring.forward, ring.backward
    return layers


def train(comm, text, args):
    if args.context % comm.nranks:
        raise SystemExit(f"--context {args.context} cannot be divided among {comm.nranks} ranks")
    layers = build_on_ring(comm, training.size_of(args))
    whole = training.starting_weights(args)
    stretch = part_of(args.context, comm.rank, comm.nranks)
    losses = []
    with comm.compute() as xp:
        mine = training.parts_of(whole, AXES, comm)
        weights = [{name: xp.asarray(a) for name, a in layer.items()} for layer in mine]
        optimizer = AdamW(xp, listed(layers, weights))
    for x, y in training.batches(comm, text, args):
        with comm.compute() as xp:
            scale = 1 / x.size
            x, y = xp.asarray(x[:, stretch]), xp.asarray(y[:, stretch])
            loss, gradients = forward_backward(xp, layers, weights, x, y, scale)
            sum_over_ranks(comm, xp, gradients)
            optimizer.step(xp, listed(layers, weights), listed(layers, gradients))
        losses.append(loss)

    training.check_traffic(comm, args, formula(comm, args, whole))
    show_memory(comm, text, args)
    return training.total_losses(comm, losses), training.joined_weights(comm, weights, AXES, whole)


def sum_over_ranks(comm, xp, gradients):
    """Complete the gradients of what all ranks have, in one all-reduce."""
    shared = [layer[name] for layer in gradients for name in layer if name not in AXES]
    sums = all_reduced(comm, xp.concatenate([gradient.ravel() for gradient in shared]))
    begin = 0
    for gradient in shared:
        gradient[...] = sums[begin : begin + gradient.size].reshape(gradient.shape)
        begin += gradient.size


def formula(comm, args, whole):
    """Calls and bytes of each operation in a step."""
    n = comm.nranks
    if n == 1:
        return {}
    size = np.dtype(args.dtype).itemsize
    stretch = args.batch * args.context // n * args.width * size
    parameters = sum(a.nbytes for layer in whole for name, a in layer.items() if name not in AXES)
    return {
        "sendrecv": (args.layers * (2 * n - 1), args.layers * 2 * (3 * n - 2) * stretch),
        "allreduce": (1, 2 * (n - 1) / n * parameters),
    }


def show_memory(comm, text, args):
    """What the blocks keep for the backward pass, beside one GPU's."""
    kept = []
    size = training.size_of(args)
    with comm.compute() as xp:
        x = training.batch(text, 0, args.seed, args.batch, args.context)[0]
        stretch = part_of(args.context, comm.rank, comm.nranks)
        weights = [
            {name: xp.asarray(a) for name, a in layer.items()}
            for layer in training.starting_weights(args)
        ]
        for layers, places in (build_on_ring(comm, size), stretch), (build(size), slice(None)):
            here = {**weights[0], "places": weights[0]["places"][places]}
            embedded, _ = layers[0].forward(xp, here, xp.asarray(x[:, places]))
            _, of_blocks = forward(xp, layers[1:-1], weights[1:-1], embedded)
            kept.append(training.kept_bytes(of_blocks))
    if comm.rank == 0:
        print(
            f"for the backward pass the blocks keep {kept[0] / 1e3:.0f} kB on a rank; "
            f"one GPU's {kept[1] / 1e3:.0f} kB"
        )


if __name__ == "__main__":
    training.run("ring attention", train, training.options("ring attention").parse_args())
