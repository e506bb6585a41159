"""Data parallel training: the same model on every rank, and the data set dealt out among them.

    rank 0   model   samples 0 3 6 ...  \
    rank 1   model   samples 1 4 7 ...   > gradients summed over the ranks, the same step everywhere
    rank 2   model   samples 2 5 8 ...  /

A scatter deals the data set, a broadcast makes the first weights equal, and in each step an
all-reduce sums the gradients. It goes in buckets: the last layer's gradients are ready first, and
travel on a second stream while the backward pass goes on to the layers before it.

Run: mpirun -n 4 python -m mpi4py examples/data_parallel.py
"""

import argparse

import numpy as np
from mpi4py import MPI
from tqdm import tqdm

import pynccl

PIXELS, CLASSES = 64, 10
LAYERS = ((PIXELS, 128), (128, 64), (64, CLASSES))  # inputs and outputs of each
TRAINING = 1437  # of the 1797 handwritten digits; the others are for testing


# The model: its numbers lie in one array, the loss first, then the layers from last to first, which
# is the order in which the backward pass makes their gradients.


def layer_ends():
    """Where each layer's numbers end, by layer from first to last."""
    sizes = [(inputs + 1) * outputs for inputs, outputs in LAYERS]
    return [1 + sum(sizes[layer:]) for layer in range(len(LAYERS))]


def layer_views(flat):
    """The matrix and the offsets of each layer, from first to last."""
    views = []
    for (inputs, outputs), end in zip(LAYERS, layer_ends()):
        start = end - (inputs + 1) * outputs
        matrix = flat[start : start + inputs * outputs].reshape(inputs, outputs)
        views.append((matrix, flat[end - outputs : end]))
    return views


def first_weights(seed):
    rng = np.random.default_rng(seed)
    flat = np.zeros(layer_ends()[0], np.float32)
    for (matrix, _), (inputs, _) in zip(layer_views(flat), LAYERS):
        matrix[:] = rng.normal(0, np.sqrt(2 / inputs), matrix.shape)
    return flat


def forward(xp, weights, x):
    """What goes into each layer, and what comes out of the last."""
    values = [x]
    for matrix, offset in layer_views(weights):
        values.append(xp.maximum(values[-1] @ matrix + offset, 0))
    matrix, offset = layer_views(weights)[-1]
    values[-1] = values[-2] @ matrix + offset
    return values


def backward(xp, weights, gradients, x, labels):
    """Write the loss and its gradients, summed over the samples; yield each layer when written."""
    *inputs, logits = forward(xp, weights, x)
    logits = logits - logits.max(axis=1, keepdims=True)
    logs = logits - xp.log(xp.exp(logits).sum(axis=1, keepdims=True))
    target = labels[:, None] == xp.arange(CLASSES)
    gradients[0] = -(logs * target).sum()
    delta = xp.exp(logs) - target
    for layer in reversed(range(len(LAYERS))):
        matrix, offset = layer_views(gradients)[layer]
        matrix[:] = inputs[layer].T @ delta
        offset[:] = delta.sum(axis=0)
        yield layer
        delta = (delta @ layer_views(weights)[layer][0].T) * (inputs[layer] > 0)


# The data: sample i belongs to rank i % nranks, so a batch of consecutive samples is spread evenly.


