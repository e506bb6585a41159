"""Pipeline parallel training: the layers are cut into stages, and small batches follow one another.

    rank 0  embedding, block   f0 f1 f2 f3 .  .  .  b0 f4 b1 f5 b2 ...   f: forward pass and
    rank 1  blocks             .  f0 f1 f2 .  .  b0 f3 b1 f4 b2 f5 ...   b: backward pass
    rank 2  blocks             .  .  f0 f1 .  b0 f2 b1 f3 b2 f4 b3 ...      of a micro-batch
    rank 3  block, head        .  .  .  f0 b0 f1 b1 f2 b2 f3 b3 f4 ...   .: idle

A rank sends its stage's output to the next rank, and gets the gradient back from it. GPipe does all
forward passes first, and has to keep what all of them need; 1F1B goes backward as soon as it can,
and keeps one micro-batch a stage behind it. The stages are idle in the same part of the time, the
bubble: (p-1) / (m + p-1) for p stages and m micro-batches. With c pieces of the model on each rank
(interleaved) it is (p-1) / (c m + p-1). That is for stages that take equally long, each on a
processor of its own, and messages that take no time. No schedule changes what is computed.

Communication of a step, for activations of A bytes (of all micro-batches): each border between
pieces passes A bytes forward and A back. Rank 0 sends c A forward and (c-1) A back, in m messages
per border and direction.

Huang et al. 2019, "GPipe"; Narayanan et al. 2019, "PipeDream", and 2021, "Efficient Large-Scale
Language Model Training on GPU Clusters".

Run: mpirun -n 4 python -m mpi4py examples/pipeline_parallel.py
"""

import time

import numpy as np
import training
from transformer import AdamW, build, cross_entropy, forward, listed

from pynccl.parallel import exchange, gpipe, interleaved, one_forward_one_backward, part_of


def schedule_of(args, nstages):
    if args.schedule == "gpipe":
        return gpipe(nstages, args.micro)
    if args.schedule == "1f1b":
        return one_forward_one_backward(nstages, args.micro)
    return interleaved(nstages, args.micro, args.pieces)


class Piece:
    """Some layers in a row, with their gradients and what they keep for each micro-batch."""

    def __init__(self, xp, layers, weights, last, loss_of=cross_entropy):
        self.layers, self.last, self.loss_of = layers, last, loss_of
        self.weights = [{name: xp.asarray(a) for name, a in p.items()} for p in weights]
        self.gradients = [{n: xp.zeros_like(a) for n, a in p.items()} for p in self.weights]
        self.kept = {}

    def forward(self, xp, micro, x, targets, scale):
        """The output, or after the last layer the loss."""
        y, kept = forward(xp, self.layers, self.weights, x)
        loss = 0.0
        if self.last:
            loss, y = self.loss_of(xp, y, targets, scale)
        self.kept[micro] = kept, y if self.last else None
        return y, loss

    def backward(self, xp, micro, d):
        kept, of_loss = self.kept.pop(micro)
        d = of_loss if self.last else d
        for layer, p, sums in zip(self.layers[::-1], self.weights[::-1], self.gradients[::-1]):
            d, gradients = layer.backward(xp, p, kept.pop(), d)
            for name, gradient in gradients.items():
                sums[name] += gradient
        return d


def run_step(comm, schedule, pieces, x, y, scale, args):
    """Fill the gradients; return this rank's part of the loss, and each slot's begin and end."""
    rows = [part_of(len(x), micro, args.micro) for micro in range(args.micro)]
    clock = np.full((len(schedule.slots), 2), np.nan)
    waiting, loss = {}, 0.0

    def room(action):
        count = rows[action.micro].stop - rows[action.micro].start
        return comm.empty((count, args.context, args.width), args.dtype)

    comm.synchronize()
    for slot, row in enumerate(schedule.slots):
        action, made = row[comm.rank], None
        if action:
            with comm.compute() as xp:
                clock[slot, 0] = time.perf_counter()
                piece, mine = pieces[action.piece], rows[action.micro]
                arrived = waiting.pop(action, None)
                if action.forward:
                    data = xp.asarray(x[mine]) if arrived is None else arrived
                    targets = xp.asarray(y[mine])
                    made, part = piece.forward(xp, action.micro, data, targets, scale)
                    loss = loss + part
                else:
                    made = piece.backward(xp, action.micro, arrived)
            comm.synchronize()  # for the clock only
            clock[slot, 1] = time.perf_counter()
        waiting |= exchange(comm, schedule, slot, made, room)
    return loss, clock


