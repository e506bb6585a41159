"""A tour of the operations: what each rank holds before and after, checked on every rank.

    all-reduce       every rank gets the sum          all-gather      every rank gets all parts
    reduce           one rank gets the sum            gather          one rank gets all parts
    reduce-scatter   each rank gets a part of it      scatter         each rank gets one's part
    broadcast        every rank gets one's array      all-to-all      each rank sends each a part
    send, receive, sendrecv between two ranks         split           smaller communicators

Run: mpirun -n 4 python -m mpi4py examples/collectives.py
"""

import numpy as np
from mpi4py import MPI

import pynccl


def numbers(rank, count):
    """What a rank starts with: 10, 11, 12 on rank 1."""
    return np.arange(count, dtype=np.float32) + 10 * rank


def show(world, operation, before, after, expected):
    """Check this rank's result, and print all ranks' in order. MPI collects the lines."""
    assert np.array_equal(after, expected), f"{operation}: {after} is not {expected}"
    lines = world.gather(f"  rank {world.rank}: {text(before)} -> {text(after)}")
    if world.rank == 0:
        print(operation, *lines, sep="\n", flush=True)


def text(values):
    return "-" if values is None else " ".join(f"{value:g}" for value in values)


def all_reduce(comm, world):
    x = comm.asarray(numbers(comm.rank, 3))
    before = x.get()
    comm.allreduce(x, op=pynccl.SUM)
    show(world, "all-reduce", before, x.get(), sum(numbers(r, 3) for r in range(comm.nranks)))


def reduce(comm, world):
    x = comm.asarray(numbers(comm.rank, 3))
    largest = comm.asarray(np.zeros(3, np.float32))
    comm.reduce(x, largest, op=pynccl.MAX, root=0)
    expected = numbers(comm.nranks - 1, 3) if comm.rank == 0 else np.zeros(3)
    show(world, "reduce (the largest, to rank 0)", x.get(), largest.get(), expected)


def broadcast(comm, world):
    x = comm.asarray(numbers(comm.rank, 3))
    before = x.get()
    comm.broadcast(x, root=0)
    show(world, "broadcast from rank 0", before, x.get(), numbers(0, 3))


def all_gather(comm, world):
    part, whole = comm.asarray(numbers(comm.rank, 2)), comm.empty(2 * comm.nranks)
    comm.allgather(part, whole)
    expected = np.concatenate([numbers(r, 2) for r in range(comm.nranks)])
    show(world, "all-gather", part.get(), whole.get(), expected)


def reduce_scatter(comm, world):
    whole, part = comm.asarray(numbers(comm.rank, 2 * comm.nranks)), comm.empty(2)
    comm.reduce_scatter(whole, part, op=pynccl.SUM)
    total = sum(numbers(r, 2 * comm.nranks) for r in range(comm.nranks))
    show(world, "reduce-scatter", whole.get(), part.get(), total[2 * comm.rank :][:2])


def scatter(comm, world):
    whole = comm.asarray(numbers(0, 2 * comm.nranks)) if comm.rank == 0 else None
    part = comm.scatter(whole, comm.empty(2), root=0)
    expected = numbers(0, 2 * comm.nranks)[2 * comm.rank :][:2]
    show(world, "scatter from rank 0", whole and whole.get(), part.get(), expected)


def gather(comm, world):
    part = comm.asarray(numbers(comm.rank, 2))
    whole = comm.empty(2 * comm.nranks) if comm.rank == 0 else None
    comm.gather(part, whole, root=0)
    if comm.rank == 0:
        after, expected = whole.get(), np.concatenate([numbers(r, 2) for r in range(comm.nranks)])
    else:
        after, expected = part.get(), numbers(comm.rank, 2)
    show(world, "gather to rank 0 (the others keep theirs)", part.get(), after, expected)


def all_to_all(comm, world):
    send, recv = comm.asarray(numbers(comm.rank, comm.nranks)), comm.empty(comm.nranks)
    comm.alltoall(send, recv)
    expected = [numbers(r, comm.nranks)[comm.rank] for r in range(comm.nranks)]
    show(world, "all-to-all", send.get(), recv.get(), expected)


def send_and_receive(comm, world):
    """The last rank's array travels to rank 0; one rank alone sends to itself, in a group."""
    x, y = comm.asarray(numbers(comm.rank, 2)), comm.asarray(numbers(comm.rank, 2))
    last = comm.nranks - 1
    with pynccl.group():
        if comm.rank == last:
            comm.send(x, peer=0)
        if comm.rank == 0:
            comm.recv(y, peer=last)
    expected = numbers(last if comm.rank == 0 else comm.rank, 2)
    show(world, f"send from rank {last}, receive on rank 0", x.get(), y.get(), expected)


def shift(comm, world):
    right, left = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    send, recv = comm.asarray(numbers(comm.rank, 2)), comm.empty(2)
    comm.sendrecv(send, right, recv, left)
    show(world, "sendrecv around a ring", send.get(), recv.get(), numbers(left, 2))


def split(comm, world):
    with comm.split(color=comm.rank % 2, key=comm.rank) as half:
        x = comm.asarray(numbers(comm.rank, 2))
        before = x.get()
        half.allreduce(x)
        expected = sum(numbers(r, 2) for r in range(comm.rank % 2, comm.nranks, 2))
        show(world, "split into even and odd ranks, all-reduce in each", before, x.get(), expected)


TOUR = [
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    reduce_scatter,
    scatter,
    gather,
    all_to_all,
    send_and_receive,
    shift,
    split,
]


def main(world):
    with pynccl.Communicator.from_mpi(world) as comm:
        for stop in TOUR:
            stop(comm, world)
        if comm.rank == 0:
            print(f"{len(TOUR)} operations on {comm.nranks} ranks: all as expected")


if __name__ == "__main__":
    main(MPI.COMM_WORLD)
