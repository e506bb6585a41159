"""Where MPI's datatypes have their data, and copies to and from it, against MPI's own packing."""

import numpy as np
import pytest
from helpers.datatypes import DatatypeMaker
from mpi4py import MPI

from pynccl.mpi import packing
from pynccl.mpi.layout import layout_of

PAIRS = ["SHORT_INT", "INT_INT", "LONG_INT", "FLOAT_INT", "DOUBLE_INT", "LONG_DOUBLE_INT"]
MARGIN = 3
UNTOUCHED = 201
# MPICH 5.0.2 says of some distributed arrays that their data begins at 0.
TELLS_TRUE_BOUNDS = "MPICH" not in MPI.Get_library_version()


class Items:
    """Items of a datatype in host memory, for MPI, with a margin before and after them.

    Attributes:
        memory: bytes
        first: where the first item's address is in it
        packed: what MPI makes of the items
    """

    def __init__(self, datatype, number, seed):
        low = min(0, datatype.true_lb, datatype.true_lb + (number - 1) * datatype.extent)
        high = datatype.true_lb + datatype.true_extent + max(0, number - 1) * datatype.extent
        self.first = MARGIN - low
        self.memory = np.random.default_rng(seed).integers(
            0, 200, self.first + max(0, high) + MARGIN, dtype=np.uint8
        )
        # Pack reckons how many items there are from the extent.
        items = datatype.Create_contiguous(number)
        self._all = items.Create_resized(0, len(self.memory) - self.first).Commit()
        items.Free()
        self.packed = np.zeros(number * datatype.size, np.uint8)
        self._all.Pack(self.memory[self.first :], self.packed, 0, MPI.COMM_SELF)

    def unpacked(self):
        """Return memory in which MPI has put the data, and changed nothing else."""
        memory = np.full_like(self.memory, UNTOUCHED)
        self._all.Unpack(self.packed, 0, memory[self.first :], MPI.COMM_SELF)
        return memory

    def free(self):
        self._all.Free()


def check_packing(comm, datatype, number, seed, what):
    """Compare packing and unpacking on the GPU with MPI's on the host."""
    layout = layout_of(datatype)
    assert (layout.size, layout.extent) == (datatype.size, datatype.extent), what
    low, high = datatype.true_lb, datatype.true_lb + datatype.true_extent
    if TELLS_TRUE_BOUNDS:
        assert (layout.start, layout.end) == (low, high), what
    assert low <= layout.start <= layout.end <= high, what
    items = Items(datatype, number, seed)
    array, packed = comm.asarray(items.memory), comm.empty(items.packed.size, "uint8")
    packing.pack(layout, number, array.ptr + items.first, packed.ptr, comm._queue)
    np.testing.assert_array_equal(packed.get(), items.packed, what)
    array.set(np.full_like(items.memory, UNTOUCHED))
    packing.unpack(layout, packed.nbytes, array.ptr + items.first, packed.ptr, comm._queue)
    np.testing.assert_array_equal(array.get(), items.unpacked(), what)
    items.free()


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_random_nested_datatypes_are_packed_as_by_mpi(comm, depth, number):
    for seed in range(60):
        maker = DatatypeMaker([seed, depth, number])
        datatype, steps = maker.make(depth)
        check_packing(comm, datatype, number, seed, f"{steps}, seed {seed}")
        maker.free()


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_packed_as_by_mpi(comm, name):
    check_packing(comm, getattr(MPI, name), 3, 1, name)


@pytest.mark.parametrize("stride", [-12, 0, 2, 4, 12])
def test_any_stride_is_packed_as_by_mpi(comm, stride):
    """Rows that overlap, or run backwards, cannot be one copy of the driver's."""
    datatype = MPI.INT.Create_hvector(5, 1, stride).Commit()
    layout = layout_of(datatype)
    items = Items(datatype, 2, 1)
    array, packed = comm.asarray(items.memory), comm.empty(items.packed.size, "uint8")
    packing.pack(layout, 2, array.ptr + items.first, packed.ptr, comm._queue)
    np.testing.assert_array_equal(packed.get(), items.packed)
    items.free()
    datatype.Free()


