"""Stream capture and CUDA graphs on the emulated libcuda."""

import ctypes
import threading

import numpy as np
import pytest

import pynccl.library

pynccl.library.load()

from cuda.bindings import driver
from cuda.core import Device

Result = driver.CUresult
Mode = driver.CUstreamCaptureMode
GLOBAL, RELAXED = Mode.CU_STREAM_CAPTURE_MODE_GLOBAL, Mode.CU_STREAM_CAPTURE_MODE_RELAXED
THREAD_LOCAL = Mode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def call(function, *arguments):
    result, *values = function(*arguments)
    assert result == Result.CUDA_SUCCESS, f"{function.__name__}: {result.name}"
    return values[0] if len(values) == 1 else tuple(values)


def result_of(function, *arguments):
    return function(*arguments)[0]


def launch(stream, function):
    # Not by cuda.bindings: its release 12.9 frees what it wraps around a function at the first run.
    libcuda = ctypes.CDLL("libcuda.so.1")
    assert libcuda.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), function, None) == 0


def end(stream, flags=0):
    """Ends the capture and returns the executable graph and the number of its nodes."""
    graph = call(driver.cuStreamEndCapture, stream)
    nodes = call(driver.cuGraphGetNodes, graph)[1]
    execution = call(driver.cuGraphInstantiate, graph, flags)
    call(driver.cuGraphDestroy, graph)
    return execution, nodes


@pytest.fixture(autouse=True)
def context():
    call(driver.cuInit, 0)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, 0))
    yield
    call(driver.cuCtxSynchronize)
    call(driver.cuCtxSetCurrent, None)
    call(driver.cuDevicePrimaryCtxRelease, 0)


@pytest.fixture
def streams():
    made = [call(driver.cuStreamCreate, 1) for _ in range(3)]
    yield made
    for stream in made:
        call(driver.cuStreamDestroy, stream)


def test_captured_work_runs_at_each_launch_and_not_before(streams):
    stream = streams[0]
    values = np.arange(100, dtype=np.int32)
    back = np.zeros_like(values)
    pointer = call(driver.cuMemAlloc, values.nbytes)
    seen = []
    function = HOST_FUNCTION(lambda _: seen.append(int(back[0])))
    call(driver.cuStreamBeginCapture, stream, GLOBAL)
    call(driver.cuMemcpyHtoDAsync, pointer, values.ctypes.data, values.nbytes, stream)
    call(driver.cuMemsetD32Async, pointer, 7, 1, stream)
    call(driver.cuMemcpyDtoHAsync, back.ctypes.data, pointer, values.nbytes, stream)
    launch(stream, function)
    execution, nodes = end(stream)
    assert nodes == 4 and seen == [] and not back.any()
    for round_ in range(1, 4):
        values[1:] = round_
        call(driver.cuGraphLaunch, execution, stream)
        call(driver.cuStreamSynchronize, stream)
        assert seen == [7] * round_
        assert (back[1:] == round_).all()
    call(driver.cuGraphExecDestroy, execution)
    call(driver.cuMemFree, pointer)


def test_the_nodes_tell_their_kind(streams):
    stream = streams[0]
    pointer = call(driver.cuMemAlloc, 64)
    function = HOST_FUNCTION(lambda _: None)
    call(driver.cuStreamBeginCapture, stream, GLOBAL)
    call(driver.cuMemsetD8Async, pointer, 1, 32, stream)
    other = driver.CUdeviceptr(int(pointer) + 32)
    call(driver.cuMemcpyDtoDAsync, other, pointer, 32, stream)
    launch(stream, function)
    graph = call(driver.cuStreamEndCapture, stream)
    nodes, count = call(driver.cuGraphGetNodes, graph, 3)
    kind = driver.CUgraphNodeType
    assert [call(driver.cuGraphNodeGetType, node) for node in nodes[:count]] == [
        kind.CU_GRAPH_NODE_TYPE_MEMSET,
        kind.CU_GRAPH_NODE_TYPE_MEMCPY,
        kind.CU_GRAPH_NODE_TYPE_HOST,
    ]
    assert call(driver.cuGraphGetRootNodes, graph)[1] == 1
    call(driver.cuGraphDestroy, graph)
    call(driver.cuMemFree, pointer)


def test_branches_of_other_streams_run_side_by_side_and_are_joined(streams):
    first, second, _ = streams
    fork, join = (call(driver.cuEventCreate, 0) for _ in range(2))
    seen = []
    meeting = threading.Barrier(2)  # passed only if both branches are at it at once
    before = HOST_FUNCTION(lambda _: seen.append("before"))
    branch = HOST_FUNCTION(lambda _: meeting.wait(30))
    after = HOST_FUNCTION(lambda _: seen.append("after"))
    call(driver.cuStreamBeginCapture, first, GLOBAL)
    launch(first, before)
    call(driver.cuEventRecord, fork, first)
    call(driver.cuStreamWaitEvent, second, fork, 0)
    launch(first, branch)
    launch(second, branch)
    call(driver.cuEventRecord, join, second)
    call(driver.cuStreamWaitEvent, first, join, 0)
    launch(first, after)
    execution, nodes = end(first)
    assert nodes == 4
    for _ in range(3):
        call(driver.cuGraphLaunch, execution, first)
    call(driver.cuStreamSynchronize, first)
    assert seen == ["before", "after"] * 3
    call(driver.cuGraphExecDestroy, execution)


