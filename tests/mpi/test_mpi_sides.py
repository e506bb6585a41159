"""pynccl.mpi.Comm where ranks disagree about where their arrays are: an error, not a hang."""

import numpy as np
import pytest
from helpers.ranks import outcomes
from mpi4py import MPI

import pynccl.mpi.messages
from pynccl.mpi import Comm


@pytest.fixture(scope="module")
def gpu(world):
    if world.size == 1:
        pytest.skip("needs 2 ranks or more")
    return Comm(world)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(pynccl.mpi.messages, "GRACE", 0.1)


COLLECTIVES = {
    "Bcast": lambda c, s, r: c.Bcast(s, 0),
    "Allreduce": lambda c, s, r: c.Allreduce(s, r),
    "Allreduce in place": lambda c, s, r: c.Allreduce(MPI.IN_PLACE, r),
    "Reduce": lambda c, s, r: c.Reduce(s, r, root=0),
    "Allgather": lambda c, s, r: c.Allgather(s[:1], r),
    "Gather": lambda c, s, r: c.Gather(s[:1], r if c.rank == 0 else None, 0),
    "Scatter": lambda c, s, r: c.Scatter(s if c.rank == 0 else None, r[:1], 0),
    "Alltoall": lambda c, s, r: c.Alltoall(s, r),
}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("first_on_gpu", [True, False], ids=["gpu_and_host", "host_and_gpu"])
def test_collective_of_arrays_on_both_sides_raises_on_every_rank(gpu, name, first_on_gpu):
    gpu.nccl  # noqa: B018 - made by all ranks
    send, recv = np.ones(gpu.size), np.zeros(gpu.size)
    if (gpu.rank == 0) == first_on_gpu:
        send, recv = gpu.nccl.asarray(send), gpu.nccl.asarray(recv)
    errors = outcomes(gpu, lambda: COLLECTIVES[name](gpu, send, recv))
    others = "rank 1" if gpu.size == 2 else "ranks " + ", ".join(map(str, range(1, gpu.size)))
    there, here = ("rank 0", others) if first_on_gpu else (others, "rank 0")
    text = f"arrays are on GPUs on {there}, and in host memory on {here}: "
    assert all(one and one[0] == "TypeError" and text in one[1] for one in errors), errors
    assert len(set(errors)) == 1


def test_receive_on_a_gpu_of_a_message_from_host_memory_raises(gpu):
    gpu.nccl  # noqa: B018
    array = gpu.nccl.empty(2, "float64")

    def exchange():
        if gpu.rank == 0:
            gpu.Send(np.ones(2), 1, 7)
        if gpu.rank == 1:
            gpu.Recv(array, 0, 7)

    errors = outcomes(gpu, exchange)
    assert errors[0] is None
    assert errors[1][0] == "TypeError"
    assert "in a GPU's memory has met a message that rank 0 (tag 7) sent from host" in errors[1][1]
    if gpu.rank == 1:
        host = np.zeros(2)
        gpu.Recv(host, 0, 7)  # it is still there
        assert host.tolist() == [1, 1]
    gpu.Barrier()


def test_receive_in_host_memory_of_a_message_from_a_gpu_raises(gpu):
    gpu.nccl  # noqa: B018
    array = gpu.nccl.asarray(np.full(2, gpu.rank + 1.0))
    request = gpu.Isend(array, 1, 8) if gpu.rank == 0 else None

    def receive():
        if gpu.rank == 1:
            gpu.Recv(np.zeros(2), MPI.ANY_SOURCE, 8)

    errors = outcomes(gpu, receive)
    assert errors[1][0] == "TypeError"
    assert "in host memory has met a message that rank 0 (tag 8) sent from a GPU" in errors[1][1]
    if gpu.rank == 1:
        gpu.Recv(array, 0, 8)
        assert array.get().tolist() == [1, 1]
    if request is not None:
        request.Wait()
    gpu.Barrier()


def test_a_message_of_the_other_side_does_not_disturb_the_right_one(gpu):
    """Both kinds are under way with one tag; each receive takes its own."""
    gpu.nccl  # noqa: B018
    there, host = gpu.nccl.asarray(np.full(2, 5.0)), np.full(2, 6.0)
    if gpu.rank == 0:
        requests = [gpu.Isend(there, 1, 9), gpu.Isend(host, 1, 9)]
        for request in requests:
            request.Wait()
    if gpu.rank == 1:
        into, onto = np.zeros(2), gpu.nccl.empty(2, "float64")
        gpu.Recv(into, 0, 9)
        gpu.Recv(onto, 0, 9)
        assert (into[0], onto.get()[0]) == (6, 5)
    gpu.Barrier()
