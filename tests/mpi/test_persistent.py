"""Persistent requests on GPU arrays against MPI's own on host arrays, however they are started."""

import numpy as np
import pytest
from mpi4py import MPI

from pynccl.mpi import Comm, Prequest, Request

ROUNDS = 3


@pytest.fixture(scope="module")
def gpu(world):
    """The world, for arrays on GPUs."""
    return Comm(world)


def ring(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def collectives(comm, send, recv, root):
    """Every persistent collective of MPI, on arrays of four numbers for each rank, and uneven."""
    n, rank = comm.size, comm.rank
    counts = [1 + other % 3 for other in range(n)]
    displs = [4 * other for other in range(n)]
    bytewise = [8 * displ for displ in displs]
    types = [MPI.DOUBLE] * n
    part, vector = [send, 4], [recv, (counts, displs)]
    mine = [send, counts[rank]]
    return {
        "Bcast": lambda: comm.Bcast_init(recv, root),
        "Allreduce": lambda: comm.Allreduce_init(send, recv),
        "Allreduce in place": lambda: comm.Allreduce_init(MPI.IN_PLACE, recv, MPI.MAX),
        "Reduce": lambda: comm.Reduce_init(send, recv, MPI.SUM, root),
        "Reduce_scatter_block": lambda: comm.Reduce_scatter_block_init(send, [recv, 4]),
        "Reduce_scatter": lambda: comm.Reduce_scatter_init(
            [send, sum(counts)], [recv, counts[rank]], counts
        ),
        "Allgather": lambda: comm.Allgather_init(part, recv),
        "Allgatherv": lambda: comm.Allgatherv_init(mine, vector),
        "Gather": lambda: comm.Gather_init(part, recv, root),
        "Gatherv": lambda: comm.Gatherv_init(mine, vector, root),
        "Scatter": lambda: comm.Scatter_init(send, [recv, 4], root),
        "Scatterv": lambda: comm.Scatterv_init(
            [send, (counts, displs)], [recv, counts[rank]], root
        ),
        "Alltoall": lambda: comm.Alltoall_init(send, recv),
        "Alltoallv": lambda: comm.Alltoallv_init(
            [send, ([counts[rank]] * n, displs)], [recv, (counts, displs)]
        ),
        "Alltoallw": lambda: comm.Alltoallw_init(
            (send, ([counts[rank]] * n, bytewise), types), (recv, (counts, bytewise), types)
        ),
        "Scan": lambda: comm.Scan_init(send, recv),
        "Exscan": lambda: comm.Exscan_init(send, recv),
    }


STARTS = {
    "Start": lambda request: request.Start(),
    "Startall": lambda request: Prequest.Startall([request]),
    "MPI's Startall": lambda request: MPI.Prequest.Startall([request]),
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", collectives(MPI.COMM_SELF, None, None, 0))
def test_persistent_collectives_equal_mpis_at_each_start(gpu, name, start):
    size, root = 4 * gpu.size, gpu.size - 1
    host = [np.zeros(size), np.zeros(size)]
    there = [gpu.nccl.asarray(array) for array in host]
    on_host = collectives(MPI.COMM_WORLD, *host, root)[name]()
    on_gpu = collectives(gpu, *there, root)[name]()
    assert isinstance(on_gpu, Prequest)
    for number in range(ROUNDS):
        random = np.random.default_rng(100 * number + gpu.rank)
        for array, copy in zip(host, there):
            array[...] = random.integers(0, 9, size)
            copy.set(array)
        on_host.Start()
        STARTS[start](on_gpu)
        on_host.Wait()
        on_gpu.Wait()
        np.testing.assert_array_equal(there[1].get(), host[1])
    on_host.Free()
    on_gpu.Free()
    assert on_gpu == MPI.REQUEST_NULL


@pytest.mark.parametrize("kind", ["Send", "Ssend", "Bsend", "Rsend"])
def test_messages_are_sent_and_told_of_at_each_start(gpu, kind):
    right, left = ring(gpu)
    sent, got = (gpu.nccl.asarray(np.zeros(3, "i4")) for _ in range(2))
    send = getattr(gpu, f"{kind}_init")(sent, right, 7)
    receive = gpu.Recv_init(got, MPI.ANY_SOURCE, MPI.ANY_TAG)
    for number in range(ROUNDS):
        sent.set(np.full(3, 10 * gpu.rank + number, "i4"))
        receive.Start()
        if kind == "Rsend":
            gpu.Barrier()
        send.Start()
        status = MPI.Status()
        receive.Wait(status)
        send.Wait()
        assert got.get().tolist() == [10 * left + number] * 3
        told = status.source, status.tag, status.Get_count(MPI.INT32_T)
        assert told == (left, 7, 3)
    send.Free()
    receive.Free()


def test_buffer_may_be_changed_once_a_buffered_send_is_started(gpu):
    right, left = ring(gpu)
    sent, got = gpu.nccl.asarray(np.zeros(2)), gpu.nccl.empty(2, "f8")
    send = gpu.Bsend_init(sent, right)
    for number in range(ROUNDS):
        sent.set(np.full(2, number + gpu.rank / 8))
        send.Start()
        send.Wait()
        sent.set(np.full(2, -1.0))
        gpu.Recv(got, left)
        assert got.get().tolist() == [number + left / 8] * 2
    send.Free()


def test_mpis_own_waits_complete_them_among_others(gpu):
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs MPI's THREAD_MULTIPLE")
    right, left = ring(gpu)
    sent, got = gpu.nccl.asarray(np.full(4, gpu.rank)), gpu.nccl.empty(4, "i8")
    host_sent, host_got = np.full(4, gpu.rank), np.zeros(4, "i8")
    requests = [
        gpu.Recv_init(got, left),
        gpu.Recv_init(host_got, left),
        gpu.Send_init(sent, right),
        gpu.Send_init(host_sent, right),
    ]
    for waits in ("Waitall", "Waitany", "Waitsome", "Testall"):
        MPI.Prequest.Startall(requests)
        if waits == "Waitall":
            MPI.Request.Waitall(requests)
        elif waits == "Waitany":
            assert sorted(MPI.Request.Waitany(requests) for _ in requests) == [0, 1, 2, 3]
            assert MPI.Request.Waitany(requests) == MPI.UNDEFINED
        elif waits == "Waitsome":
            found = []
            while len(found) < 4:
                found += MPI.Request.Waitsome(requests)
            assert sorted(found) == [0, 1, 2, 3]
        else:
            while not MPI.Request.Testall(requests):
                pass
        assert got.get().tolist() == host_got.tolist() == [left] * 4
    for request in requests:
        request.Free()


@pytest.mark.parametrize("waits", ["Waitall", "Waitany", "Waitsome", "Testany", "waitall"])
def test_our_waits_tell_the_statuses_of_any_mixture(gpu, waits):
    right, left = ring(gpu)
    arrays = [gpu.nccl.empty(1, "i8") for _ in range(2)]
    host = np.zeros(1, "i8")
    persistent = [gpu.Recv_init(arrays[0], left, 1), gpu.Send_init(arrays[1], right, 1)]
    requests = [*persistent, gpu.Irecv(host, left, 2)]
    Prequest.Startall(persistent)
    gpu.Send(np.ones(1, "i8"), right, 2)
    tags = {}
    if waits in ("Waitall", "waitall"):
        statuses = [MPI.Status() for _ in requests]
        getattr(Request, waits)(requests, statuses)
        tags = {index: status.tag for index, status in enumerate(statuses)}
    while waits == "Waitsome" and len(tags) < 3:
        statuses = []
        for index, status in zip(Request.Waitsome(requests, statuses), statuses):
            tags[index] = status.tag
    while waits in ("Waitany", "Testany") and len(tags) < 3:
        status = MPI.Status()
        found = getattr(Request, waits)(requests, status)
        index, done = (found, True) if waits == "Waitany" else found
        if done:
            tags[index] = status.tag
    assert (tags[0], tags[2]) == (1, 2)
    for request in persistent:
        request.Free()


def test_inactive_requests_are_complete_and_tell_nothing(gpu):
    request = gpu.Recv_init(gpu.nccl.empty(1, "i4"), 0, 5)
    status = MPI.Status()
    status.source, status.tag = 0, 4
    request.Wait(status)
    assert (status.source, status.tag) == (MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert request.Test() and request.Get_status()
    assert Request.Waitany([request]) == MPI.UNDEFINED
    request.Free()


def test_datatype_may_be_freed_after_the_request_was_made(gpu):
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    values = gpu.nccl.asarray(np.arange(4.0) * (gpu.rank + 1))
    request = gpu.Bcast_init([values, 2, pair])
    pair.Free()
    request.Start()
    request.Wait()
    assert values.get().tolist() == [0, 1, 2, 3]
    request.Free()


def test_a_persistent_send_does_not_pass_a_send_before_it(gpu):
    right, left = ring(gpu)
    first, second = (gpu.nccl.asarray(np.full(1, number)) for number in (1, 2))
    got = [gpu.nccl.empty(1, "i8") for _ in range(3)]
    receives = [gpu.Irecv(array, left) for array in got]
    sends = [gpu.Send_init(array, right) for array in (first, second)]
    MPI.Prequest.Startall(sends)
    third = gpu.Isend(gpu.nccl.asarray(np.full(1, 3)), right)
    Request.Waitall([*receives, *sends, third])
    assert [array.get()[0] for array in got] == [1, 2, 3]
    for request in sends:
        request.Free()


def test_a_collective_does_not_pass_one_that_was_started_before(gpu):
    values = gpu.nccl.asarray(np.ones(1))
    request = gpu.Allreduce_init(MPI.IN_PLACE, values)
    MPI.Prequest.Startall([request])
    gpu.Allreduce(MPI.IN_PLACE, values, MPI.PROD)
    request.Wait()
    assert values.get()[0] == float(gpu.size) ** gpu.size
    request.Free()


def test_wait_raises_for_a_message_that_is_too_long_and_the_next_start_is_a_new_one(gpu):
    right, left = ring(gpu)
    sent, got = gpu.nccl.asarray(np.arange(4.0)), gpu.nccl.asarray(np.zeros(2))
    receive = gpu.Recv_init(got, left)
    for size in (4, 2):
        receive.Start()
        send = gpu.Isend([sent, size], right)
        if size == 4:
            with pytest.raises(MPI.Exception, match="truncated|TRUNCATE"):
                receive.Wait()
        else:
            receive.Wait()
        send.Wait()
    assert got.get().tolist() == [0, 1]
    receive.Free()


def test_freed_while_active_the_message_still_comes(world):
    comm = Comm(world.Dup())
    right, left = ring(comm)
    got = comm.nccl.asarray(np.zeros(1, "i4"))
    receive = comm.Recv_init(got, left)
    receive.Start()
    receive.Free()
    comm.Send(comm.nccl.asarray(np.full(1, right, "i4")), right)
    comm.Free()  # waits for it
    assert got.get()[0] == world.rank


def test_to_no_one_is_complete_at_once(gpu):
    array = gpu.nccl.empty(2, "f4")
    requests = [gpu.Send_init(array, MPI.PROC_NULL), gpu.Recv_init(array, MPI.PROC_NULL)]
    Prequest.Startall(requests)
    Request.Waitall(requests)
    for request in requests:
        request.Free()


def test_start_after_the_communicator_was_freed_is_an_error(world):
    comm = Comm(world.Dup())
    request = comm.Bcast_init(comm.nccl.empty(1, "i4"))
    comm.Free()
    with pytest.raises(RuntimeError, match="freed"):
        request.Start()
    request.Free()


@pytest.mark.parametrize("kind", ["nonblocking", "persistent"])
@pytest.mark.parametrize("waits", ["Wait", "Waitall", "Test"])
def test_a_receive_without_a_message_can_be_cancelled(gpu, kind, waits):
    got = gpu.nccl.empty(1, "i4")
    request = (gpu.Irecv if kind == "nonblocking" else gpu.Recv_init)(got, MPI.ANY_SOURCE, 77)
    for _ in range(1 if kind == "nonblocking" else ROUNDS):
        if kind == "persistent":
            request.Start()
        request.Cancel()
        status = MPI.Status()
        if waits == "Wait":
            request.Wait(status)
        elif waits == "Waitall":
            statuses = [status]
            Request.Waitall([request], statuses)
        else:
            assert request.Test(status)
        assert status.Is_cancelled()
    gpu.Barrier()  # what is sent then, another receive gets
    right, left = ring(gpu)
    sent = gpu.Isend(gpu.nccl.asarray(np.full(1, gpu.rank, "i4")), right, 77)
    gpu.Recv(got, left, 77)
    sent.Wait()
    assert got.get()[0] == left
    if kind == "persistent":
        request.Free()


def test_what_has_met_its_message_is_not_cancelled(gpu):
    right, left = ring(gpu)
    got = gpu.nccl.empty(1, "i4")
    receive = gpu.Irecv(got, left)
    gpu.Send(gpu.nccl.asarray(np.full(1, gpu.rank, "i4")), right)
    gpu.Barrier()
    receive.Cancel()
    status = MPI.Status()
    receive.Wait(status)
    assert not status.Is_cancelled() and got.get()[0] == left
    gpu.nccl.synchronize()


def test_collectives_and_sends_go_on_though_they_are_cancelled(gpu):
    right, left = ring(gpu)
    values, got = gpu.nccl.asarray(np.ones(1)), gpu.nccl.empty(1, "f8")
    request = gpu.Iallreduce(MPI.IN_PLACE, values)
    request.Cancel()
    request.Wait()
    assert values.get()[0] == gpu.size
    send = gpu.Isend(values, right)
    send.Cancel()
    gpu.Recv(got, left)
    send.Wait()
    assert got.get()[0] == gpu.size