def deal(samples, nranks):
    """Rank by rank its samples, padded so that all have as many rows."""
    share = -(-len(samples) // nranks)
    padded = np.zeros((share * nranks, *samples.shape[1:]), samples.dtype)
    padded[: len(samples)] = samples
    return np.ascontiguousarray(padded.reshape(share, nranks, -1).swapaxes(0, 1))


def rows_of(start, end, rank, nranks):
    """A rank's rows among the samples from start to end."""
    return slice(*(-((rank - sample) // nranks) for sample in (start, end)))


def load_data():
    """Images of 8 x 8 pixels and their labels, shuffled once."""
    from sklearn.datasets import load_digits  # takes a second, and rank 0 alone needs it

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return (x[order] / 16).astype(np.float32), y[order].astype(np.int32)


def choose_buckets(nbytes):
    """The layers that complete a bucket of at least so many bytes, and the bucket's range."""
    buckets, start = {}, 0
    for layer, end in reversed(list(enumerate(layer_ends()))):
        if (end - start) * 4 >= nbytes or layer == 0:
            buckets[layer] = slice(start, end)
            start = end
    return buckets


def train(comm, weights, x, labels, args, reducer=None):
    """Train on this rank's samples and, with a stream for the reductions, on all other ranks'."""
    rank, nranks = (comm.rank, comm.nranks) if reducer else (0, 1)
    gradients = comm.empty(weights.shape)
    buckets = choose_buckets(args.bucket_bytes)
    starts = np.arange(0, TRAINING, args.batch)
    rng = np.random.default_rng(args.seed)
    bar = tqdm(range(args.epochs), "epochs", disable=comm.rank != 0 or not reducer)
    for epoch in bar:
        loss = 0.0
        for start in rng.permutation(starts):
            end = min(start + args.batch, TRAINING)
            mine = rows_of(start, end, rank, nranks)
            with comm.compute() as xp:
                w, g = xp.asarray(weights), xp.asarray(gradients)
                batch = xp.asarray(x)[mine], xp.asarray(labels)[mine]
                for layer in backward(xp, w, g, *batch):
                    # The reducer's stream waits for the gradients, and this one goes on.
                    if reducer and layer in buckets:
                        comm.allreduce(gradients[buckets[layer]], stream=reducer)
            if reducer:
                comm.stream.wait(reducer)
            with comm.compute():
                w[1:] -= args.lr / (end - start) * g[1:]
                loss = loss + g[0]
        if not bar.disable:
            bar.write(f"epoch {epoch + 1:3d}   loss {float(loss) / TRAINING:.4f}")


def accuracy(comm, weights, x, labels):
    with comm.compute() as xp:
        chosen = forward(xp, xp.asarray(weights), xp.asarray(x))[-1].argmax(axis=1)
        return float((chosen == xp.asarray(labels)).mean())


def main(world, args):
    with pynccl.Communicator.from_mpi(world) as comm:
        shares = None, None
        if comm.rank == 0:
            digits, labels = load_data()
            known = digits[:TRAINING], labels[:TRAINING]
            shares = [comm.asarray(deal(samples, comm.nranks)) for samples in known]
        share = -(-TRAINING // comm.nranks)
        x = comm.scatter(shares[0], comm.empty((share, PIXELS), np.float32))
        y = comm.scatter(shares[1], comm.empty(share, np.int32))

        # Each rank begins with weights of its own, as programs do by mistake; rank 0's are used.
        weights = comm.broadcast(comm.asarray(first_weights(args.seed + comm.rank)))
        train(comm, weights, x, y, args, reducer=comm.device.create_stream())

        if comm.rank == 0:
            test = comm.asarray(digits[TRAINING:]), comm.asarray(labels[TRAINING:])
            right = accuracy(comm, weights, *test)
            print(f"accuracy on {len(test[1])} digits not trained on: {right:.1%}")

            alone = comm.asarray(first_weights(args.seed))
            train(comm, alone, *(comm.asarray(samples) for samples in known), args)
            difference = np.abs(weights.get() - alone.get())[1:].max()
            print(
                f"weights of {comm.nranks} ranks and of one alone differ by at most "
                f"{difference:.1e} (allowed: {args.tolerance:.0e})"
            )
            assert difference <= args.tolerance


def arguments():
    parser = argparse.ArgumentParser(description="Data parallel training on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, of all ranks")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--bucket-bytes", type=int, default=16384)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    return parser.parse_args()


if __name__ == "__main__":
    main(MPI.COMM_WORLD, arguments())
