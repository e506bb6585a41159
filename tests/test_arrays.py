"""Arrays on a GPU, and what is taken for one."""

import gc

import ml_dtypes
import numpy
import pytest
from helpers.values import DTYPES

import pynccl
from pynccl import Communicator
from pynccl.arrays import datatype_of, resolve


@pytest.fixture(scope="module")
def comm():
    with Communicator.init(1, 0, pynccl.get_unique_id(), device=0) as made:
        yield made


class Foreign:
    """An array of another library: only its interface is known."""

    def __init__(self, array, **changes):
        self.keep = array
        self.__dict__["interface"] = {**array.__cuda_array_interface__, **changes}

    @property
    def __cuda_array_interface__(self):
        return self.interface


class Capsule:
    """An array that speaks DLPack only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("shape", [(), (0,), 5, (3, 4), (2, 0, 3)])
@pytest.mark.parametrize("dtype", [*DTYPES.values(), numpy.dtype(bool), numpy.dtype("complex64")])
def test_an_array_keeps_what_was_copied_to_it(comm, dtype, shape):
    values = numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape).astype("float32")
    host = values.astype(dtype)
    array = comm.asarray(host)
    extents = (shape,) if isinstance(shape, int) else shape
    assert (array.shape, array.dtype, array.size) == (extents, dtype, host.size)
    assert array.nbytes == host.nbytes
    assert array.device.device_id == 0
    got = array.get()
    assert got.dtype == dtype
    assert got.tobytes() == host.tobytes()


def test_set_broadcasts_and_casts_like_numpy(comm):
    array = comm.empty((3, 4), "float32")
    array.set(7)
    assert (array.get() == 7).all()
    array.set(numpy.arange(4))
    assert (array.get() == numpy.arange(4)).all()
    with pytest.raises(ValueError, match="broadcast"):
        array.set(numpy.arange(5))


def test_parts_are_views_of_the_same_memory(comm):
    array = comm.asarray(numpy.arange(24, dtype="int32").reshape(6, 4))
    assert (array[1:3].get() == numpy.arange(24).reshape(6, 4)[1:3]).all()
    assert array[-1].shape == (4,)
    assert len(array) == 6
    array[2].set(0)
    assert (array.get()[2] == 0).all()
    assert array.reshape(2, -1).shape == (2, 12)
    assert array.reshape((24,))[3:5].ptr == array.ptr + 12
    assert array.view("int8").shape == (96,)
    assert array[4:2].size == 0


def test_parts_that_would_not_be_contiguous_are_refused(comm):
    array = comm.empty((6, 4))
    with pytest.raises(ValueError, match="step 2"):
        array[::2]
    with pytest.raises(TypeError, match="first axis"):
        array[:, 1]
    with pytest.raises(IndexError, match="6"):
        array[6]
    with pytest.raises(ValueError, match="reshape"):
        array.reshape(5, 5)


def test_a_part_keeps_the_memory_when_the_whole_is_dropped(comm):
    part = comm.asarray(numpy.arange(1000))[10:20]
    gc.collect()
    filler = [comm.asarray(numpy.zeros(1000)) for _ in range(10)]
    assert (part.get() == numpy.arange(10, 20)).all()
    del filler


def test_memory_is_freed_with_the_last_array(comm):
    from cuda.bindings import driver

    def free():
        return driver.cuMemGetInfo()[1]

    before = free()
    array = comm.empty(1 << 20)
    part = array[:10]
    assert free() <= before - 4 * (1 << 20)
    del array
    assert free() <= before - 4 * (1 << 20)
    del part
    assert free() == before


def test_more_memory_than_the_gpu_has_is_a_clear_error(comm):
    with pytest.raises(pynccl.NCCLCudaError, match="OUT_OF_MEMORY"):
        comm.empty(1 << 50, "uint8")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_numpy_shares_the_memory_of_an_emulated_gpu(comm, dtype):
    array = comm.asarray(numpy.zeros((2, 3)), dtype)
    comm.synchronize()
    shared = numpy.asarray(array)
    assert shared.shape == (2, 3)
    assert shared.dtype == dtype
    shared[1, 2] = 1
    assert array.get()[1, 2] == 1
    assert numpy.asarray(array, dtype="float64").dtype == numpy.float64


def test_arrays_of_other_libraries_are_taken_by_their_interface(comm):
    array = comm.asarray(numpy.arange(6, dtype="float32"))
    comm.allreduce(Foreign(array))
    found = resolve(Foreign(array))
    assert (found.ptr, found.count, found.datatype) == (array.ptr, 6, pynccl.FLOAT32)
    strided = Foreign(array, shape=(2, 3), strides=(12, 4))
    assert resolve(strided).count == 6


def test_arrays_of_other_libraries_are_taken_by_dlpack(comm):
    for name, dtype in DTYPES.items():
        array = comm.asarray(numpy.zeros((4, 5)), dtype)
        if "bfloat" in name or "float8" in name:
            with pytest.raises(BufferError, match="dtype"):
                resolve(Capsule(array))
            continue
        found = resolve(Capsule(array))
        assert (found.ptr, found.count, found.device) == (array.ptr, 20, 0)
        assert found.datatype == array._resolved.datatype


def test_an_array_that_is_not_contiguous_is_refused_with_the_copy_to_make(comm):
    array = comm.empty((4, 4))
    transposed = Foreign(array, strides=(4, 16))
    with pytest.raises(ValueError, match=r"sendbuf is not contiguous .* sendbuf\.copy\(\)"):
        comm.allreduce(transposed)


@pytest.mark.parametrize(
    "wrong",
    [numpy.ones(3), numpy.float32(1), numpy.ones(3).astype(ml_dtypes.bfloat16)],
    ids=["array", "scalar", "bfloat16"],
)
def test_host_memory_is_refused_with_the_way_to_the_gpu(comm, wrong):
    with pytest.raises(TypeError, match=r"sendbuf is a numpy.* comm\.asarray\(sendbuf\)"):
        comm.allreduce(wrong)


@pytest.mark.parametrize("wrong", [None, 3, "abc", [1.0, 2.0], object()])
def test_what_is_no_array_is_refused_naming_the_argument(comm, wrong):
    with pytest.raises(TypeError, match="sendbuf"):
        comm.allreduce(wrong)


def test_a_pointer_with_count_and_dtype_is_a_buffer(comm):
    array = comm.asarray(numpy.arange(5, dtype="int16").view("uint8"))
    comm.allreduce((array.ptr, 10, "uint8"))
    comm.allreduce((array.ptr, 5, ml_dtypes.bfloat16))
    comm.allreduce((array.ptr, 2, pynccl.INT32))
    with pytest.raises(TypeError, match="no NCCL type"):
        comm.allreduce((array.ptr, 5, "int16"))
    with pytest.raises(ValueError, match="negative"):
        comm.allreduce((array.ptr, -1, "uint8"))
    with pytest.raises(ValueError, match="null"):
        comm.allreduce((0, 1, "uint8"))


def test_bytes_of_cuda_core_need_a_dtype(comm):
    buffer = comm.device.allocate(64, stream=comm.stream)
    with pytest.raises(TypeError, match=r"\(int\(buffer.handle\), count, dtype\)|without a dtype"):
        comm.allreduce(buffer)
    comm.allreduce((int(buffer.handle), 16, "float32"))
    comm.synchronize()


def test_dtypes_are_known_by_numpy_and_ml_dtypes_and_by_name():
    for name, dtype in DTYPES.items():
        assert datatype_of(dtype) == datatype_of(name) == datatype_of(dtype.type)
    assert datatype_of("bool") == (pynccl.UINT8, 1)
    assert datatype_of(numpy.complex128) == (pynccl.FLOAT64, 2)
    for wrong in ("int16", "datetime64[s]", object, "nonsense"):
        with pytest.raises(TypeError, match="no NCCL type"):
            datatype_of(wrong)


def test_an_array_of_another_gpu_is_refused(comm):
    with Communicator.init(1, 0, pynccl.get_unique_id(), device=1) as other:
        array = other.empty(4)
        with pytest.raises(ValueError, match="sendbuf is on GPU 1, the communicator on GPU 0"):
            comm.allreduce(array)


def test_arrays_outlive_their_communicator():
    comm = Communicator.init(1, 0, pynccl.get_unique_id(), device=0)
    array = comm.asarray(numpy.arange(4))
    comm.destroy()
    assert (array.get() == numpy.arange(4)).all()
