"""What the training examples share: their options, progress, and the proof at their end."""

import argparse

import numpy as np
from text import batch, shared_text
from tqdm import tqdm
from transformer import AdamW, Size, build, first_weights, forward_backward, listed

import pynccl
from pynccl.parallel import CountedCommunicator, joined, part_of

# Adam divides small gradients by their own size, and so makes more of how they were rounded.
TOLERANCE = {"float32": 1e-3, "float64": 1e-8}


def options(scheme):
    """The options of all examples; an example may add its own."""
    parser = argparse.ArgumentParser(description=f"Train a language model: {scheme}.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=12, help="rows a step, of all ranks")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=48, help="bytes in a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=TOLERANCE, default="float32")
    parser.add_argument("--save", metavar="FILE", help="write the weights, as safetensors")
    parser.add_argument("--load", metavar="FILE", help="begin with weights that any scheme wrote")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the losses")
    return parser


def size_of(args):
    return Size(args.layers, args.width, args.heads, args.context)


def starting_weights(args):
    """The parameters of each layer, whole, in host memory."""
    if args.load is None:
        return first_weights(size_of(args), args.seed, np.dtype(args.dtype))
    from safetensors.numpy import load_file

    weights = [{} for _ in build(size_of(args))]
    for name, array in load_file(args.load).items():
        layer, parameter = name.split(".")
        weights[int(layer)][parameter] = array.astype(args.dtype)
    return weights


def parts_of(weights, axes, split):
    """This rank's parts of whole weights; ``axes``: along which axis each parameter is split."""
    return [
        {name: part_along(array, axes.get(name), split) for name, array in layer.items()}
        for layer in weights
    ]


def part_along(array, axis, split):
    if axis is None:
        return array
    return array[(slice(None),) * axis + (part_of(array.shape[axis], split.rank, split.nranks),)]


def joined_weights(comm, weights, axes, whole):
    """Whole weights in host memory, on every rank, from the ranks' parts.

    Args:
        whole: weights of the shapes that are wanted, such as those at the start
    """
    return [
        {
            name: to_host(joined(comm, a, axes[name], of_whole[name].shape[axes[name]]))
            if name in axes
            else to_host(a)
            for name, a in layer.items()
        }
        for layer, of_whole in zip(weights, whole)
    ]


def collected(comm, weights, owners, args):
    """Whole weights in host memory, on every rank, from the ranks that own each layer.

    Args:
        weights: this rank's layers by number
        owners: the rank of each layer
    """
    whole = []
    for index, (layer, owner) in enumerate(zip(build(size_of(args)), owners)):
        whole.append({})
        for name, shape in layer.shapes.items():
            array = comm.empty(shape, args.dtype)
            if comm.rank == owner:
                with comm.compute() as xp:
                    xp.asarray(array)[...] = xp.asarray(weights[index][name])
            whole[-1][name] = comm.broadcast(array, root=owner).get()
    return whole


def save(file, weights):
    from safetensors.numpy import save_file

    named = {f"{i}.{name}": a for i, layer in enumerate(weights) for name, a in layer.items()}
    save_file({name: np.ascontiguousarray(array) for name, array in named.items()}, file)


def batches(comm, text, args):
    """Each step's bytes and the bytes that follow them. Communication is counted meanwhile."""
    comm.traffic.reset()
    for step in tqdm(range(args.steps), "steps", disable=comm.rank != 0):
        yield batch(text, step, args.seed, args.batch, args.context)
    comm.traffic.paused = True


def total_losses(comm, losses):
    """Each step's loss, from what the ranks have of it."""
    with comm.compute() as xp:
        mine = xp.stack([xp.asarray(loss, dtype=np.float64) for loss in losses])
        shared = comm.empty(mine.shape, np.float64)
        xp.asarray(shared)[:] = mine
    return comm.allreduce(shared).get()


