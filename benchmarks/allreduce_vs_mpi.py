"""An all-reduce of the emulator beside one of MPI, on the same host, ranks and sizes.

The two alternate within one run, so that both see the same machine. A time is that of the slowest
rank; the table shows the medians of the repetitions.

Run: mpirun -n 4 python -m mpi4py benchmarks/allreduce_vs_mpi.py
"""

import argparse
import os
import platform
import time

import numpy as np
from mpi4py import MPI

import pynccl
import pynccl.library

SIZES = [1024 * 4**power for power in range(9)]  # bytes, to 64 MiB


def seconds(world, operation, calls):
    """Seconds a call takes on the slowest rank."""
    world.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        operation()
    return world.allreduce((time.perf_counter() - start) / calls, MPI.MAX)


def measure(comm, world, nbytes, repetitions):
    """Medians of pynccl's and of MPI's seconds for an array of so many bytes."""
    host = np.full(nbytes // 4, comm.rank + 1, np.float32)
    host_sum = np.empty_like(host)
    array = comm.asarray(host)
    array_sum = comm.empty(array.shape)

    def with_pynccl():
        comm.allreduce(array, array_sum)
        comm.synchronize()

    def with_mpi():
        world.Allreduce(host, host_sum)

    calls = max(1, min(100, 4 * 1024**2 // nbytes))
    for operation in (with_pynccl, with_mpi):  # the first touch of the memory is not measured
        operation()
    times = [
        (seconds(world, with_pynccl, calls), seconds(world, with_mpi, calls))
        for _ in range(repetitions)
    ]
    assert np.array_equal(array_sum.get(), host_sum), "the two sums differ"
    return np.median(times, axis=0)


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main(world, args):
    with pynccl.Communicator.from_mpi(world) as comm:
        if comm.rank == 0:
            print(
                f"{comm.nranks} ranks, {len(os.sched_getaffinity(0))} cores, {processor()}, "
                f"backend {pynccl.library.backend()}, {MPI.Get_library_version().split(',')[0]}, "
                f"Python {platform.python_version()}, numpy {np.__version__}"
            )
            print(f"float32, sum; median of {args.repetitions}")
            print(f"{'bytes':>10} {'pynccl us':>12} {'MPI us':>12} {'pynccl/MPI':>11}")
        for nbytes in SIZES:
            ours, theirs = measure(comm, world, nbytes, args.repetitions)
            if comm.rank == 0:
                row = f"{nbytes:10d} {ours * 1e6:12.1f} {theirs * 1e6:12.1f} {ours / theirs:11.2f}"
                print(row, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An all-reduce of pynccl beside one of MPI.")
    parser.add_argument("--repetitions", type=int, default=11)
    main(MPI.COMM_WORLD, parser.parse_args())