def train(comm, text, args):
    if args.batch < args.micro:
        raise SystemExit(f"a batch of {args.batch} rows makes no {args.micro} micro-batches")
    schedule = schedule_of(args, comm.nranks)
    layers, weights = build(training.size_of(args)), training.starting_weights(args)
    if schedule.npieces > len(layers):
        raise SystemExit(f"{len(layers)} layers make no {schedule.npieces} pieces; add --layers")
    cuts = [part_of(len(layers), piece, schedule.npieces) for piece in range(schedule.npieces)]
    with comm.compute() as xp:
        pieces = {
            number: Piece(xp, layers[cut], weights[cut], last=number == schedule.npieces - 1)
            for number, cut in enumerate(cuts)
            if schedule.stage_of(number) == comm.rank
        }
        flat = [array for p in pieces.values() for array in listed(p.layers, p.weights)]
        sums = [array for p in pieces.values() for array in listed(p.layers, p.gradients)]
        optimizer = AdamW(xp, flat)

    losses, clocks = [], []
    for x, y in training.batches(comm, text, args):
        loss, clock = run_step(comm, schedule, pieces, x, y, 1 / x.size, args)
        with comm.compute() as xp:
            optimizer.step(xp, flat, sums)
            for array in sums:
                array[...] = 0
        losses.append(loss)
        clocks.append(clock)

    training.check_traffic(comm, args, formula(comm, args, schedule))
    show_bubble(comm, schedule, np.array(clocks), args)
    owners = [schedule.stage_of(number) for number, cut in enumerate(cuts) for _ in layers[cut]]
    held = {}
    for number, piece in pieces.items():
        held.update(enumerate(piece.weights, cuts[number].start))
    return training.total_losses(comm, losses), training.collected(comm, held, owners, args)


def formula(comm, args, schedule):
    """Calls and bytes of each operation in a step."""
    borders = 0
    if comm.nranks > 1:
        mine = range(comm.rank, schedule.npieces, comm.nranks)
        borders = sum((piece > 0) + (piece + 1 < schedule.npieces) for piece in mine)
    activations = args.batch * args.context * args.width * np.dtype(args.dtype).itemsize
    return {"send": (borders * args.micro, borders * activations)}


def show_bubble(comm, schedule, clocks, args):
    """Compare the part of the time that stages were idle, in the quickest step, with theory."""
    room = comm.empty((comm.nranks, *clocks.shape), np.float64)
    everyones = comm.allgather(comm.asarray(clocks), room).get()
    everyones -= np.nanmin(everyones, axis=(0, 2, 3), keepdims=True)
    lasted = np.nanmax(everyones, axis=(0, 2, 3))
    quickest = everyones[:, lasted.argmin()]
    busy = np.nansum(quickest[..., 1] - quickest[..., 0])
    if comm.rank == 0:
        print(
            f"bubble: {schedule.idle(backward=2):.0%} by theory, "
            f"{1 - busy / comm.nranks / lasted.min():.0%} in the quickest step; rank 0 keeps at "
            f"most {schedule.most_kept(0)} micro-batches' activations"
        )
        if args.timeline:
            draw(args.timeline, schedule, quickest)


def draw(file, schedule, clock):
    """The quickest step, and below it what theory makes of it with the mean times of a pass."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, axes = pyplot.subplots(2, 1, figsize=(9, 4.4), sharex=True, layout="constrained")
    forward = np.array([[bool(a and a.forward) for a in row] for row in schedule.slots]).T
    took = clock[..., 1] - clock[..., 0]
    mean = {True: np.nanmean(took[forward]), False: np.nanmean(took[~forward])}
    theory = schedule.times(mean[True], mean[False])
    for panel, times, title in (axes[0], clock, "measured"), (axes[1], theory, "theory"):
        for stage, slot in zip(*np.nonzero(~np.isnan(times[..., 0]))):
            action = schedule.slots[slot][stage]
            start, end = 1e3 * times[stage, slot]
            color = "#4c78a8" if action.forward else "#e8a33d"
            panel.barh(stage, end - start, left=start, color=color, edgecolor="white")
            if end - start > 15 * np.nanmax(clock):  # wide enough for a number
                place = (start + end) / 2, stage
                panel.text(*place, action.micro, ha="center", va="center", size=7)
        lasts = np.nanmax(times)
        idle = 1 - np.nansum(times[..., 1] - times[..., 0]) / len(times) / lasts
        panel.set_title(f"{title}: {1e3 * lasts:.1f} ms, idle {idle:.0%}", loc="left", size=10)
        panel.set(yticks=range(len(times)), ylabel="stage")
        panel.invert_yaxis()
        panel.spines[["top", "right"]].set_visible(False)
    axes[1].set_xlabel("time (ms); the numbers are those of the micro-batches")
    passes = [Patch(color="#4c78a8", label="forward"), Patch(color="#e8a33d", label="backward")]
    figure.legend(handles=passes, loc="outside right upper", frameon=False)
    figure.savefig(file, dpi=150)
    print(f"drawn: {file}")


if __name__ == "__main__":
    parser = training.options("pipeline parallel")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "interleaved"), default="1f1b")
    parser.add_argument("--micro", type=int, default=8, help="micro-batches in a batch")
    parser.add_argument("--pieces", type=int, default=2, help="on each rank, if interleaved")
    parser.add_argument("--timeline", metavar="FILE.png", help="draw what each stage did when")
    parser.set_defaults(layers=4, batch=24)
    training.run("pipeline parallel", train, parser.parse_args())
