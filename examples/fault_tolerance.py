"""Training that outlives its ranks: one is killed, and the others finish what they began.

    rank 0   step 1  2  3 .. wait | revoke  shrink  agree on the last good step | 3  4  5 ..
    rank 1   step 1  2  3 .. wait | revoke  shrink  deal the data out anew      | 3  4  5 ..
    rank 2   step 1  2  X
    rank 3   step 1  2  3 .. wait | revoke  shrink  (a spare rank joins: grow)  | 3  4  5 ..

NCCL says that a rank is gone (or does not answer in time), and MPI says which: its communicator
shrinks to the ranks that live. Open MPI does so (ULFM) where mpirun is told to. A rank may have
done a step that others have not; it takes that step back. What is learned does not depend on who
computes it, so the outcome must be that of training alone without any failure. Needs NCCL 2.28.7,
and 2.29.2 for spare ranks.

Run: mpirun --with-ft ulfm -n 4 python -m mpi4py examples/fault_tolerance.py
     mpirun --with-ft ulfm -n 5 python -m mpi4py examples/fault_tolerance.py --spares 1
"""

import argparse
import os
import signal
import sys
import time

import numpy as np
from data_parallel import TRAINING, accuracy, backward, first_weights, load_data, rows_of
from data_parallel import train as train_alone
from mpi4py import MPI

import pynccl

NAME = MPI.COMM_WORLD.rank  # a rank's number at the start, which it keeps


def schedule(args):
    """The first sample of each step's batch, over all epochs."""
    starts = np.arange(0, TRAINING, args.batch)
    rng = np.random.default_rng(args.seed)
    return [int(start) for _ in range(args.epochs) for start in rng.permutation(starts)]


class Worker:
    """A rank that trains: its weights, those of a step before, and how many steps are done."""

    def __init__(self, comm, weights, args):
        self.comm = comm
        self.weights = comm.asarray(weights)
        self.before = comm.asarray(weights)
        self.gradients = comm.empty(weights.shape)
        self.done = 0
        self.args = args

    def train(self, digits, labels):
        """Do the steps that are left, with this rank's share of the samples."""
        rank, nranks = self.comm.rank, self.comm.nranks
        x, y = (self.comm.asarray(all_of[rank::nranks]) for all_of in (digits, labels))
        for step, start in list(enumerate(schedule(self.args)))[self.done :]:
            end = min(start + self.args.batch, TRAINING)
            mine = rows_of(start, end, rank, nranks)
            with self.comm.compute() as xp:
                w, g = xp.asarray(self.weights), xp.asarray(self.gradients)
                for _ in backward(xp, w, g, xp.asarray(x)[mine], xp.asarray(y)[mine]):
                    pass
            if (NAME, step) in self.args.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            self.comm.allreduce(self.gradients)
            self.comm.synchronize()  # raises where a rank is gone
            with self.comm.compute() as xp:
                xp.asarray(self.before)[:] = w
                w[1:] -= self.args.lr / (end - start) * g[1:]
            self.done += 1

    def go_back_to(self, step):
        """Take back the one step that this rank may have done and others have not."""
        if self.done > step:
            with self.comm.compute() as xp:
                xp.asarray(self.weights)[:] = xp.asarray(self.before)
            self.done -= 1
        assert self.done == step, (self.done, step)


# The ranks that train are the first of MPI's communicator and of NCCL's alike; spares come after.


def survivors_of(world, comm):
    """MPI's and NCCL's communicators without the ranks that are gone, and which those were."""
    if comm is not None:
        comm.revoke()  # ends what is under way, and lets those know who wait for this rank
    world.Revoke()
    smaller = world.Shrink()
    places = world.group.Translate_ranks(None, smaller.group)
    gone = [rank for rank, place in enumerate(places) if place == MPI.UNDEFINED]
    if comm is not None:
        trained = [rank for rank in gone if rank < comm.nranks]
        shrunk = comm.shrink(trained) if trained else comm.split(0)
        comm.abort()
        comm = shrunk
    return smaller, comm, gone


def with_spares(world, comm, wanted, device):
    """NCCL's communicator, grown by spare ranks as far as there are any."""
    nranks = min(wanted, world.size)
    if world.bcast(comm.nranks if comm else None) == nranks:
        return comm
    made = comm.get_unique_id() if world.rank == 0 else None
    unique_id = pynccl.UniqueId.from_bytes(world.bcast(bytes(made) if made else None))
    if comm is not None:
        grown = comm.grow(nranks, made)
        comm.destroy()
        return grown
    if world.rank < nranks:
        return pynccl.Communicator.join(nranks, world.rank, unique_id, device=device)
    return None


