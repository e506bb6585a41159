"""A rank of benchmarks/collectives.py: the collectives of one library, timed when it is asked to.

A library's class makes the calls: ``call(operation, send, recv)`` returns what starts an operation
on the arrays and waits for its end, or None where the library has no such operation; ``result``
returns what arrived. Arguments: the library, and the socket to answer on.
"""

import contextlib
import shutil
import sys
import tempfile
import time

import ml_dtypes
import numpy as np
from mpi4py import MPI
from rank_jobs import serve

TYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def lengths(operation, count, nranks):
    """Elements sent and received by a rank where the larger of both has ``count``."""
    part = count // nranks
    return {
        "allgather": (part, part * nranks),
        "reduce_scatter": (part * nranks, part),
        "alltoall": (part * nranks, part * nranks),
    }.get(operation, (count, count))


def expected(operation, received, rank, nranks):
    """What a rank receives where every rank sends its number, from 1 on."""
    if operation in ("allgather", "alltoall"):
        return np.repeat(np.arange(1, nranks + 1), received // nranks)
    value = {"broadcast": 1, "sendrecv": (rank - 1) % nranks + 1}
    return np.full(received, value.get(operation, nranks * (nranks + 1) // 2))


class Pynccl:
    def __init__(self, world, resources):
        import pynccl

        self.comm = resources.enter_context(pynccl.Communicator.from_mpi(world))

    def call(self, operation, send, recv):
        comm = self.comm
        source, self.array = comm.asarray(send), comm.asarray(recv)
        arguments = source, self.array
        if operation == "sendrecv":
            after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
            arguments = source, after, self.array, before
        if operation == "broadcast":  # in place, as MPI has it
            self.array = source
            arguments = (source,)
        method = getattr(comm, operation)

        def call():
            method(*arguments)
            comm.synchronize()

        return call

    def result(self, recv):
        return self.array.get()


class Mpi:
    def __init__(self, world, resources):
        self.world = world

    def call(self, operation, send, recv):
        world = self.world
        if send.dtype != np.float32:  # which MPI has no type of: it can move it, not add it
            if operation in ("allreduce", "reduce_scatter"):
                return None
            send, recv = send.view(np.uint16), recv.view(np.uint16)
        after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        if operation == "broadcast":
            recv[:] = send
        return {
            "allreduce": lambda: world.Allreduce(send, recv),
            "allgather": lambda: world.Allgather(send, recv),
            "reduce_scatter": lambda: world.Reduce_scatter_block(send, recv),
            "broadcast": lambda: world.Bcast(recv, root=0),
            "alltoall": lambda: world.Alltoall(send, recv),
            "sendrecv": lambda: world.Sendrecv(send, after, recvbuf=recv, source=before),
        }[operation]

    def result(self, recv):
        return recv


class Gloo:
    def __init__(self, world, resources):
        import torch
        from torch import distributed

        self.torch, self.distributed = torch, distributed
        folder = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=world.rank, world_size=world.size
        )
        resources.callback(distributed.destroy_process_group)
        world.Barrier()
        if world.rank == 0:
            shutil.rmtree(folder)

    def tensor(self, array):
        if array.dtype == np.float32:
            return self.torch.from_numpy(array)
        return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)

    def call(self, operation, send, recv):
        distributed = self.distributed
        rank, size = distributed.get_rank(), distributed.get_world_size()
        if operation in ("allreduce", "broadcast"):  # which it does in place
            recv[:] = send
        send, recv = self.tensor(send), self.tensor(recv)
        # The name of PyTorch 2.13 on, else the one before.
        gather = getattr(distributed, "all_gather_single", None)
        gather = gather or distributed.all_gather_into_tensor

        def exchange():
            sent = distributed.isend(send, (rank + 1) % size)
            distributed.recv(recv, (rank - 1) % size)
            sent.wait()

        return {
            "allreduce": lambda: distributed.all_reduce(recv),
            "allgather": lambda: gather(recv, send),
            "broadcast": lambda: distributed.broadcast(recv, 0),
            "sendrecv": exchange,
        }.get(operation)

    def result(self, recv):
        return recv


class Copy:
    """A copy within each rank's memory of as many bytes as the larger of both arrays has."""

    def __init__(self, world, resources):
        pass

    def call(self, operation, send, recv):
        source = max(send, recv, key=len).copy()
        target = np.zeros_like(source)
        return lambda: np.copyto(target, source)

    def result(self, recv):
        return None


LIBRARIES = {"pynccl": Pynccl, "mpi": Mpi, "gloo": Gloo, "copy": Copy}


class Rank:
    """Answers requests: to prepare an operation, and to time it."""

    def __init__(self, world, library):
        self.world, self.library, self.run = world, library, None

    def answer(self, request):
        if "calls" in request:
            return self.seconds(request["calls"])
        return self.prepare(**request)

    def prepare(self, operation, type, bytes):
        """Whether the library has the operation. It is run once, and its result looked at."""
        self.run = None  # gives the arrays before back
        dtype, world = TYPES[type], self.world
        sent, received = lengths(operation, bytes // dtype.itemsize, world.size)
        send, recv = np.full(sent, world.rank + 1, dtype), np.zeros(received, dtype)
        self.run = self.library.call(operation, send, recv)
        if self.run is None:
            return False
        self.run()
        result = self.library.result(recv)
        if result is not None:
            wanted = expected(operation, received, world.rank, world.size)
            assert np.array_equal(result, wanted.astype(dtype)), f"{operation}: {result}"
        return True

    def seconds(self, calls):
        """What a call takes this rank, over so many after one that is not timed."""
        self.world.Barrier()
        self.run()
        self.world.Barrier()
        start = time.perf_counter()
        for _ in range(calls):
            self.run()
        return (time.perf_counter() - start) / calls


def main(name, address):
    world = MPI.COMM_WORLD
    with contextlib.ExitStack() as resources:
        rank = Rank(world, LIBRARIES[name](world, resources))
        serve(address, world.rank, rank.answer)
        rank.run = None


if __name__ == "__main__":
    main(*sys.argv[1:])
