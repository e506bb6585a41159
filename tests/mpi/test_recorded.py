"""What the flight recorders of several ranks have in common."""

import time
from sys import _getframe

import numpy as np
import pytest
from mpi4py import MPI

import pynccl
from pynccl import recorder
from pynccl.mpi import Comm, Request


def test_communicator_has_one_identity_on_all_ranks(world, comm):
    parts = [comm.split(comm.rank % 2), comm.split(0), comm.split(0)]
    names = [one._log.identity for one in (comm, *parts)]
    assert len(set(names)) == 4 and all(names)
    everyone = world.allgather(names)
    assert all(theirs[0] == names[0] and theirs[2:] == names[2:] for theirs in everyone)
    for rank, theirs in enumerate(everyone):
        assert (theirs[1] == names[1]) == (rank % 2 == comm.rank % 2)
    for part in parts:
        part.destroy()


def test_rank_and_size_of_a_split_are_known(comm):
    part = comm.split(0, key=-comm.rank)
    assert (part._log.rank, part._log.nranks) == (comm.nranks - 1 - comm.rank, comm.nranks)
    part.destroy()


def test_send_and_its_receive_have_one_ordinal(world, comm):
    if comm.nranks < 2:
        pytest.skip("needs two ranks")
    array = comm.asarray(np.arange(5, dtype="int32"))
    for _ in range(3):
        if comm.rank == 0:
            comm.send(array, 1)
        elif comm.rank == 1:
            comm.recv(array, 0)
    comm.synchronize()
    mine = [one.ordinal for one in comm._log.operations(3)] if comm.rank < 2 else None
    assert world.bcast(mine, root=0) == world.bcast(mine, root=1)


def test_uneven_collectives_count_the_same_on_all_ranks(world, comm):
    counts = list(range(comm.nranks))
    mine = comm.asarray(np.ones(comm.rank, "float32"))
    comm.allgatherv(mine, comm.empty(sum(counts)), counts)
    comm.allreduce(comm.empty(1))
    comm.synchronize()
    assert len(set(world.allgather(comm._log.collectives))) == 1


def test_completed_is_what_the_library_has_done(world):
    comm = pynccl.Communicator.from_mpi(world)
    array = comm.asarray(np.ones(4, "float32"))
    for _ in range(3):
        comm.allreduce(array)
    comm.synchronize()
    states = [one.state for one in comm._log.operations()]
    assert states == ["completed"] * 3
    if comm.nranks > 1:
        world.Barrier()
        if comm.rank != 0:
            comm.allreduce(array)  # rank 0 does not come
            given, done = comm._log.progress()
            assert given - done == 1
            assert comm._log.operations(1)[0].state == "not completed"
            assert "not completed" in recorder.report(comm._log).splitlines()[-1]
        world.Barrier()
    comm.abort()
    assert len(comm._log.operations()) == (4 if comm.rank and comm.nranks > 1 else 3)


def test_a_message_is_named_by_the_line_that_began_it_not_by_the_one_that_waits(world):
    comm = Comm(world.Dup())
    array, got = comm.nccl.asarray(np.ones(3)), comm.nccl.empty(3, "float64")
    began = _getframe().f_lineno + 1
    requests = [comm.Irecv(got, MPI.ANY_SOURCE), comm.Isend(array, (comm.rank + 1) % comm.size)]
    time.sleep(0.01)  # for the thread to launch them, where there is one
    Request.Waitall(requests)
    recorded = comm._shared.messages._log.operations()
    comm.Free()
    assert {one.function for one in recorded} == {"ncclSend", "ncclRecv"}
    places = {one.site for one in recorded}
    assert len(places) == 1 and places.pop().endswith(f"{__name__.split('.')[-1]}.py:{began}")
