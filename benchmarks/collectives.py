"""Collectives of pynccl beside those of MPI, and of gloo where PyTorch is installed.

The same ranks, arrays and sizes, in turns, so that all see the same machine. A time is that of the
slowest rank; the table has medians. pynccl is waited for in two ways: by ``comm.synchronize``, and
by the driver's ``cuStreamSynchronize``, in the second column. "copy" is the time of copying as many
bytes within a rank's memory once, while the other ranks do so too.

Run: mpirun -n 4 python -m mpi4py benchmarks/collectives.py
"""

import argparse
import shutil
import tempfile
import time

import ml_dtypes
import numpy as np
from cuda.bindings import driver
from machine import machine
from mpi4py import MPI

import pynccl

OPERATIONS = ("allreduce", "allgather", "reduce_scatter", "broadcast", "alltoall", "sendrecv")
TYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
SIZES = tuple(kib << 10 for kib in (1, 8, 64, 256, 1024, 4096, 16384, 65536))
TRAFFIC = 16 << 20  # bytes that one timing moves, at most 50 calls


def lengths(operation, count, nranks):
    """Elements sent and received by a rank where the larger of both has ``count``."""
    part = count // nranks
    return {
        "allgather": (part, part * nranks),
        "reduce_scatter": (part * nranks, part),
        "alltoall": (part * nranks, part * nranks),
    }.get(operation, (count, count))


def with_pynccl(comm, operation, send, recv):
    after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    if operation == "sendrecv":
        return lambda: comm.sendrecv(send, after, recv, before)
    method = getattr(comm, operation)
    return lambda: method(send, recv)


def with_mpi(world, operation, send, recv):
    """MPI's call; None where MPI has no such type to reduce."""
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    if send.dtype != np.float32:
        if operation in ("allreduce", "reduce_scatter"):
            return None
        send, recv = send.view(np.uint16), recv.view(np.uint16)
    if operation == "broadcast":
        return lambda: world.Bcast(recv, root=0)
    return {
        "allreduce": lambda: world.Allreduce(send, recv),
        "allgather": lambda: world.Allgather(send, recv),
        "reduce_scatter": lambda: world.Reduce_scatter_block(send, recv),
        "alltoall": lambda: world.Alltoall(send, recv),
        "sendrecv": lambda: world.Sendrecv(send, after, recvbuf=recv, source=before),
    }[operation]


def with_gloo(gloo, operation, send, recv):
    """gloo's call; None without PyTorch, or where gloo has no such operation."""
    if gloo is None or operation in ("reduce_scatter", "alltoall"):
        return None
    torch, distributed = gloo
    if send.dtype != np.float32:
        send, recv = (torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) for a in (send, recv))
    else:
        send, recv = torch.from_numpy(send), torch.from_numpy(recv)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    # The name of PyTorch 2.13 on, else the one before.
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor

    def exchange():
        sent = distributed.isend(send, (rank + 1) % size)
        distributed.recv(recv, (rank - 1) % size)
        sent.wait()

    return {
        "allreduce": lambda: distributed.all_reduce(recv),
        "allgather": lambda: gather(recv, send),
        "broadcast": lambda: distributed.broadcast(recv, 0),
        "sendrecv": exchange,
    }[operation]


def start_gloo(world):
    """PyTorch with a gloo group of all ranks, over a file; None without PyTorch."""
    try:
        import torch
        from torch import distributed
    except ImportError:
        return None
    folder = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=world.rank, world_size=world.size
    )
    world.Barrier()
    if world.rank == 0:
        shutil.rmtree(folder)
    return torch, distributed


def seconds(world, call, calls):
    """Seconds that a call takes on the slowest rank."""
    world.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return world.allreduce((time.perf_counter() - start) / calls, MPI.MAX)


def waited(call, wait):
    def both():
        call()
        wait()

    return both


def measure(comm, world, gloo, operation, dtype, nbytes, repetitions):
    """Medians of the seconds of every way, by its name."""
    sent, received = lengths(operation, nbytes // dtype.itemsize, comm.nranks)
    host = np.full(sent, comm.rank + 1, dtype)
    host_result = host.copy() if operation == "broadcast" else np.zeros(received, dtype)
    copy_from, copy_to = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    array, result = comm.asarray(host), comm.empty(received, dtype.name)
    call = with_pynccl(comm, operation, array, result)
    table = {
        "pynccl": waited(call, comm.synchronize),
        "driver": waited(call, lambda: driver.cuStreamSynchronize(0)),
        "mpi": with_mpi(world, operation, host, host_result),
        "gloo": with_gloo(gloo, operation, host, host_result),
        "copy": lambda: np.copyto(copy_to, copy_from),
    }
    table = {name: way for name, way in table.items() if way is not None}
    calls = max(2, min(50, TRAFFIC // nbytes))
    for name, way in table.items():  # the first touch of the memory is not measured
        seconds(world, way, 1)
        if name == "mpi":
            assert np.array_equal(result.get(), host_result), f"{operation}: results differ"
    times = {name: [] for name in table}
    for _ in range(repetitions):
        for name, way in table.items():
            times[name].append(seconds(world, way, calls))
    return {name: float(np.median(values)) for name, values in times.items()}


def show(operation, name, nbytes, times):
    ours = times["pynccl"]
    cells = "".join(
        f"{times[key] * 1e6:11.1f}" if key in times else f"{'-':>11}"
        for key in ("pynccl", "driver", "mpi", "gloo", "copy")
    )
    ratios = "".join(
        f"{ours / times[key]:8.2f}" if key in times else f"{'-':>8}"
        for key in ("mpi", "gloo", "copy")
    )
    print(f"{operation:15}{name:9}{nbytes:10d}{cells}{ratios}", flush=True)


def main(world, args):
    gloo = start_gloo(world)
    with pynccl.Communicator.from_mpi(world) as comm:
        if comm.rank == 0:
            mpi = MPI.Get_library_version().split(",")[0]
            print(f"{comm.nranks} ranks, {machine()}, {mpi}, gloo {'yes' if gloo else 'absent'}")
            print(f"{'':34}{'time of a call, us':^55}{'pynccl beside':^24}")
            print(
                f"{'operation':15}{'type':9}{'bytes':>10}{'pynccl':>11}{'driver':>11}{'MPI':>11}"
                f"{'gloo':>11}{'copy':>11}{'MPI':>8}{'gloo':>8}{'copy':>8}"
            )
        sizes = [nbytes for nbytes in SIZES if nbytes <= args.largest]
        for operation in args.operation or OPERATIONS:
            for name in args.type or TYPES:
                dtype = TYPES[name]
                for nbytes in sizes:
                    times = measure(comm, world, gloo, operation, dtype, nbytes, args.repetitions)
                    if comm.rank == 0:
                        show(operation, name, nbytes, times)
    if gloo:
        gloo[1].destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Collectives of pynccl beside those of MPI.")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--largest", type=int, default=64 << 20, help="bytes")
    parser.add_argument("--operation", action="append", choices=OPERATIONS)
    parser.add_argument("--type", action="append", choices=tuple(TYPES))
    main(MPI.COMM_WORLD, parser.parse_args())