def go_on(world, worker, comm, args):
    """Agree on the last good step, and give a spare rank that has joined the weights of it."""
    steps = world.allgather(worker.done if worker else None)
    step = min(done for done in steps if done is not None)
    if worker:
        worker.go_back_to(step)
        worker.comm = comm
    elif comm:
        worker = Worker(comm, first_weights(args.seed), args)
        worker.done = step
    if comm and None in steps[: comm.nranks]:
        comm.broadcast(worker.weights)
    return worker, step


def wait_for_all(world):
    """Wait, without keeping a core busy, till all have come; raise where a rank is gone."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


def first_communicator(world, args):
    """NCCL's communicator, None on a spare rank, and this rank's GPU."""
    with pynccl.Communicator.from_mpi(world, timeout=args.timeout) as everyone:
        spare = world.rank >= world.size - args.spares
        return everyone.split(None if spare else 0), everyone.device


def train(world, samples, args):
    """Train till all is done, whoever is lost. The survivors, and their part in it."""
    wanted = world.size - args.spares
    comm, device = first_communicator(world, args)
    worker = Worker(comm, first_weights(args.seed), args) if comm else None
    while True:
        try:
            if worker:
                worker.train(*samples)
            wait_for_all(world)
            return world, worker
        except (pynccl.NCCLError, MPI.Exception) as error:
            started, reason = time.perf_counter(), error
        before = world.size
        world, comm, gone = survivors_of(world, comm)
        if not gone:
            raise reason
        comm = with_spares(world, comm, wanted, device)
        worker, step = go_on(world, worker, comm, args)
        if world.rank == 0:
            took = 1e3 * (time.perf_counter() - started)
            print(f"rank {NAME} was told: {reason}")
            print(f"lost of {before}: rank {', '.join(map(str, gone))}")
            print(f"{comm.nranks} ranks go on after step {step}, {took:.0f} ms later", flush=True)


def check(world, worker, digits, labels, args):
    """Compare the survivors' weights with each other, and with those of training alone."""
    everyones = world.gather(worker.weights.get()[1:].tobytes() if worker else None)
    if world.rank != 0:
        return
    trained = [weights for weights in everyones if weights is not None]
    assert len(set(trained)) == 1, "the ranks have different weights"
    print(f"weights of {len(trained)} ranks are the same, bit for bit")
    comm = worker.comm
    known, test = slice(TRAINING), slice(TRAINING, None)
    right = accuracy(comm, worker.weights, digits[test], labels[test])
    print(f"accuracy on {len(labels[test])} digits not trained on: {right:.1%}")
    alone = comm.asarray(first_weights(args.seed))
    train_alone(comm, alone, comm.asarray(digits[known]), comm.asarray(labels[known]), args)
    difference = np.abs(worker.weights.get() - alone.get())[1:].max()
    print(
        f"weights of these and of one rank alone differ by at most {difference:.1e} "
        f"(allowed: {args.tolerance:.0e})"
    )
    assert difference <= args.tolerance


def victims(world, args):
    """Who dies, and in which step: as the options say, else one rank that trains, at random."""
    if args.kill is None:
        rng = np.random.default_rng()
        step = int(rng.integers(len(schedule(args))))
        args.kill = [(int(rng.integers(world.size - args.spares)), step)]
    return world.bcast(args.kill)


def main(world, args):
    args.kill = victims(world, args)
    digits, labels = world.bcast(load_data() if world.rank == 0 else None)
    if world.rank == 0 and args.kill:
        who = ", ".join(f"rank {rank} in step {step}" for rank, step in args.kill)
        print(f"to be killed: {who}", flush=True)
    survivors, worker = train(world, (digits[:TRAINING], labels[:TRAINING]), args)
    check(survivors, worker, digits, labels, args)
    wait_for_all(survivors)
    if worker:
        worker.comm.destroy()
    if survivors.size < world.size:
        sys.stdout.flush()
        os._exit(0)  # MPI's finalization may wait for those who are gone


def arguments():
    def victim(text):
        rank, _, step = text.partition("@")
        return int(rank), int(step)

    parser = argparse.ArgumentParser(description="Data parallel training that outlives its ranks.")
    parser.add_argument(
        "--kill", metavar="RANK@STEP", type=victim, nargs="*", help="default: one at random"
    )
    parser.add_argument("--spares", type=int, default=0, help="ranks that wait to take over")
    parser.add_argument("--timeout", type=float, default=30, help="seconds to wait for a rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, of all ranks")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.set_defaults(bucket_bytes=1)
    return parser.parse_args()


if __name__ == "__main__":
    main(MPI.COMM_WORLD, arguments())
