"""pynccl.mpi.Comm against plain mpi4py: the same calls, on GPU arrays and on host arrays."""

import numpy as np
import pytest
from helpers.ranks import outcomes
from mpi4py import MPI

from pynccl.mpi import Cartcomm, Comm, Request

DTYPES = ["i1", "u1", "i4", "u4", "i8", "u8", "f4", "f8", "c8", "c16"]


@pytest.fixture(scope="module")
def gpu(world):
    """The world, for arrays on GPUs."""
    return Comm(world)


def numbers(comm, count, dtype, seed=1):
    """Small whole numbers, different on each rank, so that sums are exact."""
    random = np.random.default_rng(1000 * seed + comm.rank)
    return random.integers(1, 4, count).astype(dtype)


def same(gpu, call, *arrays):
    """Do ``call(comm, *arrays)`` with MPI and with NCCL, and compare the arrays afterwards."""
    host = [np.array(array) for array in arrays]
    there = [gpu.nccl.asarray(array) for array in arrays]
    call(MPI.COMM_WORLD, *host)
    call(gpu, *there)
    for expected, found in zip(host, there):
        np.testing.assert_array_equal(found.get(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
def test_reductions_equal_mpi(gpu, op, dtype):
    if dtype in ("c8", "c16") and op != "SUM":
        with pytest.raises(TypeError, match="complex"):
            gpu.Allreduce(MPI.IN_PLACE, gpu.nccl.asarray(np.ones(2, dtype)), getattr(MPI, op))
        return
    how = getattr(MPI, op)
    n = gpu.size
    send, recv = numbers(gpu, 5, dtype), np.zeros(5, dtype)
    same(gpu, lambda c, s, r: c.Allreduce(s, r, how), send, recv)
    same(gpu, lambda c, r: c.Allreduce(MPI.IN_PLACE, r, how), send)
    for root in range(n):
        same(gpu, lambda c, s, r, root=root: c.Reduce(s, r, how, root), send, recv)
    wide = numbers(gpu, 3 * n, dtype, 2)
    same(gpu, lambda c, s, r: c.Reduce_scatter_block(s, r, how), wide, np.zeros(3, dtype))
    same(gpu, lambda c, r: c.Reduce_scatter_block(MPI.IN_PLACE, r, how), wide)
    counts = [rank % 3 for rank in range(n)]
    uneven, mine = numbers(gpu, sum(counts), dtype, 3), np.zeros(counts[gpu.rank], dtype)
    same(gpu, lambda c, s, r: c.Reduce_scatter(s, r, counts, how), uneven, mine)
    same(gpu, lambda c, s, r: c.Reduce_scatter(s, r, None, how), uneven, mine)


@pytest.mark.parametrize("op", ["LAND", "LOR"])
def test_truth_values_are_reduced_as_mpi_does(gpu, op):
    values = np.array([True, False, gpu.rank == 0, gpu.rank > 0])
    how = getattr(MPI, op)
    same(gpu, lambda c, s, r: c.Allreduce(s, r, how), values, np.zeros(4, bool))


@pytest.mark.parametrize("dtype", ["i1", "f4", "c16", "?"])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_collectives_that_move_equal_mpi(gpu, dtype, count):
    n = gpu.size
    one, all_of_them = numbers(gpu, count, dtype), np.zeros((n, count), dtype)
    every = numbers(gpu, n * count, dtype, 2)
    same(gpu, lambda c, s, r: c.Allgather(s, r), one, all_of_them)
    same(gpu, lambda c, s, r: c.Alltoall(s, r), every, np.zeros(n * count, dtype))
    same(gpu, lambda c, r: c.Alltoall(MPI.IN_PLACE, r), every)
    same(gpu, lambda c, r: c.Allgather(MPI.IN_PLACE, r), every)
    for root in range(n):
        same(gpu, lambda c, b, root=root: c.Bcast(b, root), one)
        same(gpu, lambda c, s, r, root=root: c.Gather(s, r, root), one, all_of_them)
        same(gpu, lambda c, s, r, root=root: c.Scatter(s, r, root), every, np.zeros(count, dtype))


@pytest.mark.parametrize("spacing", [0, 2])
def test_uneven_collectives_equal_mpi(gpu, spacing):
    n, rank = gpu.size, gpu.rank
    counts = [(7 * other) % 3 for other in range(n)]
    displs = [other * (2 + spacing) for other in range(n)]
    size = n * (2 + spacing)
    mine = numbers(gpu, counts[rank], "i4")
    space = np.full(size, -1, "i4")
    same(gpu, lambda c, s, r: c.Allgatherv(s, [r, (counts, displs)]), mine, space)
    same(gpu, lambda c, s, r: c.Allgatherv(s, [r, counts, displs, MPI.INT]), mine, space)
    same(gpu, lambda c, r: c.Allgatherv(MPI.IN_PLACE, [r, counts, displs, MPI.INT]), space + rank)
    full = numbers(gpu, size, "i4", 2)
    for root in range(n):
        same(gpu, lambda c, s, r, root=root: c.Gatherv(s, [r, (counts, displs)], root), mine, space)
        same(
            gpu,
            lambda c, s, r, root=root: c.Scatterv([s, (counts, displs)], r, root),
            full,
            np.zeros(counts[rank], "i4"),
        )
    table = [[(a + 2 * b) % 3 for b in range(n)] for a in range(n)]
    sent, got = table[rank], [row[rank] for row in table]
    same(
        gpu,
        lambda c, s, r: c.Alltoallv([s, (sent, displs)], [r, (got, displs)]),
        full,
        space,
    )


SPECS = {
    "buf": lambda a: a,
    "buf, count": lambda a: [a, 3],
    "buf, datatype": lambda a: [a, MPI.DOUBLE],
    "buf, code": lambda a: [a, "d"],
    "buf, count, datatype": lambda a: (a, 4, MPI.DOUBLE),
    "buf, (count, displ), datatype": lambda a: [a, (2, 1), MPI.DOUBLE],
    "buf, count, displ, datatype": lambda a: [a, 2, 3, MPI.DOUBLE],
    "contiguous datatype": lambda a: [a, 2, MPI.DOUBLE.Create_contiguous(2).Commit()],
    "bytes": lambda a: [a, 9, MPI.BYTE],
}


@pytest.mark.parametrize("spec", SPECS)
def test_buffer_specifications_are_mpi4pys(gpu, spec):
    same(gpu, lambda c, a: c.Bcast(SPECS[spec](a)), numbers(gpu, 6, "f8"))


def test_types_without_arithmetic_are_moved(gpu):
    values = gpu.nccl.asarray(numbers(gpu, 8, "u1"))
    gpu.Bcast([values, 4, MPI.SHORT])
    assert values.get().tolist() == MPI.COMM_WORLD.bcast(numbers(gpu, 8, "u1").tolist())


REFUSED = {
    "no arithmetic": lambda c, a: c.Allreduce(MPI.IN_PLACE, [a, MPI.SHORT]),
    "bitwise and": lambda c, a: c.Allreduce(MPI.IN_PLACE, a, MPI.BAND),
    "own function": lambda c, a: c.Allreduce(MPI.IN_PLACE, a, MPI.Op.Create(lambda x, y, t: None)),
    "for each partition": lambda c, a: c.Psend_init(a, 2, 0),
    "recvbuf is not": lambda c, a: c.Allreduce(a, np.zeros(4, "i4")),
    "must not be negative": lambda c, a: c.Bcast([a, -1]),
    "too few": lambda c, a: c.Bcast([a, 5]),
    "2 to 4 items": lambda c, a: c.Bcast([a, 1, 1, MPI.INT, 1]),
    "counts for|for [0-9] ranks": lambda c, a: c.Allgatherv(a, [a, [0] * (c.size + 1)]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_nccl_cannot_do_is_refused_with_the_reason(gpu, reason):
    values = gpu.nccl.asarray(np.arange(4, dtype="i4"))
    with pytest.raises((TypeError, ValueError), match=reason):
        REFUSED[reason](gpu, values)


def test_host_arrays_and_objects_go_through_mpi(gpu):
    values = np.full(3, gpu.rank + 1)
    gpu.Allreduce(MPI.IN_PLACE, values)
    assert values.tolist() == [gpu.size * (gpu.size + 1) // 2] * 3
    assert gpu.allgather(gpu.rank) == list(range(gpu.size))
    assert gpu.Iscan(MPI.IN_PLACE, np.zeros(1)).Wait()


def ring(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def test_sendrecv_tells_what_came(gpu):
    right, left = ring(gpu)
    recv = gpu.nccl.asarray(np.full(5, -1, "i4"))
    status = MPI.Status()
    send = gpu.nccl.asarray(np.full(3, gpu.rank, "i4"))
    gpu.Sendrecv(send, right, 7, recv, left, MPI.ANY_TAG, status)
    assert recv.get().tolist() == [left] * 3 + [-1, -1]
    assert (status.source, status.tag, status.Get_count(MPI.INT)) == (left, 7, 3)
    gpu.Sendrecv_replace(recv, right, 0, left, 0)
    assert recv.get().tolist()[:3] == [(left - 1) % gpu.size] * 3


def test_messages_are_matched_by_tag_and_from_any_source(gpu):
    right, left = ring(gpu)
    sends = [
        gpu.Isend(gpu.nccl.asarray(np.full(2, 10 * gpu.rank + tag, "i4")), right, tag)
        for tag in range(4)
    ]
    into = {tag: gpu.nccl.empty(2, "int32") for tag in (2, 0, 3, 1)}
    receives = [gpu.Irecv(buffer, MPI.ANY_SOURCE, tag) for tag, buffer in into.items()]
    statuses = []
    Request.Waitall(receives + sends, statuses)
    for tag, buffer in into.items():
        assert buffer.get().tolist() == [10 * left + tag] * 2
    assert [status.tag for status in statuses[:4]] == [2, 0, 3, 1]


def test_requests_of_both_kinds_are_waited_for_together(gpu):
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs MPI_THREAD_MULTIPLE")
    right, left = ring(gpu)
    there, here = gpu.nccl.empty(4, "float64"), np.zeros(4)
    mine = np.full(4, float(gpu.rank))
    for wait in (MPI.Request.Waitall, Request.Waitall):
        wait(
            [
                gpu.Irecv(there, left),
                gpu.Irecv(here, left),
                gpu.Isend(gpu.nccl.asarray(mine), right),
                gpu.Isend(mine, right),
                gpu.Ibarrier(),
            ]
        )
        assert there.get().tolist() == here.tolist() == [left] * 4


def test_nonblocking_collectives_overlap_with_messages(gpu):
    right, left = ring(gpu)
    total, note = gpu.nccl.asarray(np.ones(1000)), gpu.nccl.empty(1, "int64")
    reduced = gpu.Iallreduce(MPI.IN_PLACE, total)
    if gpu.rank == 0:  # in another order than elsewhere
        sent = gpu.Isend(gpu.nccl.asarray(np.array([gpu.rank])), right)
    received = gpu.Irecv(note, left)
    if gpu.rank != 0:
        sent = gpu.Isend(gpu.nccl.asarray(np.array([gpu.rank])), right)
    while not received.Test():
        pass
    assert note.get()[0] == left
    received.wait()
    sent.wait()
    reduced.wait()
    assert (total.get() == gpu.size).all()


def test_message_longer_than_the_buffer_raises_and_frees_its_sender(gpu):
    right, left = ring(gpu)
    small = gpu.Irecv(gpu.nccl.empty(2, "int32"), left)
    sent = gpu.Isend(gpu.nccl.asarray(np.arange(10, dtype="i4")), right)
    with pytest.raises(MPI.Exception) as caught:
        small.Wait()
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    sent.Wait()


def test_messages_in_a_chain_with_barriers_between_do_not_hang(gpu):
    """Each of two messages of a rank can be done without the other."""
    if gpu.size < 2 or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs two ranks and MPI_THREAD_MULTIPLE")
    value = gpu.nccl.asarray(np.array([gpu.rank]))
    if gpu.rank == 0:
        answer = gpu.nccl.empty(1, "int64")
        later = gpu.Irecv(answer, 1, 5)
        gpu.Send(value, 1, 4)
        gpu.Barrier()
        later.Wait()
        assert answer.get()[0] == 1
    elif gpu.rank == 1:
        gpu.Recv(gpu.nccl.empty(1, "int64"), 0, 4)
        gpu.Barrier()
        gpu.Send(value, 0, 5)
    else:
        gpu.Barrier()


def test_every_rank_sends_to_every_rank_in_any_order(gpu):
    order = np.random.default_rng(gpu.rank)
    into = gpu.nccl.asarray(np.full((gpu.size, 3), -1.0))
    mine = [gpu.nccl.asarray(np.full(3, 10.0 * gpu.rank + to)) for to in range(gpu.size)]
    for _ in range(5):
        calls = [(gpu.Isend, mine[to], to) for to in range(gpu.size)]
        calls += [(gpu.Irecv, into[source], source) for source in range(gpu.size)]
        order.shuffle(calls)
        Request.Waitall([call(buffer, peer) for call, buffer, peer in calls])
        expected = [[10.0 * source + gpu.rank] * 3 for source in range(gpu.size)]
        assert into.get().tolist() == expected


def traffic(shared, size):
    """Return messages as (source, dest, tag, count), the same on all ranks."""
    counts = [0, 1, 100, 5000, 100_000]
    return [
        (*shared.integers(0, size, 2), shared.integers(0, 3), shared.choice(counts))
        for _ in range(shared.integers(1, 20))
    ]


def in_any_order(own, calls):
    """Shuffle, but keep the order of what MPI matches by order: one kind, peer and tag."""
    kinds = {}
    for call in calls:
        kinds.setdefault(call[:3], []).append(call)
    order = [kind for kind, several in kinds.items() for _ in several]
    own.shuffle(order)
    return [kinds[tuple(kind)].pop(0) for kind in order]


def test_random_traffic_arrives_without_deadlock(gpu):
    shared, own = np.random.default_rng(7), np.random.default_rng(100 + gpu.rank)
    waits = [Request.Waitall, lambda requests: [request.Wait() for request in requests]]
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        waits.append(MPI.Request.Waitall)
    for _ in range(100):
        calls = []
        for number, (source, dest, tag, count) in enumerate(traffic(shared, gpu.size)):
            calls += [("send", dest, tag, count, number)] if source == gpu.rank else []
            calls += [("recv", source, tag, count, number)] if dest == gpu.rank else []
        total = gpu.nccl.asarray(np.ones(1000))
        reduced_at = own.integers(0, len(calls) + 1)
        requests, received = [], []
        for place, (kind, peer, tag, count, number) in enumerate(in_any_order(own, calls)):
            if place == reduced_at:
                requests.append(gpu.Iallreduce(MPI.IN_PLACE, total))
            if kind == "send":
                sent = gpu.nccl.asarray(np.full(count, 100 * number + gpu.rank, "i4"))
                requests.append(gpu.Isend(sent, peer, tag))
            else:
                into = gpu.nccl.empty(int(count + own.integers(0, 3)), "int32")
                requests.append(gpu.Irecv(into, peer, tag))
                received.append((into, count, 100 * number + peer))
        if reduced_at == len(calls):
            requests.append(gpu.Iallreduce(MPI.IN_PLACE, total))
        own.shuffle(requests)
        waits[own.integers(len(waits))](requests)
        for into, count, value in received:
            assert (into.get()[:count] == value).all()
        assert (total.get() == gpu.size).all()


def test_process_null_is_no_partner(gpu):
    values = gpu.nccl.asarray(np.ones(2))
    gpu.Send(values, MPI.PROC_NULL)
    status = MPI.Status()
    gpu.Recv(values, MPI.PROC_NULL, status=status)
    assert status.source == MPI.PROC_NULL
    gpu.Sendrecv(values, MPI.PROC_NULL, 0, values, MPI.PROC_NULL, 0)
    assert gpu.Irecv(values, MPI.PROC_NULL).Wait()


class OnStream:
    """An array whose contents are made on a stream of its own, as it says in its interface."""

    def __init__(self, array, stream):
        self.array = array
        self.owner = stream
        self.stream = int(stream.handle)

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, "stream": self.stream}


@pytest.mark.parametrize("call", ["Allreduce", "Iallreduce", "Sendrecv_replace", "Isend"])
def test_order_of_the_stream_is_kept_without_synchronizing(gpu, call):
    """What is queued on an array's stream before a call is in what the call sends."""
    from cuda.bindings import driver

    count, filled = 1 << 22, 0x01010101
    a = gpu.nccl.asarray(np.zeros(count, "i4"))
    b = gpu.nccl.empty(count, "int32")
    a.get()
    array = OnStream(a, gpu.nccl.device.create_stream())
    right, left = ring(gpu)
    for _ in range(3):
        for byte in (0, 1):
            driver.cuMemsetD8Async(a.ptr, byte, a.nbytes, array.stream)
        if call == "Allreduce":
            gpu.Allreduce(array, b)
        elif call == "Iallreduce":
            gpu.Iallreduce(array, b).Wait()
        elif call == "Sendrecv_replace":
            gpu.Sendrecv_replace(array, right, 0, left, 0)
            b = a
        else:
            Request.Waitall([gpu.Isend(array, right), gpu.Irecv(b, left)])
        found = b.get()
        factor = gpu.size if "reduce" in call else 1
        assert (found == filled * factor).all()


def test_parts_and_copies_are_of_the_same_class(gpu, world):
    parts = [gpu.Dup(), gpu.Clone(), gpu.Split(gpu.rank % 2, -gpu.rank)]
    parts += [gpu.Split_type(MPI.COMM_TYPE_SHARED), gpu.Create(gpu.group)]
    parts += [gpu.Create_group(gpu.group)]
    for part in parts:
        assert type(part) is Comm
        a = part.nccl.asarray(np.full(2, part.rank + 1))
        part.Allreduce(MPI.IN_PLACE, a)
        assert a.get()[0] == part.size * (part.size + 1) // 2
    for part in parts:
        part.Free()
        assert part == MPI.COMM_NULL
    assert gpu.Split(MPI.UNDEFINED) == MPI.COMM_NULL


def test_duplicate_made_in_the_background_is_of_the_same_class(gpu):
    copy, request = gpu.Idup()
    request.Wait()
    assert type(copy) is Comm
    a = copy.nccl.asarray(np.ones(2))
    copy.Allreduce(MPI.IN_PLACE, a)
    assert a.get()[0] == gpu.size
    copy.Free()


def test_freeing_waits_for_what_is_under_way(gpu):
    right, left = ring(gpu)
    part = gpu.Dup()
    into = part.nccl.empty(1, "int64")
    part.Bsend(part.nccl.asarray(np.array([gpu.rank])), right)
    part.Irecv(into, left)
    part.Free()
    assert into.get()[0] == left


def test_grid_shifts_arrays_on_gpus(gpu):
    grid = gpu.Create_cart([gpu.size], [True])
    assert type(grid) is Cartcomm
    source, dest = grid.Shift(0, 1)
    a = grid.nccl.asarray(np.array([grid.rank]))
    grid.Sendrecv_replace(a, dest, 0, source, 0)
    assert a.get()[0] == source
    grid.Free()


def test_two_of_the_same_communicator_share_nccls(gpu, world):
    assert Comm(world).nccl is gpu.nccl
    assert Comm(world.handle).nccl is gpu.nccl


def test_communicator_freed_through_mpi_lets_go_of_nccls(world):
    plain = world.Dup()
    nccl = Comm(plain).nccl
    assert nccl.is_valid
    plain.Free()
    assert not nccl.is_valid


def test_intercommunicator_is_refused(gpu, world):
    if world.size < 2:
        pytest.skip("needs two ranks")
    half = world.Split(world.rank % 2)
    inter = half.Create_intercomm(0, world, 1 - world.rank % 2)
    told = outcomes(world, lambda: Comm(inter))
    assert all(one is not None and one[0] == "TypeError" for one in told)
    inter.Free()
    half.Free()


def until(tells):
    while not tells():
        pass


def among(comm, values, wait):
    """Wait for it in a list with a request of MPI's own."""
    other = MPI.COMM_SELF.Ibarrier()
    try:
        wait([comm.Iallreduce(MPI.IN_PLACE, values), other])
    finally:
        other.Wait()


def started(request):
    request.Start()
    return request


def beside_a_receive(comm, values):
    """A blocking collective while a message is under way."""
    receive = comm.Irecv(comm.nccl.empty(1, "i4"), comm.rank)
    try:
        comm.Allreduce(MPI.IN_PLACE, values)
    finally:
        comm.Send(comm.nccl.empty(1, "i4"), comm.rank)
        receive.Wait()


UNEQUAL = {
    "Wait": lambda c, v: c.Iallreduce(MPI.IN_PLACE, v).Wait(),
    "Test": lambda c, v: until(c.Iallreduce(MPI.IN_PLACE, v).Test),
    "Waitall": lambda c, v: among(c, v, Request.Waitall),
    "waitall": lambda c, v: among(c, v, Request.waitall),
    "Waitany": lambda c, v: among(c, v, lambda rs: [Request.Waitany(rs) for _ in rs]),
    "Waitsome": lambda c, v: among(c, v, lambda rs: until(lambda: Request.Waitsome(rs) is None)),
    "Testall": lambda c, v: among(c, v, lambda rs: until(lambda: Request.Testall(rs))),
    "Testsome": lambda c, v: among(c, v, lambda rs: until(lambda: Request.Testsome(rs) is None)),
    "persistent": lambda c, v: started(c.Allreduce_init(MPI.IN_PLACE, v)).Wait(),
    "blocking": lambda c, v: c.Allreduce(MPI.IN_PLACE, v),
    "blocking, beside a receive": beside_a_receive,
}


@pytest.mark.parametrize("way", UNEQUAL)
def test_every_wait_tells_that_ranks_called_differently(world, way):
    if world.size == 1:
        pytest.skip("needs two ranks")
    comm = Comm(world.Dup())
    values = comm.nccl.asarray(np.ones(2 if comm.rank else 3))
    told = outcomes(world, lambda: UNEQUAL[way](comm, values))
    comm.nccl.abort()
    comm.Free()
    assert {kind for kind, _ in told} == {"NCCLInvalidUsage"}
    assert all("ncclAllReduce" in text for _, text in told)
