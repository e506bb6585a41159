"""Two streams that touch the same GPU memory with nothing to order them."""

import ctypes
import os
import subprocess
import sys
import threading

import numpy
import pytest

import pynccl.library

pynccl.library.load()

from cuda.bindings import driver
from cuda.core import Device, StreamOptions

import pynccl
from pynccl import Communicator
from pynccl.streams import check_driver

RACE = driver.CUresult.CUDA_ERROR_ILLEGAL_STATE
SUCCESS = driver.CUresult.CUDA_SUCCESS
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NBYTES = 4096
FUNCTIONS = []  # of host functions, which must outlive their calls


def call(function, *arguments):
    return check_driver(function(*arguments), function.__name__)


@pytest.fixture(autouse=True)
def device():
    made = Device(0)
    made.set_current()
    return made


def new_stream(device, nonblocking=True):
    return device.create_stream(options=StreamOptions(nonblocking=nonblocking))


@pytest.fixture
def one(device):
    return new_stream(device)


@pytest.fixture
def other(device):
    return new_stream(device)


@pytest.fixture
def memory(device):
    address = int(call(driver.cuMemAlloc, NBYTES))
    yield address
    call(driver.cuCtxSynchronize)
    driver.cuMemFree(address)


def fill(address, stream, nbytes=NBYTES):
    return driver.cuMemsetD8Async(address, 1, nbytes, stream.handle)[0]


def read(address, stream, nbytes=NBYTES):
    host = numpy.empty(nbytes, "u1")
    return driver.cuMemcpyDtoHAsync(host.ctypes.data, address, nbytes, stream.handle)[0]


def refused(capfd, result):
    """The text of the race for which a call was refused."""
    assert result == RACE
    return capfd.readouterr().err


def test_a_write_and_a_read_in_two_streams_race_though_the_first_is_done(
    memory, one, other, capfd
):
    assert fill(memory, one) == SUCCESS
    text = refused(capfd, read(memory, other))
    first, second = f"stream {int(one.handle):#x}", f"stream {int(other.handle):#x}"
    assert f"the copy of 4096 bytes in {second} reads 4096 bytes at {memory:#x}" in text
    assert f"which the memset of 4096 bytes in {first} writes" in text
    assert f"record an event on {first} after the first and let {second} wait for it" in text


def test_what_was_refused_is_not_done_and_the_program_may_go_on(memory, one, other, capfd):
    assert fill(memory, one) == SUCCESS
    one.sync()
    assert driver.cuMemsetD8Async(memory, 7, NBYTES, one.handle)[0] == SUCCESS
    refused(capfd, driver.cuMemsetD8Async(memory, 9, NBYTES, other.handle)[0])
    other.sync()
    one.sync()
    host = numpy.empty(NBYTES, "u1")
    call(driver.cuMemcpyDtoH, host.ctypes.data, memory, NBYTES)
    assert (host == 7).all()


def test_a_write_after_a_read_in_another_stream_races(memory, one, other, capfd):
    pinned = call(driver.cuMemAllocHost, NBYTES)
    assert driver.cuMemcpyDtoHAsync(pinned, memory, NBYTES, one.handle)[0] == SUCCESS
    assert "reads" in refused(capfd, fill(memory, other))
    one.sync()
    call(driver.cuMemFreeHost, pinned)


def test_reads_in_two_streams_do_not_race(memory, one, other):
    assert [read(memory, one), read(memory, other)] == [SUCCESS] * 2


def test_parts_that_do_not_overlap_do_not_race(memory, one, other):
    half = NBYTES // 2
    assert [fill(memory, one, half), fill(memory + half, other, half)] == [SUCCESS] * 2


def test_columns_of_one_matrix_do_not_race_and_the_same_column_does(memory, one, other, capfd):
    def fill_column(column, width, stream):
        place = memory + 16 * column
        return driver.cuMemsetD2D8Async(place, 64, 1, 16 * width, 8, stream.handle)[0]

    assert [fill_column(0, 1, one), fill_column(1, 2, other)] == [SUCCESS] * 2
    assert "stream" in refused(capfd, fill_column(2, 2, one))