def test_launches_in_different_streams_do_not_overlap(streams):
    running, most = [0], [0]

    def enter(_):
        running[0] += 1
        most[0] = max(most[0], running[0])
        threading.Event().wait(0.01)
        running[0] -= 1

    function = HOST_FUNCTION(enter)
    call(driver.cuStreamBeginCapture, streams[0], GLOBAL)
    launch(streams[0], function)
    execution, _ = end(streams[0])
    for stream in streams:
        call(driver.cuGraphLaunch, execution, stream)
    call(driver.cuGraphExecDestroy, execution)  # with the launches still to run
    call(driver.cuCtxSynchronize)
    assert (running, most) == ([0], [1])


def test_a_branch_that_is_not_joined_spoils_the_capture(streams):
    first, second, _ = streams
    fork = call(driver.cuEventCreate, 0)
    function = HOST_FUNCTION(lambda _: None)
    call(driver.cuStreamBeginCapture, first, GLOBAL)
    call(driver.cuEventRecord, fork, first)
    call(driver.cuStreamWaitEvent, second, fork, 0)
    launch(second, function)
    unmatched = result_of(driver.cuStreamEndCapture, second)
    assert unmatched == Result.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
    unjoined = result_of(driver.cuStreamEndCapture, first)
    assert unjoined == Result.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    for stream in (first, second):
        status = call(driver.cuStreamIsCapturing, stream)
        assert status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


def test_waiting_for_a_capturing_stream_is_refused_and_spoils_the_capture(streams):
    stream = streams[0]
    call(driver.cuStreamBeginCapture, stream, RELAXED)
    unsupported = Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert result_of(driver.cuStreamSynchronize, stream) == unsupported
    status = call(driver.cuStreamIsCapturing, stream)
    assert status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED
    spoilt = result_of(driver.cuStreamEndCapture, stream)
    assert spoilt == Result.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED


def test_the_default_stream_cannot_be_used_beside_a_capture_that_it_orders():
    stream = call(driver.cuStreamCreate, 0)
    function = HOST_FUNCTION(lambda _: None)
    call(driver.cuStreamBeginCapture, stream, RELAXED)
    implicit = Result.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert result_of(driver.cuLaunchHostFunc, 0, address, 0) == implicit
    spoilt = result_of(driver.cuStreamEndCapture, stream)
    assert spoilt == Result.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    call(driver.cuStreamDestroy, stream)


def test_a_captured_event_cannot_be_waited_for_by_the_host(streams):
    event = call(driver.cuEventCreate, 0)
    call(driver.cuStreamBeginCapture, streams[0], RELAXED)
    call(driver.cuEventRecord, event, streams[0])
    assert result_of(driver.cuEventQuery, event) == Result.CUDA_ERROR_CAPTURED_EVENT
    assert result_of(driver.cuEventSynchronize, event) == Result.CUDA_ERROR_CAPTURED_EVENT
    execution, _ = end(streams[0])
    call(driver.cuGraphExecDestroy, execution)


def test_two_captures_are_not_merged(streams):
    event = call(driver.cuEventCreate, 0)
    call(driver.cuStreamBeginCapture, streams[0], RELAXED)
    call(driver.cuStreamBeginCapture, streams[1], RELAXED)
    again = result_of(driver.cuStreamBeginCapture, streams[0], RELAXED)
    assert again == Result.CUDA_ERROR_ILLEGAL_STATE
    call(driver.cuEventRecord, event, streams[0])
    merge = result_of(driver.cuStreamWaitEvent, streams[1], event, 0)
    assert merge == Result.CUDA_ERROR_STREAM_CAPTURE_MERGE
    for stream in streams[:2]:
        driver.cuStreamEndCapture(stream)


def test_the_mode_says_what_a_capture_forbids(streams):
    unsupported = Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    elsewhere = []

    def allocate_elsewhere():
        call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, 0))
        result, pointer = driver.cuMemAlloc(8)
        elsewhere.append(result)
        driver.cuMemFree(pointer or 0)
        call(driver.cuDevicePrimaryCtxRelease, 0)

    for mode, here, there in [
        (GLOBAL, unsupported, unsupported),
        (THREAD_LOCAL, unsupported, Result.CUDA_SUCCESS),
        (RELAXED, Result.CUDA_SUCCESS, Result.CUDA_SUCCESS),
    ]:
        call(driver.cuStreamBeginCapture, streams[0], mode)
        result, pointer = driver.cuMemAlloc(8)
        assert result == here, mode
        thread = threading.Thread(target=allocate_elsewhere)
        thread.start()
        thread.join()
        assert elsewhere.pop() == there, mode
        execution, _ = end(streams[0])
        call(driver.cuGraphExecDestroy, execution)
        driver.cuMemFree(pointer or 0)


def test_a_capture_ends_on_the_thread_that_began_it(streams):
    call(driver.cuStreamBeginCapture, streams[0], THREAD_LOCAL)
    results = []

    def end_elsewhere():
        results.append(result_of(driver.cuStreamEndCapture, streams[0]))

    thread = threading.Thread(target=end_elsewhere)
    thread.start()
    thread.join()
    assert results == [Result.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD]
    execution, _ = end(streams[0])
    call(driver.cuGraphExecDestroy, execution)


def test_cuda_core_builds_uploads_and_launches_graphs():
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    source, target = (device.allocate(64, stream=stream) for _ in range(2))
    source.fill(5, stream=stream)
    stream.sync()
    builder = device.create_graph_builder().begin_building()
    source.copy_to(target, stream=builder)
    source.fill(9, stream=builder)
    graph = builder.end_building().complete()
    graph.upload(stream)
    host = np.zeros(64, np.uint8)
    for expected in (5, 9):
        graph.launch(stream)
        stream.sync()
        call(driver.cuMemcpyDtoH, host.ctypes.data, int(target.handle), 64)
        assert (host == expected).all()
    for buffer in (source, target):
        buffer.close(stream)
