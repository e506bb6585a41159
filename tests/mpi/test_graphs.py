"""Collectives in CUDA graphs: captured once, replayed many times."""

import ctypes

import numpy
import pytest


@pytest.fixture
def stream(comm):
    made = comm.device.create_stream()
    yield made
    made.close()


def captured(stream, work):
    """Return the executable graph of what ``work`` queues on the stream."""
    from cuda.bindings import driver

    def call(answer):
        assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
        return answer[1] if len(answer) > 1 else None

    handle = stream.handle
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    call(driver.cuStreamBeginCapture(handle, mode))
    work()
    graph = call(driver.cuStreamEndCapture(handle))
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphDestroy(graph))
    return lambda: call(driver.cuGraphLaunch(executable, handle))


@pytest.mark.parametrize("count", [10, 50000])
def test_a_captured_allreduce_replays(comm, stream, count):
    array = comm.asarray(numpy.ones(count, "float64"))
    comm.synchronize()
    replay = captured(stream, lambda: comm.allreduce(array, stream=stream))
    assert (array.get() == 1).all()
    for _ in range(5):
        replay()
    stream.sync()
    assert (array.get() == comm.nranks**5).all()


def test_a_graph_of_several_collectives_and_messages_replays_in_order(comm, stream):
    n, rank = comm.nranks, comm.rank
    mine = comm.asarray(numpy.full(1000, rank, "float32"))
    everyone = comm.empty(1000 * n)
    total = comm.empty(1000)
    passed = comm.empty(1000)
    comm.synchronize()

    def work():
        comm.allgather(mine, everyone, stream=stream)
        comm.reduce_scatter(everyone, total, stream=stream)
        comm.sendrecv(total, (rank + 1) % n, passed, (rank - 1) % n, stream=stream)

    replay = captured(stream, work)
    for turn in range(20):
        mine.set(numpy.full(1000, rank + turn))
        comm.synchronize()
        replay()
        stream.sync()
        assert (passed.get() == n * ((rank - 1) % n + turn)).all()


def test_operations_between_replays_keep_their_place(comm, stream):
    array = comm.asarray(numpy.ones(3000, "float64"))
    comm.synchronize()
    replay = captured(stream, lambda: comm.allreduce(array, stream=stream))
    for _ in range(4):
        replay()
        comm.allreduce(array, stream=stream)
    stream.sync()
    assert (array.get() == comm.nranks**8).all()


def test_a_capture_between_two_operations_leaves_them_their_order(comm, stream):
    others = [comm.device.create_stream() for _ in range(2)]
    first, last = comm.asarray(numpy.ones(1000)), comm.asarray(numpy.ones(50, "int32"))
    kept = comm.asarray(numpy.ones(7))
    comm.synchronize()
    if comm.rank == 0:
        sleep_on(others[0], microseconds=50_000)
    comm.allreduce((first.ptr, 1000, "float64"), stream=others[0])
    captured(stream, lambda: comm.allreduce(kept, stream=stream))
    comm.allreduce((last.ptr, 50, "int32"), stream=others[1])
    for other in others:
        other.sync()
        other.close()
    assert (first.get() == comm.nranks).all()
    assert (last.get() == comm.nranks).all()


def sleep_on(stream, microseconds):
    """Keep a stream busy with a host function, which is C's, as it is to run without Python."""
    from cuda.bindings import driver

    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    assert driver.cuLaunchHostFunc(stream.handle, usleep, microseconds)[0] == 0


def test_a_replay_and_what_another_stream_brings_run_in_the_order_of_their_calls(comm, stream):
    from cuda.bindings import driver

    first = comm.asarray(numpy.ones(100))
    second = comm.asarray(numpy.ones(50))
    comm.synchronize()
    replay = captured(stream, lambda: comm.allreduce(first, stream=stream))
    pause = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    if comm.rank % 2:
        assert driver.cuLaunchHostFunc(stream.handle, pause, 50_000)[0] == 0
    replay()
    comm.allreduce(second)
    replay()
    stream.sync()
    assert (first.get() == comm.nranks**2).all()
    assert (second.get() == comm.nranks).all()
