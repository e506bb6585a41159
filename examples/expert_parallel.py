r"""Expert parallel training: a mixture of experts, each on one GPU, and a router that sends bytes.

    rank 0   rows 0..2   router   \                /  experts 0, 1   \                /  weighted
    rank 1   rows 3..5   router    >  all-to-all  >   experts 2, 3    >  all-to-all  >   and added
    rank 2   rows 6..8   router   /    (uneven)    \  experts 4, 5   /    (uneven)    \  (0..2 on 0)

In place of one perceptron a block has several experts. A router scores them for each vector, which
goes to its two best; what they make of it comes back and is added, weighted by the scores. An
expert takes so many vectors of each rank at most (its capacity); further ones are dropped, and pass
the block by. A term of the loss keeps the router from choosing the same few. All else is data
parallel. Gradients go through the same exchanges the other way.

Communication of a step, for L blocks and N vectors of S bytes on each of n ranks: four all-to-alls
of about 2 N S (n-1)/n bytes in each block (there and back, forward and backward), one of a count
for each expert, and an all-reduce of the gradients of all but the experts.

Lepikhin et al. 2020, "GShard"; Fedus et al. 2021, "Switch Transformers".

Run: mpirun -n 4 python -m mpi4py examples/expert_parallel.py
"""

import numpy as np
import training
from mixture import AXES, Experts, build, starting_weights
from text import batch
from transformer import AdamW, forward_backward, listed

import pynccl
from pynccl.parallel import GradientBuckets, part_of


def train(comm, text, args):
    layers = build(comm, args, groups=comm.nranks)
    of_experts = [layer for layer in layers if isinstance(layer, Experts)]
    whole = starting_weights(args, layers)
    mine = training.parts_of(whole, AXES, comm)
    with comm.compute() as xp:
        weights = [{name: xp.asarray(a) for name, a in layer.items()} for layer in mine]
        optimizer = AdamW(xp, listed(layers, weights))
    shared = [(i, name) for i, layer in enumerate(mine) for name in layer if name not in AXES]
    shared.reverse()  # the last layer's gradients are ready first
    buckets = GradientBuckets(comm, [mine[i][name].shape for i, name in shared], args.dtype)

    losses, load = [], []
    rows = part_of(args.batch, comm.rank, comm.nranks)
    for x, y in training.batches(comm, text, args):
        with comm.compute() as xp:
            loss, gradients = forward_backward(
                xp, layers, weights, xp.asarray(x[rows]), xp.asarray(y[rows]), 1 / x.size
            )
            for i, name in shared:
                buckets.add(gradients[i][name])
        sums = buckets.sums()
        with comm.compute() as xp:
            for (i, name), total in zip(shared, sums):
                gradients[i][name] = total
            optimizer.step(xp, listed(layers, weights), listed(layers, gradients))
        losses.append(loss + sum(layer.balance for layer in of_experts))
        load.append([layer.chosen.copy() for layer in of_experts])

    training.check_traffic(comm, args, formula(comm, args, of_experts, buckets))
    dropped = sum(layer.dropped for layer in of_experts)
    show_load(comm, np.diff(load, axis=0, prepend=0), dropped, args)
    return training.total_losses(comm, losses), training.joined_weights(comm, weights, AXES, whole)


def formula(comm, args, of_experts, buckets):
    """Calls and bytes of each operation in a step; the vectors are those that the router sent."""
    around = (comm.nranks - 1) / comm.nranks
    width = args.width * np.dtype(args.dtype).itemsize
    elsewhere = sum(layer.elsewhere for layer in of_experts) / args.steps
    return {
        "alltoall": (args.layers, args.layers * around * 4 * args.experts),
        "alltoallv": (4 * args.layers, elsewhere * width),
        "allreduce": (buckets.calls, 2 * around * buckets.nbytes),
    }


def show_load(comm, load, dropped, args):
    """How often each expert was chosen, by step and block, and what was dropped, of all ranks."""
    load = comm.allreduce(comm.asarray(np.ascontiguousarray(load))).get()
    dropped = comm.allreduce(comm.asarray(np.float64([dropped]))).get()[0]
    if comm.rank == 0:
        share = load / load.sum(axis=-1, keepdims=True)
        print(
            f"the most loaded expert gets {share[0].max():.0%} of the vectors at the first step, "
            f"{share[-1].max():.0%} at the last (even: {1 / args.experts:.0%}); "
            f"dropped: {dropped / load.sum():.1%}"
        )
        if args.load_plot:
            draw(args.load_plot, share)


def train_in_groups(comm, text, args):
    """The same on one GPU, which takes one group of vectors, those of a rank, after the other."""
    ranks, losses = comm.nranks, []
    with pynccl.Communicator.init(1, 0, pynccl.get_unique_id(), device=comm.device) as alone:
        layers = build(alone, args, groups=ranks)
        with alone.compute() as xp:
            whole = starting_weights(args, layers)
            weights = [{name: xp.asarray(a) for name, a in layer.items()} for layer in whole]
            flat = listed(layers, weights)
            optimizer = AdamW(xp, flat)
            for step in range(args.steps):
                x, y = map(xp.asarray, batch(text, step, args.seed, args.batch, args.context))
                total, sums = 0.0, [xp.zeros_like(array) for array in flat]
                for rank in range(ranks):
                    rows = part_of(args.batch, rank, ranks)
                    loss, gradients = forward_backward(
                        xp, layers, weights, x[rows], y[rows], 1 / x.size
                    )
                    balance = (layer.balance for layer in layers if isinstance(layer, Experts))
                    total += float(loss) + float(sum(balance))
                    for array, gradient in zip(sums, listed(layers, gradients)):
                        array += gradient
                optimizer.step(xp, flat, sums)
                losses.append(total)
            return losses, [{n: training.to_host(a) for n, a in p.items()} for p in weights]


def draw(file, share):
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    blocks = share.shape[1]
    figure, axes = pyplot.subplots(
        1, blocks, figsize=(4 * blocks, 3), sharey=True, squeeze=False, layout="constrained"
    )
    for block, panel in enumerate(axes[0]):
        drawn = panel.imshow(100 * share[:, block].T, aspect="auto", vmin=0, cmap="magma_r")
        panel.set_title(f"block {block}", loc="left", size=10)
        panel.set(xlabel="step", yticks=range(share.shape[2]))
        figure.colorbar(drawn, ax=panel)
    axes[0, 0].set_ylabel("expert")
    figure.suptitle(f"% of the vectors; an even load: {100 / share.shape[2]:.1f} %", size=10)
    figure.savefig(file, dpi=150)
    print(f"drawn: {file}")


if __name__ == "__main__":
    parser = training.options("expert parallel")
    parser.add_argument("--experts", type=int, default=12, help="a multiple of the ranks")
    parser.add_argument("--capacity", type=float, default=1.5, help="1: no room for imbalance")
    parser.add_argument("--balance", type=float, default=0.02, help="weight of the load's term")
    parser.add_argument("--load-plot", metavar="FILE.png", help="draw the experts' load")
    training.run("expert parallel", train, parser.parse_args(), alone=train_in_groups)
