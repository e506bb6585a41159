"""What one real GPU is enough to show: make test-gpu."""

import numpy as np
import pytest

import pynccl
from pynccl import library

pytestmark = pytest.mark.gpu


@pytest.fixture
def comm():
    with pynccl.Communicator.init_all(1)[0] as communicator:
        yield communicator


def test_real_libraries_are_loaded(comm):
    assert library.load().backend == "nccl"
    assert library.load().version >= 21800
    assert comm.ptr != 0


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", "float64", "complex64"])
def test_reductions_over_one_rank_leave_the_elements(comm, dtype):
    elements = np.arange(1000).astype(dtype)
    x = comm.asarray(elements)
    comm.allreduce(x, op=pynccl.SUM)
    assert np.array_equal(x.get(), elements)
    part = comm.reduce_scatter(x, comm.empty(1000, dtype))
    assert np.array_equal(part.get(), elements)


def test_movements_over_one_rank_copy_the_elements(comm):
    elements = np.arange(1000, dtype=np.float32)
    x = comm.asarray(elements)
    for move in (comm.allgather, comm.alltoall, comm.broadcast, comm.gather, comm.scatter):
        assert np.array_equal(move(x, comm.empty(1000)).get(), elements), move.__name__
    received = comm.sendrecv(x, 0, comm.empty(1000), 0)
    assert np.array_equal(received.get(), elements)


def test_arithmetic_and_reductions_keep_their_order(comm):
    pytest.importorskip("cupy", reason="needs CuPy: pip install cupy-cuda13x")
    x = comm.asarray(np.zeros(1 << 24, np.float32))
    for step in range(1, 51):
        with comm.compute() as xp:
            y = xp.asarray(x)
            y += 1
        comm.allreduce(x)
        with comm.compute() as xp:
            assert float(y.min()) == float(y.max()) == step


def test_second_stream_waits_for_the_arrays_own(comm):
    stream = comm.device.create_stream()
    x = comm.asarray(np.arange(1 << 20, dtype=np.float32))
    for _ in range(50):
        comm.allreduce(x, stream=stream)
        comm.stream.wait(stream)
    assert np.array_equal(x.get(), np.arange(1 << 20, dtype=np.float32))