def by_event(device, one, other):
    other.wait(one.record())


def by_event_of_a_third_stream(device, one, other):
    third = new_stream(device)
    third.wait(one.record())
    other.wait(third.record())


def by_stream(device, one, other):
    one.sync()


def by_device(device, one, other):
    call(driver.cuCtxSynchronize)


def by_waiting_for_an_event(device, one, other):
    one.record().sync()


def by_asking_a_stream(device, one, other):
    while driver.cuStreamQuery(one.handle)[0] != SUCCESS:
        pass


def by_asking_an_event(device, one, other):
    event = one.record()
    while not event.is_done:
        pass


def by_a_copy_to_the_host(device, one, other):
    address = call(driver.cuMemAlloc, 4)
    assert read(address, one, 4) == SUCCESS
    call(driver.cuMemFree, address)


def by_a_host_function(device, one, other):
    reached = threading.Event()
    function = HOST_FUNCTION(lambda data: reached.set())
    address = ctypes.cast(function, ctypes.c_void_p).value
    call(driver.cuLaunchHostFunc, one.handle, driver.CUhostFn(address), None)
    FUNCTIONS.append(function)
    assert reached.wait(30)


ORDERS = [
    by_event,
    by_event_of_a_third_stream,
    by_stream,
    by_device,
    by_waiting_for_an_event,
    by_asking_a_stream,
    by_asking_an_event,
    by_a_copy_to_the_host,
    by_a_host_function,
]


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_ordered_does_not_race(device, memory, one, other, order):
    assert fill(memory, one) == SUCCESS
    order(device, one, other)
    assert read(memory, other) == SUCCESS


def test_an_event_orders_what_came_before_it_alone(memory, one, other, capfd):
    event = one.record()
    assert fill(memory, one) == SUCCESS
    other.wait(event)
    refused(capfd, read(memory, other))


def test_work_after_the_waiting_does_not_belong_to_an_earlier_event(
    device, memory, one, other, capfd
):
    """An event of a stream that later waits for more is not an event of that."""
    third = new_stream(device)
    event = third.record()
    assert fill(memory, one) == SUCCESS
    third.wait(one.record())
    other.wait(event)
    refused(capfd, read(memory, other))


def test_the_default_stream_is_ordered_with_blocking_streams_alone(device, memory, one, capfd):
    default, blocking = device.default_stream, new_stream(device, nonblocking=False)
    assert fill(memory, blocking) == SUCCESS
    assert fill(memory, default) == SUCCESS
    assert fill(memory, blocking) == SUCCESS
    refused(capfd, fill(memory, one))
    blocking.sync()
    assert fill(memory, default) == SUCCESS
    assert "the default stream" in refused(capfd, fill(memory, one))


def test_a_stream_that_was_closed_is_waited_for_as_before(device, memory, one):
    blocking = new_stream(device, nonblocking=False)
    assert fill(memory, blocking) == SUCCESS
    blocking.close()
    assert fill(memory, device.default_stream) == SUCCESS
    call(driver.cuCtxSynchronize)
    closed = new_stream(device)
    assert fill(memory, closed) == SUCCESS
    closed.close()
    call(driver.cuCtxSynchronize)
    assert fill(memory, one) == SUCCESS


def test_new_memory_has_no_past(one, other):
    for stream in (one, other):
        address = call(driver.cuMemAlloc, NBYTES)
        assert fill(address, stream) == SUCCESS
        call(driver.cuMemFree, address)


def test_freeing_on_another_stream_than_the_one_in_use_races(one, other, capfd):
    address = call(driver.cuMemAllocAsync, NBYTES, one.handle)
    assert fill(address, one) == SUCCESS
    text = refused(capfd, driver.cuMemFreeAsync(address, other.handle)[0])
    assert "the cuMemFreeAsync of 4096 bytes" in text
    assert driver.cuMemFreeAsync(address, one.handle)[0] == SUCCESS


def test_freeing_what_a_pool_gave_while_it_is_in_use_races(one, capfd):
    address = call(driver.cuMemAllocAsync, NBYTES, one.handle)
    assert fill(address, one) == SUCCESS
    assert "cuMemFree frees" in refused(capfd, driver.cuMemFree(address)[0])
    one.sync()
    assert driver.cuMemFree(address)[0] == SUCCESS


