"""Datatypes with gaps in pynccl.mpi.Comm against plain mpi4py, on GPU arrays and on host arrays."""

import numpy as np
import pytest
from helpers.datatypes import DatatypeMaker
from mpi4py import MPI

from pynccl.mpi import Comm, Request, elements, packing

INT = MPI.INT
CYCLIC, NONE = MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_NONE
DEFAULT = MPI.DISTRIBUTE_DFLT_DARG

# Each has six numbers, and reaches over 20 at most.
SIX = {
    "contiguous": lambda: INT.Create_contiguous(6),
    "vector": lambda: INT.Create_vector(3, 2, 4),
    "hvector": lambda: INT.Create_hvector(2, 3, 20),
    "indexed": lambda: INT.Create_indexed([1, 3, 2], [8, 0, 5]),
    "hindexed": lambda: INT.Create_hindexed([4, 2], [8, 28]),
    "indexed block": lambda: INT.Create_indexed_block(2, [6, 0, 3]),
    "struct": lambda: MPI.Datatype.Create_struct(
        [2, 1], [28, 4], [INT, INT.Create_vector(2, 2, 3)]
    ),
    "subarray": lambda: INT.Create_subarray([4, 5], [2, 3], [1, 1]),
    "subarray in Fortran's order": lambda: INT.Create_subarray([5, 4], [3, 2], [1, 1], MPI.ORDER_F),
    "darray": lambda: INT.Create_darray(
        2, 1, [4, 3], [CYCLIC, NONE], [DEFAULT, DEFAULT], [2, 1], MPI.ORDER_C
    ),
    "resized": lambda: INT.Create_contiguous(6).Create_resized(0, 32),
    "nested": lambda: INT.Create_contiguous(2).Create_resized(0, 12).Create_vector(3, 1, 2),
}
NAMES = list(SIX)
PAIRS = [("contiguous", name) for name in NAMES[1:]]
PAIRS += [(name, NAMES[(index + 4) % len(NAMES)]) for index, name in enumerate(NAMES) if index]
ROOM = 50  # numbers, for two items


@pytest.fixture(scope="module")
def gpu(world):
    """The world, for arrays on GPUs."""
    return Comm(world)


@pytest.fixture(scope="module")
def six():
    """The datatypes of six numbers, by name."""
    made = {name: make().Commit() for name, make in SIX.items()}
    yield made
    for datatype in made.values():
        datatype.Free()


def values(comm, count, seed=1):
    """Different numbers on each rank."""
    random = np.random.default_rng(1000 * seed + comm.rank)
    return random.integers(1, 1 << 30, count).astype("i4")


def same(gpu, call, *arrays):
    """Do ``call(comm, *arrays)`` with MPI and with NCCL, and compare all bytes afterwards."""
    host = [np.array(array) for array in arrays]
    there = [gpu.nccl.asarray(array) for array in arrays]
    call(MPI.COMM_WORLD, *host)
    call(gpu, *there)
    for expected, found in zip(host, there):
        np.testing.assert_array_equal(found.get(), expected)


def flavoured(comm, flavour, name, *args):
    """Call a collective: blocking on host arrays, else in one of its forms."""
    if comm is MPI.COMM_WORLD or flavour == "blocking":
        getattr(comm, name)(*args)
    elif flavour == "nonblocking":
        getattr(comm, f"I{name.lower()}")(*args).Wait()
    else:
        request = getattr(comm, f"{name}_init")(*args)
        for _ in range(2):
            request.Start()
            request.Wait()
        request.Free()


@pytest.fixture(params=["blocking", "nonblocking", "persistent"])
def flavour(request):
    return request.param