@pytest.mark.parametrize(
    "make",
    [
        lambda: MPI.INT.Create_contiguous(0),
        lambda: MPI.INT.Create_vector(3, 0, 2),
        lambda: MPI.Datatype.Create_struct([0, 0], [0, 8], [MPI.INT, MPI.DOUBLE]),
        lambda: MPI.INT.Create_contiguous(0).Create_resized(0, 12),
    ],
)
def test_a_datatype_without_data_is_packed_to_nothing(comm, make):
    datatype = make()
    layout = layout_of(datatype)
    assert (layout.size, layout.extent) == (0, datatype.extent)
    assert layout.reach(7) == (0, 0)
    packing.pack(layout, 7, 0, 0, comm._queue)
    packing.unpack(layout, 0, 0, 0, comm._queue)


def test_a_part_of_the_data_is_unpacked_to_where_mpi_has_it(comm):
    datatype = MPI.INT.Create_vector(3, 2, 3).Commit()
    layout = layout_of(datatype)
    items = Items(datatype, 2, 1)
    everything = items.unpacked()
    packed = comm.asarray(items.packed)
    places = np.flatnonzero(everything != UNTOUCHED)  # in the order of the type map, here
    for nbytes in range(packed.nbytes + 1):
        array = comm.asarray(np.full_like(items.memory, UNTOUCHED))
        packing.unpack(layout, nbytes, array.ptr + items.first, packed.ptr, comm._queue)
        expected = np.full_like(items.memory, UNTOUCHED)
        expected[places[:nbytes]] = items.packed[:nbytes]
        np.testing.assert_array_equal(array.get(), expected)
    items.free()
    datatype.Free()


@pytest.fixture
def copies(monkeypatch):
    """The names of the driver's functions that copies were made by."""
    from cuda.bindings import driver

    called = []

    def noting(name):
        original = getattr(driver, name)

        def call(*args):
            called.append(name)
            return original(*args)

        return call

    for name in ("cuMemcpy2DAsync", "cuMemcpyDtoDAsync"):
        monkeypatch.setattr(driver, name, noting(name))
    return called


@pytest.mark.parametrize(
    ("make", "number", "expected"),
    [
        pytest.param(lambda: MPI.INT.Create_vector(50, 1, 60), 1, 1, id="column"),
        pytest.param(
            lambda: MPI.INT.Create_vector(50, 1, 60).Create_resized(0, 4), 3, 3, id="columns"
        ),
        pytest.param(lambda: MPI.SHORT_INT, 100, 2, id="pairs"),
        pytest.param(
            lambda: MPI.INT.Create_subarray([9, 9], [4, 5], [2, 2]), 1, 1, id="part of a matrix"
        ),
        pytest.param(
            lambda: MPI.INT.Create_subarray([3, 9, 9], [2, 4, 5], [1, 2, 2]), 1, 2, id="of a cube"
        ),
        pytest.param(lambda: MPI.INT.Create_indexed([1, 2, 1], [0, 3, 9]), 100, 3, id="irregular"),
        pytest.param(lambda: MPI.INT.Create_hvector(5, 1, -8), 1, 5, id="backwards"),
    ],
)
def test_regular_data_is_packed_by_few_copies(comm, copies, make, number, expected):
    layout = layout_of(make())
    low, high = layout.reach(number)
    array = comm.empty(high - low, "uint8")
    packed = comm.empty(number * layout.size, "uint8")
    copies.clear()
    packing.pack(layout, number, array.ptr - low, packed.ptr, comm._queue)
    assert len(copies) == expected


def test_decoding_leaves_the_datatype_as_it_was():
    base = MPI.INT.Create_vector(2, 1, 3)
    both = MPI.Datatype.Create_struct([1, 1], [0, 100], [base, base])
    for _ in range(5):
        assert layout_of(both).size == 16
    assert base.decode()[1:] == ("VECTOR", {"count": 2, "blocklength": 1, "stride": 3})
    both.Free()
    assert layout_of(base).size == 8
    base.Free()


def test_long_runs_are_not_taken_apart():
    """A layout is as large as its gaps are many, not as its data."""
    wide = MPI.DOUBLE.Create_contiguous(10**8)
    vector = wide.Create_hvector(3, 2, 10**10)
    layout = layout_of(vector)
    assert layout.runs.lengths.tolist() == [16 * 10**8] * 3
    assert layout.runs.offsets.tolist() == [0, 10**10, 2 * 10**10]
    vector.Free()
    wide.Free()
