"""Collectives with a count for each rank, against numpy on the parts of all ranks."""

import os

import numpy as np
import pytest

import pynccl
from pynccl.arrays import numpy_dtype

DTYPES = [
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "bool", "complex64", "complex128"),
]
# What each rank has, and how far apart the parts lie beyond that; None: without displs.
LAYOUTS = {
    "different counts": (lambda rank: rank + 1, None),
    "zero on the first": (lambda rank: 3 * rank, None),
    "zero on the last": (lambda rank: 5 if rank == 0 else 0, None),
    "zero everywhere": (lambda rank: 0, None),
    "large": (lambda rank: 40_000 + 1111 * rank, None),
    "gaps": (lambda rank: 2 + rank % 2, 3),
    "gaps and zeros": (lambda rank: 2 * (rank % 2), 2),
    "reversed": (lambda rank: rank + 2, "reversed"),
}


@pytest.fixture(params=LAYOUTS)
def layout(request, comm):
    """Counts, displacements (or None), the starts that these mean, and the size of it all."""
    count, gap = LAYOUTS[request.param]
    counts = [count(rank) for rank in range(comm.nranks)]
    order = list(range(comm.nranks))
    if gap == "reversed":
        order.reverse()
    starts, at = [0] * comm.nranks, 0
    for rank in order:
        starts[rank] = at
        at += counts[rank] + (gap if isinstance(gap, int) else 0)
    return counts, None if gap is None else starts, starts, at


def values(rank, count, dtype):
    """Return what a rank sends: numbers whose sums every type has, known on every rank."""
    random = np.random.default_rng(100 + rank)
    numbers = random.integers(0, 2, count) if dtype == "bool" else random.integers(0, 3, count)
    return numbers.astype(numpy_dtype(dtype))


def filled(size, dtype):
    """Return a buffer in which untouched places can be told."""
    return np.full(size, 1, "int8").astype(numpy_dtype(dtype))