def graph_of(stream, address):
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    call(driver.cuStreamBeginCapture, stream.handle, mode)
    assert fill(address, stream) == SUCCESS
    graph = call(driver.cuStreamEndCapture, stream.handle)
    return call(driver.cuGraphInstantiate, graph, 0)


def test_a_graph_whose_memory_was_freed_is_not_launched(one, capfd):
    memory, kept = (call(driver.cuMemAlloc, 4096) for _ in range(2))
    graph, good = graph_of(one, memory), graph_of(one, kept)
    assert driver.cuGraphLaunch(graph, one.handle)[0] == SUCCESS
    one.sync()
    call(driver.cuMemFree, memory)
    text = refused(capfd, driver.cuGraphLaunch(graph, one.handle)[0])
    assert "the memset of 4096 bytes in a graph writes 4096 bytes at 0x" in text
    assert "which was freed since the graph was captured" in text
    anew = [int(call(driver.cuMemAlloc, 4096))]
    while anew[-1] != int(memory):  # until its place is allocated, which is not the same memory
        anew.append(int(call(driver.cuMemAlloc, 4096)))
    assert driver.cuGraphLaunch(graph, one.handle)[0] == RACE
    assert driver.cuGraphLaunch(good, one.handle)[0] == SUCCESS
    for address in [*anew, kept]:
        call(driver.cuMemFree, address)


def test_a_graph_touches_what_its_nodes_touch_when_it_is_launched(memory, one, other, capfd):
    graph = graph_of(one, memory)
    assert fill(memory, other) == SUCCESS
    text = refused(capfd, driver.cuGraphLaunch(graph, one.handle)[0])
    assert "the memset of 4096 bytes in a graph" in text
    one.wait(other.record())
    assert driver.cuGraphLaunch(graph, one.handle)[0] == SUCCESS
    refused(capfd, fill(memory, other))
    other.wait(one.record())
    assert fill(memory, other) == SUCCESS


@pytest.fixture(scope="module")
def comm():
    with Communicator.init(1, 0, pynccl.get_unique_id(), device=0) as made:
        yield made


def test_numpy_may_not_share_what_is_still_being_written(comm, one):
    array = comm.asarray(numpy.arange(4.0))
    comm.allreduce(array, stream=one)
    with pytest.raises(pynccl.NCCLInvalidUsage, match="a race: the host reads 32 bytes"):
        numpy.asarray(array)
    one.sync()
    assert (numpy.asarray(array) == numpy.arange(4.0)).all()


def test_numpy_may_share_an_array_of_which_a_part_is_being_written(comm, one):
    array = comm.asarray(numpy.arange(4.0))
    comm.synchronize()
    comm.allreduce(array[:2], stream=one)
    numpy.asarray(array)
    with pytest.raises(pynccl.NCCLInvalidUsage, match="a race: the host reads 16 bytes"):
        numpy.asarray(array[:2])
    one.sync()


def test_get_tells_of_a_race_in_its_error(comm, one):
    array = comm.asarray(numpy.arange(4.0))
    comm.allreduce(array, stream=one)
    with pytest.raises(pynccl.NCCLCudaError, match="a race: the copy .*all-reduce of 4 float64"):
        array.get()
    one.sync()


WITHOUT_ORDER = """
import numpy, pynccl
from cuda.core import StreamOptions
with pynccl.Communicator.init(1, 0, pynccl.get_unique_id(), device=0) as comm:
    stream = comm.device.create_stream(options=StreamOptions(nonblocking=True))
    array = comm.asarray(numpy.arange(4.0))
    comm.allreduce(array, stream=stream)
    print(array.get().sum())
"""


def test_the_check_can_be_left_out():
    def run(checks):
        return subprocess.run(
            [sys.executable, "-c", WITHOUT_ORDER],
            env={**os.environ, "PYNCCL_EMULATOR_CHECKS": checks},
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert run("0").stdout == "6.0\n"
    assert "a race: the copy of 32 bytes" in run("1").stderr