@pytest.mark.parametrize(("theirs", "mine"), PAIRS)
def test_collectives_of_equal_parts_equal_mpi(gpu, six, flavour, theirs, mine):
    """What is sent and what is received need only have as many numbers."""
    n = gpu.size
    sends, recvs = six[theirs], six[mine]
    send, recv = values(gpu, n * ROOM), values(gpu, n * ROOM, 2)

    def run(name, *args):
        def call(c, s, r):
            flavoured(c, flavour, name, [s, 2, sends], [r, 2, recvs], *args)

        same(gpu, call, send, recv)

    run("Allgather")
    run("Alltoall")
    for root in range(n):
        run("Gather", root)
        run("Scatter", root)

        def bcast(c, s, r, root=root):
            data = [s, 2, sends] if c.rank == root else [r, 2, recvs]
            flavoured(c, flavour, "Bcast", data, root)

        same(gpu, bcast, send, recv)


@pytest.mark.parametrize(("theirs", "mine"), PAIRS)
def test_collectives_of_uneven_parts_equal_mpi(gpu, six, flavour, theirs, mine):
    n, rank = gpu.size, gpu.rank
    sends, recvs = six[theirs], six[mine]
    send, recv = values(gpu, n * ROOM), values(gpu, n * ROOM, 2)
    counts, displs = [other % 3 for other in range(n)], [2 * other for other in range(n)]

    def run(name, args):
        def call(c, s, r):
            flavoured(c, flavour, name, *args(s, r))

        same(gpu, call, send, recv)

    one = counts[rank]
    run("Allgatherv", lambda s, r: ([s, one, sends], [r, (counts, displs), recvs]))
    for root in range(n):
        run("Gatherv", lambda s, r, k=root: ([s, one, sends], [r, (counts, displs), recvs], k))
        run("Scatterv", lambda s, r, k=root: ([s, (counts, displs), sends], [r, one, recvs], k))
    table = [[(a + 2 * b) % 3 for b in range(n)] for a in range(n)]
    sent, got = table[rank], [row[rank] for row in table]
    run("Alltoallv", lambda s, r: ([s, (sent, displs), sends], [r, (got, displs), recvs]))


def test_exchange_of_datatypes_that_differ_by_rank_equals_mpi(gpu, six, flavour):
    n, rank = gpu.size, gpu.rank
    send, recv = values(gpu, n * ROOM), values(gpu, n * ROOM, 2)
    starts = [4 * ROOM * other for other in range(n)]
    for shift in range(len(NAMES)):
        names = [NAMES[(shift + 3 * rank + 5 * other) % len(NAMES)] for other in range(n)]
        types = [six[name] for name in names]
        counts = [(shift + rank + other) % 3 for other in range(n)]

        def call(c, s, r, types=types, counts=counts):
            flavoured(
                c,
                flavour,
                "Alltoallw",
                (s, (counts, starts), types[::-1]),
                (r, (counts, starts), types),
            )

        same(gpu, call, send, recv)


@pytest.mark.parametrize("name", NAMES[1:])
def test_collectives_in_place_equal_mpi(gpu, six, flavour, name):
    n, datatype = gpu.size, six[name]
    data = values(gpu, n * ROOM)
    counts, displs = [1 + other % 2 for other in range(n)], [2 * other for other in range(n)]

    def run(method, *args):
        def call(c, r):
            spec = [r, (counts, displs), datatype] if method[-1] == "v" else [r, 2, datatype]
            flavoured(c, flavour, method, MPI.IN_PLACE, spec, *args)

        same(gpu, call, data)

    run("Allgather")
    run("Allgatherv")
    if flavour != "persistent":  # twice is another result
        run("Alltoall")

    def rooted(c, r, root):
        here = c.rank == root
        one = [r, 2, datatype]
        several = [r, (counts, displs), datatype]
        part = [r, counts[c.rank], datatype]
        flavoured(c, flavour, "Gather", MPI.IN_PLACE if here else one, one, root)
        flavoured(c, flavour, "Scatter", one, MPI.IN_PLACE if here else one, root)
        flavoured(c, flavour, "Gatherv", MPI.IN_PLACE if here else part, several, root)
        flavoured(c, flavour, "Scatterv", several, MPI.IN_PLACE if here else part, root)

    for root in range(n):
        same(gpu, lambda c, r, root=root: rooted(c, r, root), data)