def assert_equal(found, expected):
    np.testing.assert_array_equal(
        found.get().view(np.uint8), np.ascontiguousarray(expected).view(np.uint8)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_allgatherv_puts_the_parts_in_their_places(comm, layout, dtype):
    counts, displs, starts, size = layout
    expected = filled(size, dtype)
    for rank, (start, count) in enumerate(zip(starts, counts)):
        expected[start : start + count] = values(rank, count, dtype)
    recv = comm.asarray(filled(size, dtype))
    send = comm.asarray(values(comm.rank, counts[comm.rank], dtype))
    assert comm.allgatherv(send, recv, counts, displs) is recv
    assert_equal(recv, expected)

    start, count = starts[comm.rank], counts[comm.rank]
    in_place = filled(size, dtype)
    in_place[start : start + count] = values(comm.rank, count, dtype)
    recv = comm.asarray(in_place)
    comm.allgatherv(recv[start : start + count], recv, counts, displs)
    assert_equal(recv, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gatherv_collects_the_parts_on_the_root(comm, layout, dtype):
    counts, displs, starts, size = layout
    for root in range(comm.nranks):
        send = comm.asarray(values(comm.rank, counts[comm.rank], dtype))
        if comm.rank != root:
            assert comm.gatherv(send, None, None, root=root) is None
            continue
        expected = filled(size, dtype)
        for rank, (start, count) in enumerate(zip(starts, counts)):
            expected[start : start + count] = values(rank, count, dtype)
        recv = comm.asarray(filled(size, dtype))
        comm.gatherv(send, recv, counts, displs, root)
        assert_equal(recv, expected)
    comm.synchronize()


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatterv_hands_out_the_roots_parts(comm, layout, dtype):
    counts, displs, starts, size = layout
    start, count = starts[comm.rank], counts[comm.rank]
    for root in range(comm.nranks):
        recv = comm.asarray(filled(count, dtype))
        if comm.rank == root:
            comm.scatterv(comm.asarray(values(root, size, dtype)), recv, counts, displs, root)
        else:
            comm.scatterv(None, recv, None, root=root)
        assert_equal(recv, values(root, size, dtype)[start : start + count])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gap", [None, 0, 2])
@pytest.mark.parametrize("zero", [False, True])
def test_alltoallv_exchanges_parts_of_any_size(comm, dtype, gap, zero):
    n, rank = comm.nranks, comm.rank
    table = [[0 if zero and (a + b) % 2 else (2 * a + b) % 4 for b in range(n)] for a in range(n)]
    sendcounts, recvcounts = table[rank], [row[rank] for row in table]

    def places(counts):
        starts, at = [], 0
        for count in counts:
            starts.append(at)
            at += count + (gap or 0)
        return starts, at

    sent, send_size = places(sendcounts)
    got, recv_size = places(recvcounts)
    expected = filled(recv_size, dtype)
    for source in range(n):
        theirs, size = places(table[source])
        whole = values(source, size, dtype)
        part = whole[theirs[rank] : theirs[rank] + recvcounts[source]]
        expected[got[source] : got[source] + recvcounts[source]] = part
    recv = comm.asarray(filled(recv_size, dtype))
    send = comm.asarray(values(rank, send_size, dtype))
    displs = (None, None) if gap is None else (sent, got)
    comm.alltoallv(send, sendcounts, recv, recvcounts, *displs)
    assert_equal(recv, expected)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
@pytest.mark.parametrize("op", ["SUM", "MIN", "MAX"])
@pytest.mark.parametrize("count", [lambda r: r + 1, lambda r: 2 * (r % 2), lambda r: 7 if r else 0])
def test_reduce_scatterv_leaves_each_rank_its_part(comm, dtype, op, count):
    if "complex" in dtype and op != "SUM":
        pytest.skip("complex numbers have no order")
    counts = [count(rank) for rank in range(comm.nranks)]
    start = sum(counts[: comm.rank])
    mine = slice(start, start + counts[comm.rank])
    wide = "complex128" if "complex" in dtype else "float64"
    all_of_them = [values(r, sum(counts), dtype).astype(wide) for r in range(comm.nranks)]
    how = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum}[op]
    expected = how.reduce(all_of_them)[mine].astype(numpy_dtype(dtype))  # small: no rounding
    send = comm.asarray(values(comm.rank, sum(counts), dtype))
    recv = comm.asarray(filled(counts[comm.rank], dtype))
    comm.reduce_scatterv(send, recv, counts, getattr(pynccl, op))
    assert_equal(recv, expected)


WRONG = {
    "counts for": lambda c, a: c.allgatherv(a, a, [1] * (c.nranks + 1)),
    "must not be negative": lambda c, a: c.allgatherv(a, a, [-1] * c.nranks),
    "parts reach to": lambda c, a: c.allgatherv(a, a, [4 * c.nranks + 1] * c.nranks),
    "must be one for each": lambda c, a: c.allgatherv(a, a, [4] * c.nranks, [0] * (c.nranks + 1)),
    "counts says": lambda c, a: c.allgatherv(a[:1], c.empty(4 * c.nranks), [4] * c.nranks),
    "counts is None on the root": lambda c, a: c.gatherv(a, a, None, root=c.rank),
    "they must be equal": lambda c, a: c.alltoallv(
        a, [0] * c.nranks, c.empty(4, "int8"), [0] * c.nranks
    ),
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_does_not_fit_is_refused_before_anything_is_launched(comm, reason):
    a = comm.asarray(np.arange(4 * comm.nranks, dtype="float32"))
    with pytest.raises((TypeError, ValueError), match=reason):
        WRONG[reason](comm, a)
    comm.allreduce(a)  # the communicator goes on
    assert a.get()[1] == comm.nranks


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    "PYNCCL_TEST_LARGE" not in os.environ,
    reason="needs 5 GB of memory for each rank, and PYNCCL_TEST_LARGE in the environment",
)
@pytest.mark.parametrize("operation", ["broadcast", "allreduce", "gatherv", "scatterv", "sendrecv"])
def test_places_beyond_two_to_the_31_elements(comm, operation):
    """A part that begins beyond 2**31 elements, and one that is longer than that."""
    n, rank = comm.nranks, comm.rank
    size = 2**31 + 4099
    marks = [0, 2**31 - 1, 2**31, size - 1]

    def look(array, places):
        return [int(array[place : place + 1].get()[0]) for place in places]

    def mark(array, places, value):
        for place in places:
            array[place : place + 1].set(np.array([value], "int8"))

    a = comm.empty(size, "int8")
    mark(a, marks, rank + 1)
    if operation == "broadcast":
        comm.broadcast(a, root=n - 1)
        assert look(a, marks) == [n] * 4
    elif operation == "allreduce":
        comm.allreduce(a)
        assert look(a, marks) == [n * (n + 1) // 2] * 4
    elif operation == "sendrecv":
        b = comm.empty(size, "int8")
        comm.sendrecv(a, (rank + 1) % n, b, (rank - 1) % n)
        assert look(b, marks) == [(rank - 1) % n + 1] * 4
    else:
        tail = 11
        counts = [size - tail * (n - 1)] + [tail] * (n - 1)
        starts = [sum(counts[:other]) for other in range(n)]
        ends = [start + count - 1 for start, count in zip(starts, counts)]
        mine = a if n == 1 else comm.empty(counts[rank], "int8")
        if operation == "gatherv":
            mark(mine, [0, counts[rank] - 1], rank + 1)
            comm.gatherv(mine, a, counts, root=0)
            if rank == 0:
                assert look(a, starts) == look(a, ends) == list(range(1, n + 1))
        else:
            mark(a, starts, 5)
            mark(a, ends, 7)
            comm.scatterv(a, mine, counts, root=0)
            assert look(mine, [0, counts[rank] - 1]) == [5, 7]
    comm.synchronize()