def train_alone(comm, text, args):
    """The same training on one GPU: the losses, and the weights in host memory."""
    losses = []
    with comm.compute() as xp:
        layers = build(size_of(args))
        weights = [{n: xp.asarray(a) for n, a in p.items()} for p in starting_weights(args)]
        flat = listed(layers, weights)
        optimizer = AdamW(xp, flat)
        for step in range(args.steps):
            x, y = map(xp.asarray, batch(text, step, args.seed, args.batch, args.context))
            loss, gradients = forward_backward(xp, layers, weights, x, y, 1 / x.size)
            optimizer.step(xp, flat, listed(layers, gradients))
            losses.append(float(loss))
        return losses, [{n: to_host(a) for n, a in p.items()} for p in weights]


def to_host(array):
    return array.get() if hasattr(array, "get") else np.array(array)


def kept_bytes(kept):
    """Bytes of the arrays that the backward pass needs; an array and its views count once."""
    arrays = {}

    def visit(thing):
        if isinstance(thing, (tuple, list)):
            for part in thing:
                visit(part)
        else:
            while isinstance(thing.base, type(thing)):
                thing = thing.base
            arrays[id(thing)] = thing.nbytes

    visit(kept)
    return sum(arrays.values())


def check_traffic(comm, args, expected):
    """Compare the calls and bytes that each step took with what the scheme's formula says."""
    traffic = comm.traffic
    if comm.rank == 0:
        print(f"each step, rank 0 of {comm.nranks} sends      calls      bytes   by the formula")
    for operation in sorted(expected.keys() | traffic.calls.keys()):
        calls = traffic.calls.get(operation, 0) / args.steps
        sent = traffic.nbytes.get(operation, 0) / args.steps
        formula_calls, formula_bytes = expected.get(operation, (0, 0))
        if comm.rank == 0:
            print(f"  {operation:32} {calls:8.1f} {sent:10.0f} {formula_bytes:10.0f}")
        assert abs(calls - formula_calls) < 1e-9, (operation, calls, formula_calls)
        assert abs(sent - formula_bytes) < 1, (operation, sent, formula_bytes)


def check_equal(args, losses, weights, alone, whose="one GPU's"):
    """Print how far training is from training alone; raise where it is too far."""
    alone_losses, alone_weights = alone
    by_loss = np.abs(np.subtract(losses, alone_losses)).max()
    by_weight = max(
        np.abs(weights[i][name] - array).max()
        for i, layer in enumerate(alone_weights)
        for name, array in layer.items()
    )
    allowed = TOLERANCE[args.dtype]
    print(f"loss {losses[0]:.4f} at the first step, {losses[-1]:.4f} at the last")
    print(
        f"from {whose} training the losses differ by at most {by_loss:.1e}, "
        f"the weights by {by_weight:.1e} (allowed: {allowed:.0e})"
    )
    assert by_loss <= allowed, "the losses differ"
    assert by_weight <= allowed, "the weights differ"


def plot(file, losses, alone_losses, scheme):
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(alone_losses, color="0.7", linewidth=5, label="one GPU")
    axes.plot(losses, color="C0", linewidth=1.5, label=scheme)
    axes.set(xlabel="step", ylabel="loss (nats per byte)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)
    print(f"drawn: {file}")


def run(scheme, train, args, alone=train_alone):
    """Train by a scheme and on one GPU, compare, and draw or save what was asked for.

    Args:
        train: takes the communicator, the text and the options; returns every step's loss and, on
            rank 0, the weights
        alone: the same on one GPU; called on rank 0
    """
    from mpi4py import MPI  # an example that is one process needs none

    with CountedCommunicator(pynccl.Communicator.from_mpi(MPI.COMM_WORLD)) as comm:
        text = shared_text(comm)
        losses, weights = train(comm, text, args)
        if comm.rank == 0:
            expected = alone(comm, text, args)
            check_equal(args, losses, weights, expected)
            if args.plot:
                plot(args.plot, losses, expected[0], scheme)
            if args.save:
                save(args.save, weights)
