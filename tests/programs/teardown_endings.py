"""Ends a rank in the way that is named, after some work: what tests/test_teardown.py starts.

Run: mpirun -n 3 python -m mpi4py tests/programs/teardown_endings.py NAME
"""

import atexit
import gc
import os
import signal
import sys
import time
import warnings

import numpy
from mpi4py import MPI

import pynccl

LAST = MPI.COMM_WORLD.size - 1


def live_communicators(comm, x):
    parts = [comm.split(0) for _ in range(2)]
    parts[1].allreduce(x)


def mpi_finalized_first(comm, x):
    comm.allreduce(x)
    MPI.Finalize()


def child_that_exits(comm, x):
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    comm.allreduce(x)
    comm.destroy()


def child_that_runs_exit_functions(comm, x):
    child = os.fork()
    if child == 0:
        # As sys.exit does, but for MPI's finalization, which waits for ever in a child.
        atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    MPI.COMM_WORLD.Barrier()
    time.sleep(0.5 * (comm.rank == 0))  # long enough for the others to look what became of it
    comm.allreduce(x)  # the parent's communicator is as it was
    comm.synchronize(timeout=20)
    comm.destroy()


def child_that_communicates(comm, x):
    child = os.fork()
    if child == 0:
        try:
            comm.allreduce(x)
            comm.synchronize(timeout=5)
        except pynccl.NCCLError as error:
            print(f"refused: {error}", flush=True)
            os._exit(0)
        os._exit(9)
    assert os.waitpid(child, 0)[1] == 0
    comm.allreduce(x)
    comm.destroy()


def exception_in_a_group(comm, x):
    try:
        with pynccl.group():
            comm.allreduce(x)
            raise ValueError("mine")
    except ValueError:
        pass
    comm.allreduce(x)
    comm.destroy()


def collected_with_work_in_flight(comm, x):
    warnings.simplefilter("ignore", ResourceWarning)
    part = comm.split(0)
    for _ in range(20):
        part.allreduce(x)
    del part
    gc.collect()
    comm.synchronize()


def destroyed_twice(comm, x):
    comm.allreduce(x)
    comm.destroy()
    comm.destroy()
    comm.abort()


def destroyed_on_one_rank(comm, x):
    if comm.rank == 0:
        comm.destroy()
        return
    comm.allreduce(x)
    try:
        comm.synchronize(timeout=20)
    except pynccl.NCCLRemoteError:
        comm.abort()
    else:
        raise AssertionError("nobody told")


def sys_exit_on_one_rank(comm, x):
    if comm.rank == LAST:
        sys.exit(0)
    comm.allreduce(x)


def sys_exit_with_a_status(comm, x):
    if comm.rank == LAST:
        sys.exit(3)
    comm.allreduce(x)
    comm.synchronize()


def os_exit_on_one_rank(comm, x):
    if comm.rank == LAST:
        os._exit(3)
    comm.allreduce(x)
    comm.synchronize()


def exception_on_one_rank(comm, x):
    if comm.rank == LAST:
        raise RuntimeError("this rank cannot go on")
    comm.allreduce(x)
    comm.synchronize()


def sigterm_to_one_rank(comm, x):
    if comm.rank == LAST:
        os.kill(os.getpid(), signal.SIGTERM)
    comm.allreduce(x)
    comm.synchronize()


def sigterm_handled_by_exit(comm, x):
    if comm.rank == LAST:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    comm.allreduce(x)
    comm.synchronize()


if __name__ == "__main__":
    comm = pynccl.Communicator.from_mpi(MPI.COMM_WORLD)
    x = comm.asarray(numpy.ones(1000))
    comm.allreduce(x)
    comm.synchronize()
    globals()[sys.argv[1]](comm, x)