def ring(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def told(status, *datatypes):
    """Return what a status tells of a message."""
    counts = [(status.Get_count(one), status.Get_elements(one)) for one in datatypes]
    return status.source, status.tag, status.Get_count(MPI.BYTE), counts


def sent_by(comm, way, send, recv):
    """Pass a message around the ring; return what the status tells."""
    right, left = ring(comm)
    status = MPI.Status()
    if way == "Sendrecv":
        comm.Sendrecv(send, right, 3, recv, left, 3, status)
    elif way in ("Isend", "Issend", "Ibsend"):
        host = comm is MPI.COMM_WORLD
        method = "Isend" if host else way
        receive = comm.Irecv(recv, left, 3)
        sending = getattr(comm, method)(send, right, 3)
        statuses = [status, MPI.Status()]
        (MPI.Request if host else Request).Waitall([receive, sending], statuses)
        status = statuses[0]
    elif comm is MPI.COMM_WORLD:
        comm.Sendrecv(send, right, 3, recv, left, 3, status)
    else:
        requests = [comm.Recv_init(recv, left, 3), comm.Send_init(send, right, 3)]
        for _ in range(2):
            for request in requests:
                request.Start()
            requests[1].Wait()
            requests[0].Wait(status)
        for request in requests:
            request.Free()
    return told(status, send[-1], recv[-1], INT)


@pytest.mark.parametrize("way", ["Sendrecv", "Isend", "Issend", "Ibsend", "Send_init"])
@pytest.mark.parametrize(("theirs", "mine"), PAIRS)
def test_messages_equal_mpi(gpu, six, way, theirs, mine):
    seen = []

    def call(c, s, r):
        seen.append(sent_by(c, way, [s, 2, six[theirs]], [r, 2, six[mine]]))

    same(gpu, call, values(gpu, ROOM), values(gpu, ROOM, 2))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("numbers", [0, 1, 5, 6, 7, 11])
@pytest.mark.parametrize("name", NAMES[1:])
def test_shorter_message_changes_only_what_it_reaches_as_in_mpi(gpu, six, name, numbers):
    seen = []

    def call(c, s, r):
        seen.append(sent_by(c, "Sendrecv", [s, numbers, INT], [r, 2, six[name]]))

    same(gpu, call, values(gpu, ROOM), values(gpu, ROOM, 2))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", NAMES[1:])
def test_replacing_equals_mpi(gpu, six, name):
    right, left = ring(gpu)

    def call(c, r):
        c.Sendrecv_replace([r, 2, six[name]], right, 0, left, 0)

    same(gpu, call, values(gpu, ROOM))


def test_longer_message_raises_and_leaves_the_array(gpu, six):
    right, left = ring(gpu)
    recv = gpu.nccl.asarray(values(gpu, ROOM))
    request = gpu.Irecv([recv, 1, six["vector"]], left)
    sent = gpu.Isend([gpu.nccl.asarray(values(gpu, ROOM)), 2, six["indexed"]], right)
    with pytest.raises(MPI.Exception) as caught:
        request.Wait()
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    sent.Wait()
    np.testing.assert_array_equal(recv.get(), values(gpu, ROOM))


def packed(datatype, count, memory):
    """Return the data of items at the start of host memory, as MPI packs it."""
    several = datatype.Create_contiguous(count)
    everything = several.Create_resized(0, memory.nbytes).Commit()
    data = np.zeros(count * datatype.size, np.uint8)
    everything.Pack(memory, data, 0, MPI.COMM_SELF)
    several.Free()
    return data, everything


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_random_nested_datatypes_arrive_as_mpi_unpacks_them(gpu, depth):
    right, left = ring(gpu)
    for seed in range(30):
        maker = DatatypeMaker([7, seed, depth])
        datatype, steps = maker.make(depth)
        count = 1 + seed % 3
        low = max(0, -min(datatype.true_lb, datatype.lb))
        shift = -(-low // datatype.extent)  # items, so that all data is in the array
        span = datatype.true_lb + datatype.true_extent + (shift + count) * datatype.extent
        memory = np.random.default_rng([seed, gpu.rank]).integers(0, 256, span, np.uint8)
        data, everything = packed(datatype, count, memory[shift * datatype.extent :])
        theirs = np.empty_like(data)
        MPI.COMM_WORLD.Sendrecv(data, right, 0, theirs, left, 0)
        expected = memory.copy()
        everything.Unpack(theirs, 0, expected[shift * datatype.extent :], MPI.COMM_SELF)
        array = gpu.nccl.asarray(memory)
        spec = [array, (count, shift), datatype]
        gpu.Sendrecv_replace(spec, right, 0, left, 0)
        np.testing.assert_array_equal(array.get(), expected, f"{steps}, seed {seed}")
        gpu.Bcast(spec, seed % gpu.size)
        MPI.COMM_WORLD.Bcast(theirs, seed % gpu.size)
        everything.Unpack(theirs, 0, expected[shift * datatype.extent :], MPI.COMM_SELF)
        np.testing.assert_array_equal(array.get(), expected, f"{steps}, seed {seed}")
        everything.Free()
        maker.free()


@pytest.mark.parametrize("name", ["SHORT_INT", "DOUBLE_INT", "LONG_INT", "LONG_DOUBLE_INT"])
def test_pairs_keep_the_bytes_between_their_parts(gpu, name):
    datatype = getattr(MPI, name)
    count = 3
    memory = values(gpu, count * datatype.extent // 4).view(np.uint8)
    data, everything = packed(datatype, count, memory)
    MPI.COMM_WORLD.Bcast(data)
    expected = memory.copy()
    everything.Unpack(data, 0, expected, MPI.COMM_SELF)
    array = gpu.nccl.asarray(memory)
    gpu.Bcast([array, datatype])
    np.testing.assert_array_equal(array.get(), expected)
    everything.Free()


def test_column_of_a_matrix_is_received_as_a_row(gpu):
    right, left = ring(gpu)
    column = MPI.DOUBLE.Create_vector(5, 1, 4).Commit()
    matrix = np.arange(20.0).reshape(5, 4) + 100 * gpu.rank
    array, row = gpu.nccl.asarray(matrix), gpu.nccl.empty(5, "float64")
    gpu.Sendrecv([array[0:], 1, column], right, 0, row, left, 0)
    np.testing.assert_array_equal(row.get(), matrix[:, 0] + 100 * (left - gpu.rank))
    column.Free()


@pytest.fixture
def copies(monkeypatch):
    """The calls that pack and unpack."""
    seen = []
    for name in ("pack", "unpack"):
        original = getattr(packing, name)

        def noting(*args, name=name, original=original):
            seen.append(name)
            original(*args)

        monkeypatch.setattr(packing, name, noting)
    return seen


@pytest.mark.parametrize(
    ("make", "count", "first"),
    [
        pytest.param(lambda: INT.Create_subarray([9, 4], [2, 4], [3, 0]), 1, 12, id="rows"),
        pytest.param(lambda: INT.Create_resized(0, 12), 1, 0, id="one item"),
        pytest.param(lambda: INT.Create_hindexed([2], [8]), 3, 2, id="shifted"),
        pytest.param(
            lambda: MPI.Datatype.Create_struct([1, 1], [0, 4], [INT, INT]), 3, 0, id="structure"
        ),
    ],
)
def test_data_that_lies_together_after_all_is_not_packed(gpu, copies, make, count, first):
    datatype = make().Commit()
    array = gpu.nccl.asarray(values(gpu, 36))
    gpu.Bcast([array, count, datatype])
    found, size = array.get(), count * datatype.size // 4
    root = MPI.COMM_WORLD.bcast(values(gpu, 36))
    np.testing.assert_array_equal(found[first : first + size], root[first : first + size])
    np.testing.assert_array_equal(found[:first], values(gpu, 36)[:first])
    assert copies == []
    datatype.Free()


def test_datatype_is_decoded_once_and_may_be_freed_before_the_request_is_done(gpu, monkeypatch):
    decoded = []
    original = elements.layout_of

    def noting(datatype):
        decoded.append(datatype.handle)
        return original(datatype)

    monkeypatch.setattr(elements, "layout_of", noting)
    for stride in (2, 3, 4):  # MPI may give the next one the handle of the last
        datatype = INT.Create_vector(4, 1, stride).Commit()
        array = gpu.nccl.asarray(values(gpu, ROOM))
        requests = [gpu.Ibcast([array, 1, datatype]) for _ in range(3)]
        datatype.Free()
        Request.Waitall(requests)
        expected = values(gpu, ROOM)
        expected[: 4 * stride : stride] = MPI.COMM_WORLD.bcast(values(gpu, ROOM))[
            : 4 * stride : stride
        ]
        np.testing.assert_array_equal(array.get(), expected)
    assert len(decoded) == 3


@pytest.mark.parametrize("count", [0, None])
def test_nothing_is_moved_where_there_are_no_items(gpu, six, count):
    empty = gpu.nccl.empty(0, "int32")
    gpu.Bcast([empty, count, six["vector"]])
    gpu.Allgather([empty, count, six["indexed"]], [empty, count, six["vector"]])
    right, left = ring(gpu)
    gpu.Sendrecv([empty, count, six["vector"]], right, 0, [empty, count, six["nested"]], left, 0)
    none = INT.Create_contiguous(0).Commit()
    gpu.Bcast([gpu.nccl.empty(4, "int32"), 2, none])
    none.Free()


def test_count_is_inferred_from_the_extent_as_in_mpi4py(gpu, six):
    resized = six["resized"]  # 8 numbers from one to the next
    array = gpu.nccl.asarray(values(gpu, 24))
    gpu.Bcast([array, resized])
    expected = values(gpu, 24).reshape(3, 8)
    expected[:, :6] = MPI.COMM_WORLD.bcast(values(gpu, 24)).reshape(3, 8)[:, :6]
    np.testing.assert_array_equal(array.get(), expected.ravel())


WRONG = {
    "is not a multiple": (lambda a, t: [a, t["resized"]], "no 1 equal blocks of .*give a count"),
    "is too short": (lambda a, t: [a, 3, t["vector"]], "would be in bytes 0 to 119"),
    "begins too late": (lambda a, t: [a, (1, 2), t["vector"]], "would be in bytes 80 to 119"),
    "lies before it": (
        lambda a, t: [a, 1, INT.Create_vector(2, 1, -3)],
        "would be in bytes -12 to 3",
    ),
    "begins outside": (lambda a, t: [a, (0, 9), t["vector"]], "lies outside"),
    "has no extent": (lambda a, t: [a, INT.Create_resized(0, 0)], "a count is needed"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_data_outside_the_array_is_refused(gpu, six, mistake):
    spec, text = WRONG[mistake]
    array = gpu.nccl.asarray(values(gpu, 25))
    with pytest.raises(ValueError, match=text):
        gpu.Bcast(spec(array, six))
    gpu.Barrier()
    np.testing.assert_array_equal(array.get(), values(gpu, 25))


def test_part_outside_the_array_is_refused_with_its_rank(gpu, six):
    array = gpu.nccl.asarray(values(gpu, ROOM))
    counts, displs = [1] * gpu.size, [0] * (gpu.size - 1) + [9]
    with pytest.raises(ValueError, match=f"part of rank {gpu.size - 1}: .* bytes 360 to 399"):
        gpu.Allgatherv([array, 1, INT], [array, (counts, displs), six["vector"]])


@pytest.mark.parametrize("method", ["Allreduce", "Reduce", "Reduce_scatter", "Scan", "Exscan"])
@pytest.mark.parametrize("name", NAMES)
def test_reductions_take_no_derived_datatype(gpu, six, method, name):
    array = gpu.nccl.asarray(values(gpu, gpu.size * ROOM))
    spec = [array, 1, six[name]]
    for sendbuf in (spec, [array, 1, six["vector"]]):
        with pytest.raises(TypeError, match="NCCL has no arithmetic for it"):
            getattr(gpu, f"I{method.lower()}")(sendbuf, spec)
