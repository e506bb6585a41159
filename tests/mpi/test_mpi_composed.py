"""pynccl.mpi.Comm's collectives that NCCL has none for, against MPI's."""

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from pynccl.mpi import Comm


@pytest.fixture(scope="module")
def gpu(world):
    return Comm(world)


def values(comm, count, dtype):
    """Small numbers of both signs where there are, different on each rank; products are exact."""
    random = np.random.default_rng(comm.rank)
    low = 0 if np.dtype(dtype).kind == "u" else -2
    return random.integers(low, 3, count).astype(dtype)


DTYPES = ("i1", "u1", "u8", "f4", "f8")
OPS = [(op, dtype) for op in ("SUM", "PROD", "MIN", "MAX") for dtype in DTYPES]


@pytest.mark.parametrize(("op", "dtype"), [*OPS, ("SUM", "c16")])
@pytest.mark.parametrize("name", ["Scan", "Exscan", "Iscan", "Iexscan"])
def test_prefix_reductions_equal_mpi(gpu, name, op, dtype):
    for count in (0, 5):
        mine = values(gpu, count, dtype)
        host = [mine.copy(), np.full(count, 7, dtype), mine.copy()]
        there = [gpu.nccl.asarray(array) for array in host]
        for comm, (send, recv, both) in ((MPI.COMM_WORLD, host), (gpu, there)):
            for given in (send, MPI.IN_PLACE):
                into = both if given is MPI.IN_PLACE else recv
                request = getattr(comm, name)(given, into, getattr(MPI, op))
                if request is not None:
                    request.Wait()
        for expected, found in zip(host[:2], there):
            np.testing.assert_array_equal(found.get(), expected)
        if "ex" not in name.lower() or gpu.rank:  # rank 0 of Exscan in place is MPI's to choose
            np.testing.assert_array_equal(there[2].get(), host[2])


@pytest.mark.parametrize("name", ["Scan", "Exscan"])
@pytest.mark.parametrize("extreme", [np.inf, -np.inf])
def test_prefix_minimum_and_maximum_keep_infinities(gpu, name, extreme):
    for op in ("MIN", "MAX"):
        host, send = np.full(2, 3.0), np.array([extreme, gpu.rank])
        there = gpu.nccl.asarray(host)
        getattr(MPI.COMM_WORLD, name)(send, host, getattr(MPI, op))
        getattr(gpu, name)(gpu.nccl.asarray(send), there, getattr(MPI, op))
        np.testing.assert_array_equal(there.get(), host)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
def test_prefix_reductions_of_short_numbers(gpu, op, dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    every = np.array([[1, rank + 1, -2] for rank in range(gpu.size)], "f4").astype(dtype)
    there = gpu.nccl.asarray(every[gpu.rank])
    gpu.Scan(MPI.IN_PLACE, there, getattr(MPI, op))
    how = {"SUM": np.sum, "PROD": np.prod, "MIN": np.min, "MAX": np.max}[op]
    expected = how(every[: gpu.rank + 1].astype("f4"), axis=0)
    np.testing.assert_array_equal(there.get().astype("f4"), expected)


def test_prefix_of_truth_values_equals_mpi(gpu):
    mine = np.array([gpu.rank != 1, gpu.rank == 1, True, False])
    for op in (MPI.LAND, MPI.LOR):
        host, there = np.zeros(4, bool), gpu.nccl.empty(4, "bool")
        MPI.COMM_WORLD.Scan(mine, host, op)
        gpu.Scan(gpu.nccl.asarray(mine), there, op)
        np.testing.assert_array_equal(there.get(), host)


@pytest.mark.parametrize("name", ["Alltoallw", "Ialltoallw"])
@pytest.mark.parametrize("in_place", [False, True])
def test_exchange_with_a_datatype_for_each_rank_equals_mpi(gpu, name, in_place):
    n, mine = gpu.size, gpu.rank
    kinds = [MPI.BYTE, MPI.INT, MPI.DOUBLE, MPI.INT.Create_contiguous(3).Commit()]
    # Both ends of a pair have the same datatype and count, so that it may be in place.
    types = [kinds[(mine + other) % 4] for other in range(n)]
    counts = [(mine + other) % 3 for other in range(n)]
    starts = [64 * other for other in range(n)]
    rng = np.random.default_rng(mine)
    host = [rng.integers(0, 100, 64 * n).astype("u1"), np.zeros(64 * n, "u1")]
    there = [gpu.nccl.asarray(array) for array in host]
    for comm, (send, recv) in ((MPI.COMM_WORLD, host), (gpu, there)):
        into = [send if in_place else recv, (counts, starts), types]
        given = MPI.IN_PLACE if in_place else [send, counts, starts, types]
        request = getattr(comm, name)(given, into)
        if request is not None:
            request.Wait()
    for expected, found in zip(host, there):
        np.testing.assert_array_equal(found.get(), expected)
    kinds[3].Free()


@pytest.mark.parametrize(
    ("counts", "starts", "types", "message"),
    [
        ([1], [0], None, "datatypes must be a list of"),
        ([9], [0], MPI.INT, "the part of rank 0 reaches to 36"),
        ([1], [14], MPI.INT, "the part of rank 0 reaches to 18"),
    ],
    ids=["types", "counts", "displacements"],
)
def test_what_does_not_fit_is_refused(gpu, counts, starts, types, message):
    array = gpu.nccl.empty(4, "int32")
    types = [types] * gpu.size if types else []
    spec = [array, counts * gpu.size, starts * gpu.size, types]
    with pytest.raises(ValueError, match=message):
        gpu.Alltoallw(spec, spec)
