r"""One process, several GPUs: data parallel training without MPI ranks.

    process      GPU 0   rows 0..2   \
                 GPU 1   rows 3..5    \   one thread calls for all GPUs; the calls of an
                 GPU 2   rows 6..8    /   all-reduce are a group, since each waits for the others
                 GPU 3   rows 9..11  /

``init_all`` makes a communicator for each GPU. A thread that called the first one's all-reduce
outside of a group could wait for the second's, which it has not called yet: inside a group, all are
begun together. Each GPU computes its rows' gradients, which are summed; all take the same step.

Communication of a step, for P bytes of parameters on n GPUs: each sends 2 (n-1)/n P, in one
all-reduce.

Run: python examples/single_process.py --gpus 4
"""

import training
from text import batch, library_sources
from tqdm import tqdm
from transformer import AdamW, build, forward_backward, listed

import pynccl
from pynccl.parallel import CountedCommunicator, FlatLayout, part_of


class Replica:
    """The model on one GPU."""

    def __init__(self, comm, args):
        self.comm, self.layers = comm, build(training.size_of(args))
        whole = training.starting_weights(args)
        shapes = {f"{i}.{name}": a.shape for i, p in enumerate(whole) for name, a in p.items()}
        self.layout = FlatLayout(shapes, 1)
        self.gradients = comm.empty(self.layout.padded, args.dtype)
        with comm.compute() as xp:
            self.weights = [{name: xp.asarray(a) for name, a in p.items()} for p in whole]
            self.flat = listed(self.layers, self.weights)
            self.optimizer = AdamW(xp, self.flat)

    def backward(self, x, y, scale):
        """Leave the gradients of these rows; return their part of the loss."""
        with self.comm.compute() as xp:
            loss, gradients = forward_backward(
                xp, self.layers, self.weights, xp.asarray(x), xp.asarray(y), scale
            )
            named = {f"{i}.{name}": a for i, g in enumerate(gradients) for name, a in g.items()}
            self.layout.pack(named, xp.asarray(self.gradients))
        return loss

    def step(self):
        with self.comm.compute() as xp:
            views = self.layout.views(xp.asarray(self.gradients))
            self.optimizer.step(xp, self.flat, list(views.values()))


def train(comms, text, args):
    replicas = [Replica(comm, args) for comm in comms]
    losses = []
    for step in tqdm(range(args.steps), "steps"):
        x, y = batch(text, step, args.seed, args.batch, args.context)
        parts = []
        for replica in replicas:
            rows = part_of(args.batch, replica.comm.rank, len(comms))
            parts.append(replica.backward(x[rows], y[rows], 1 / x.size))
        with pynccl.group():
            for replica in replicas:
                replica.comm.allreduce(replica.gradients)
        for replica in replicas:
            replica.step()
        losses.append(sum(float(part) for part in parts))
    return losses, replicas


def main(args):
    comms = [CountedCommunicator(one) for one in pynccl.Communicator.init_all(args.gpus)]
    losses, replicas = train(comms, library_sources(), args)
    n, size = len(comms), replicas[0].gradients.nbytes
    training.check_traffic(comms[0], args, {"allreduce": (1, 2 * (n - 1) / n * size)})
    alone = training.train_alone(comms[0], library_sources(), args)
    for replica in replicas:
        with replica.comm.compute():
            weights = [
                {name: training.to_host(a) for name, a in p.items()} for p in replica.weights
            ]
        training.check_equal(args, losses, weights, alone)
    if args.plot:
        training.plot(args.plot, losses, alone[0], "several GPUs, one process")
    if args.save:
        training.save(args.save, weights)
    for comm in comms:
        comm.destroy()


if __name__ == "__main__":
    parser = training.options("data parallel, in one process")
    parser.add_argument("--gpus", type=int, help="how many; all that there are if not said")
    main(parser.parse_args())
