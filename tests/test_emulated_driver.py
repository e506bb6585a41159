"""The emulated libcuda, through cuda.bindings.driver and cuda.core."""

import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import pynccl.library

pynccl.library.load()

from cuda.bindings import driver
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    EventOptions,
    LegacyPinnedMemoryResource,
    StreamOptions,
)

SOURCES = pathlib.Path(__file__).parent.parent / "pynccl" / "emulator" / "src"
NON_BLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
LEGACY, PER_THREAD = driver.CUstream(1), driver.CUstream(2)
Result = driver.CUresult
PREFIX = "CU_POINTER_ATTRIBUTE_"
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def call(function, *arguments):
    result, *values = function(*arguments)
    assert result == Result.CUDA_SUCCESS, f"{function.__name__}: {result.name}"
    return values[0] if len(values) == 1 else tuple(values)


def result_of(function, *arguments):
    return function(*arguments)[0]


def run_python(program, **environment):
    """Runs a program in a fresh process on the emulator; returns what it printed as JSON."""
    prelude = (
        "import json, pynccl.library; pynccl.library.load()\n"
        "from cuda.bindings import driver\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Gate:
    """A host function that keeps a stream busy until the gate is opened."""

    def __init__(self):
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.function = HOST_FUNCTION(self.pass_through)

    def pass_through(self, _):
        self.entered.set()
        self.opened.wait(30)

    def close(self, stream):
        launch(stream, self.function)
        return self


def launch(stream, function):
    call(driver.cuLaunchHostFunc, stream, ctypes.cast(function, ctypes.c_void_p).value, 0)


@pytest.fixture(autouse=True)
def context():
    call(driver.cuInit, 0)
    primary = call(driver.cuDevicePrimaryCtxRetain, 0)
    call(driver.cuCtxSetCurrent, primary)
    yield primary
    call(driver.cuCtxSynchronize)
    call(driver.cuCtxSetCurrent, None)
    call(driver.cuDevicePrimaryCtxRelease, 0)


@pytest.fixture
def stream():
    made = call(driver.cuStreamCreate, NON_BLOCKING)
    yield made
    call(driver.cuStreamDestroy, made)


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.opened.set()


@pytest.fixture
def memory():
    """Allocates device memory that ends with the test."""
    pointers = []

    def allocate(nbytes):
        pointers.append(call(driver.cuMemAlloc, nbytes))
        return pointers[-1]

    yield allocate
    call(driver.cuCtxSynchronize)
    for pointer in pointers:
        driver.cuMemFree(pointer)


def to_device(memory, array):
    pointer = memory(array.nbytes)
    call(driver.cuMemcpyHtoD, pointer, array.ctypes.data, array.nbytes)
    return pointer


def to_host(pointer, like):
    array = np.empty_like(like)
    call(driver.cuMemcpyDtoH, array.ctypes.data, pointer, array.nbytes)
    return array


# Devices and contexts


def test_nothing_works_before_initialization():
    program = "print(json.dumps([int(driver.cuDeviceGetCount()[0]), int(driver.cuMemAlloc(8)[0])]))"
    assert run_python(program) == [3, 3]


VISIBLE = """
result = driver.cuInit(0)[0]
count = driver.cuDeviceGetCount()[1]
ids = [driver.cuDeviceGetPCIBusId(16, i)[1].decode().strip("\\0") for i in range(count or 0)]
print(json.dumps([int(result), [int(i.split(":")[1], 16) - 1 for i in ids]]))
"""


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2,0", [2, 0]),
        ("1, 3", [1, 3]),
        ("0,4,1", [0]),
        ("1,nonsense,2", [1]),
        ("3,1,3,2", [3, 1]),
    ],
)
def test_visible_devices_are_chosen_and_ordered_up_to_the_first_invalid(visible, expected):
    shown = run_python(VISIBLE, CUDA_VISIBLE_DEVICES=visible, PYNCCL_EMULATOR_DEVICES="4")
    assert shown == [0, expected]


@pytest.mark.parametrize("visible", ["", "-1", "9"])
def test_initialization_without_a_visible_device_says_so(visible):
    shown = run_python(VISIBLE, CUDA_VISIBLE_DEVICES=visible, PYNCCL_EMULATOR_DEVICES="4")
    assert shown == [int(Result.CUDA_ERROR_NO_DEVICE), []]


def test_visible_devices_may_be_named_by_the_beginning_of_their_uuid():
    uuids = "driver.cuInit(0); print(json.dumps([driver.cuDeviceGetUuid(i)[1].bytes.hex()"
    uuids += " for i in range(driver.cuDeviceGetCount()[1])]))"
    every = run_python(uuids, CUDA_VISIBLE_DEVICES="0,1,2")
    assert len(set(every)) == 3
    assert run_python(uuids, CUDA_VISIBLE_DEVICES=f"GPU-{every[2][:8]}") == [every[2]]
    whole = "-".join(every[1][a:b] for a, b in [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)])
    assert run_python(uuids, CUDA_VISIBLE_DEVICES=f"GPU-{whole},GPU-") == [every[1]]


def test_an_unreadable_configuration_is_refused_with_the_variable_named():
    program = (
        "import pynccl.library; pynccl.library.load()\n"
        "from cuda.bindings import driver\n"
        "raise SystemExit(int(driver.cuInit(0)[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYNCCL_EMULATOR_MEMORY": "16Q"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == int(Result.CUDA_ERROR_INVALID_VALUE)
    assert "PYNCCL_EMULATOR_MEMORY" in done.stderr and "16Q" in done.stderr


def test_devices_have_distinct_bus_ids_that_lead_back_to_them():
    count = call(driver.cuDeviceGetCount)
    ids = [call(driver.cuDeviceGetPCIBusId, 16, i) for i in range(count)]
    assert len(set(ids)) == count
    assert [int(call(driver.cuDeviceGetByPCIBusId, i)) for i in ids] == list(range(count))


def test_bad_device_arguments_get_their_result_code():
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE
    assert result_of(driver.cuDeviceGet, 1000) == Result.CUDA_ERROR_INVALID_DEVICE
    assert result_of(driver.cuDeviceGet, -1) == Result.CUDA_ERROR_INVALID_DEVICE
    assert result_of(driver.cuDeviceGetAttribute, attribute, 99) == Result.CUDA_ERROR_INVALID_DEVICE
    assert result_of(driver.cuDevicePrimaryCtxRetain, 99) == Result.CUDA_ERROR_INVALID_DEVICE


def test_result_codes_have_names_and_texts():
    for result in (Result.CUDA_SUCCESS, Result.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT):
        assert call(driver.cuGetErrorName, result).decode() == result.name
        assert call(driver.cuGetErrorString, result)
    unknown = Result.CUDA_ERROR_UNKNOWN
    assert call(driver.cuGetErrorName, unknown) == b"CUDA_ERROR_UNKNOWN"


def test_contexts_form_a_stack_per_thread(context):
    other = call(driver.cuDevicePrimaryCtxRetain, 1)
    call(driver.cuCtxPushCurrent, other)
    assert int(call(driver.cuCtxGetDevice)) == 1
    assert int(call(driver.cuCtxPopCurrent)) == int(other)
    assert int(call(driver.cuCtxGetCurrent)) == int(context)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(int(call(driver.cuCtxGetCurrent))))
    thread.start()
    thread.join()
    assert seen == [0]
    call(driver.cuDevicePrimaryCtxRelease, 1)


def test_without_a_current_context_calls_that_need_one_say_so(context):
    call(driver.cuCtxSetCurrent, None)
    assert result_of(driver.cuMemAlloc, 8) == Result.CUDA_ERROR_INVALID_CONTEXT
    assert result_of(driver.cuStreamCreate, 0) == Result.CUDA_ERROR_INVALID_CONTEXT
    assert result_of(driver.cuStreamSynchronize, 0) == Result.CUDA_ERROR_INVALID_CONTEXT
    assert result_of(driver.cuCtxPopCurrent) == Result.CUDA_ERROR_INVALID_CONTEXT
    call(driver.cuCtxSetCurrent, context)


def test_primary_context_counts_its_retains():
    # In a process of its own: here other tests may hold any GPU's context.
    program = """
driver.cuInit(0)
told = [driver.cuDevicePrimaryCtxGetState(2), driver.cuDevicePrimaryCtxRetain(2)[:1],
        driver.cuDevicePrimaryCtxGetState(2), driver.cuDevicePrimaryCtxRelease(2),
        driver.cuDevicePrimaryCtxRelease(2)]
print(json.dumps([[int(part) for part in answer] for answer in told]))
"""
    invalid = int(Result.CUDA_ERROR_INVALID_CONTEXT)
    assert run_python(program) == [[0, 0, 0], [0], [0, 0, 1], [0], [invalid]]


def test_functions_that_are_not_emulated_are_named():
    with pytest.raises(Exception, match="cuModuleLoadData"):
        driver.cuModuleLoadData(b"")


# Memory


def test_copies_go_there_and_back(memory):
    values = np.arange(1000, dtype=np.int64)
    first = to_device(memory, values)
    second = memory(values.nbytes)
    call(driver.cuMemcpyDtoD, second, first, values.nbytes)
    assert np.array_equal(to_host(second, values), values)
    third = memory(values.nbytes)
    call(driver.cuMemcpy, third, second, values.nbytes)
    back = np.empty_like(values)
    call(driver.cuMemcpy, driver.CUdeviceptr(back.ctypes.data), third, values.nbytes)
    assert np.array_equal(back, values)


def test_a_copy_past_the_end_of_an_allocation_is_refused(memory):
    pointer, other = memory(100), memory(1000)
    host = np.zeros(101, np.uint8)
    invalid = Result.CUDA_ERROR_INVALID_VALUE
    inside = driver.CUdeviceptr(int(pointer) + 50)
    assert result_of(driver.cuMemcpyHtoD, pointer, host.ctypes.data, 101) == invalid
    assert result_of(driver.cuMemcpyDtoH, host.ctypes.data, inside, 51) == invalid
    assert result_of(driver.cuMemcpyDtoD, other, pointer, 101) == invalid
    assert result_of(driver.cuMemsetD8, pointer, 0, 101) == invalid
    assert result_of(driver.cuMemcpyDtoH, host.ctypes.data, inside, 50) == Result.CUDA_SUCCESS


def test_host_memory_is_no_device_memory(memory):
    host = np.zeros(64, np.uint8)
    address = driver.CUdeviceptr(host.ctypes.data)
    invalid = Result.CUDA_ERROR_INVALID_VALUE
    assert result_of(driver.cuMemcpyDtoD, memory(64), address, 64) == invalid
    assert result_of(driver.cuMemsetD8, address, 0, 64) == invalid
    assert result_of(driver.cuMemFree, address) == invalid
    assert result_of(driver.cuMemcpyHtoD, memory(64), int(memory(64)), 64) == invalid
    assert result_of(driver.cuMemcpyHtoD, memory(64), 0, 64) == invalid


def test_freed_memory_is_refused():
    pointer = call(driver.cuMemAlloc, 64)
    call(driver.cuMemFree, pointer)
    assert result_of(driver.cuMemFree, pointer) == Result.CUDA_ERROR_INVALID_VALUE
    assert result_of(driver.cuMemsetD8, pointer, 0, 1) == Result.CUDA_ERROR_INVALID_VALUE


def test_memory_freed_in_use_is_reused_only_after_the_work(memory, stream, gate):
    gate.close(stream)
    target = memory(1 << 20)
    freed = call(driver.cuMemAlloc, 1 << 20)
    call(driver.cuMemsetD8, freed, 5, 1 << 20)
    call(driver.cuStreamSynchronize, 0)
    call(driver.cuMemcpyDtoDAsync, target, freed, 1 << 20, stream)
    call(driver.cuMemFree, freed)
    again = [memory(1 << 20) for _ in range(3)]
    assert int(freed) not in [int(p) for p in again]
    for pointer in again:
        call(driver.cuMemsetD8, pointer, 9, 1 << 20)
    gate.opened.set()
    call(driver.cuStreamSynchronize, stream)
    assert (to_host(target, np.empty(1 << 20, np.uint8)) == 5).all()


def test_memory_ends_at_the_configured_size_and_comes_back_whole():
    program = """
driver.cuInit(0); driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
total = driver.cuMemGetInfo()[2]
pointers, result = [], 0
while True:
    result, pointer = driver.cuMemAlloc(3 << 20)
    if result != 0: break
    pointers.append(pointer)
free_when_full = driver.cuMemGetInfo()[1]
for pointer in pointers[::2] + pointers[1::2]: driver.cuMemFree(pointer)
whole = driver.cuMemAlloc(total)[0]
print(json.dumps([total, len(pointers), int(result), free_when_full, int(whole)]))
"""
    shown = run_python(program, PYNCCL_EMULATOR_MEMORY="64m")
    assert shown == [64 << 20, 21, int(Result.CUDA_ERROR_OUT_OF_MEMORY), 1 << 20, 0]


def test_freed_memory_goes_back_to_the_system(memory):
    page = os.sysconf("SC_PAGE_SIZE")

    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * page

    pointer = memory(256 << 20)
    before = resident()
    call(driver.cuMemsetD8, pointer, 1, 256 << 20)
    call(driver.cuCtxSynchronize)
    assert resident() - before > 200 << 20
    call(driver.cuMemFree, pointer)
    assert resident() - before < 50 << 20


def test_sets_of_each_width_and_pitch(memory):
    pointer = memory(64)
    for function, dtype, value in [
        (driver.cuMemsetD8, np.uint8, 0xAB),
        (driver.cuMemsetD16, np.uint16, 0xABCD),
        (driver.cuMemsetD32, np.uint32, 0xABCDEF01),
    ]:
        call(driver.cuMemsetD8, pointer, 0, 64)
        call(function, pointer, value, 5)
        expected = np.zeros(64 // dtype().itemsize, dtype)
        expected[:5] = value
        assert np.array_equal(to_host(pointer, expected), expected)
    call(driver.cuMemsetD2D8, pointer, 8, 7, 3, 8)
    rows = to_host(pointer, np.empty((8, 8), np.uint8))
    assert (rows[:, :3] == 7).all()
    odd = driver.CUdeviceptr(int(pointer) + 1)
    assert result_of(driver.cuMemsetD16, odd, 0, 1) == Result.CUDA_ERROR_INVALID_VALUE


def test_a_copy_in_two_dimensions_takes_its_block_alone(memory):
    values = np.arange(48, dtype=np.uint8).reshape(6, 8)
    pointer = to_device(memory, values)
    block = np.zeros((3, 4), np.uint8)
    copied = driver.CUDA_MEMCPY2D()
    copied.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copied.srcDevice, copied.srcPitch, copied.srcXInBytes, copied.srcY = pointer, 8, 2, 1
    copied.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    copied.dstHost, copied.dstPitch = block.ctypes.data, 4
    copied.WidthInBytes, copied.Height = 4, 3
    call(driver.cuMemcpy2D, copied)
    assert np.array_equal(block, values[1:4, 2:6])
    copied.Height = 6
    assert result_of(driver.cuMemcpy2D, copied) == Result.CUDA_ERROR_INVALID_VALUE


def test_pointers_tell_what_they_point_to(memory):
    attribute = driver.CUpointer_attribute
    pointer = memory(1000)
    inside = driver.CUdeviceptr(int(pointer) + 10)

    def ask(name, address=inside):
        return call(driver.cuPointerGetAttribute, getattr(attribute, PREFIX + name), address)

    assert ask("MEMORY_TYPE") == driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    assert ask("DEVICE_ORDINAL") == 0
    assert int(ask("RANGE_START_ADDR")) == int(pointer)
    assert ask("RANGE_SIZE") == 1000
    assert not ask("IS_MANAGED")
    base, nbytes = call(driver.cuMemGetAddressRange, inside)
    assert (int(base), nbytes) == (int(pointer), 1000)
    managed = call(driver.cuMemAllocManaged, 64, 1)
    assert ask("IS_MANAGED", managed)
    call(driver.cuMemFree, managed)
    pinned = call(driver.cuMemHostAlloc, 64, 0)
    assert ask("MEMORY_TYPE", pinned) == driver.CUmemorytype.CU_MEMORYTYPE_HOST
    call(driver.cuMemFreeHost, pinned)
    host = np.zeros(8)
    memory_type = attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert result_of(driver.cuPointerGetAttribute, memory_type, host.ctypes.data) == 1
    several = [memory_type, attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL]
    kind, ordinal = call(driver.cuPointerGetAttributes, 2, several, host.ctypes.data)
    assert (int(kind), ordinal) == (0, -2)


def test_host_memory_is_registered_once():
    host = np.zeros(4096, np.uint8)
    call(driver.cuMemHostRegister, host.ctypes.data, 4096, 0)
    again = result_of(driver.cuMemHostRegister, host.ctypes.data + 100, 10, 0)
    assert again == Result.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    call(driver.cuMemHostUnregister, host.ctypes.data)
    again = result_of(driver.cuMemHostUnregister, host.ctypes.data)
    assert again == Result.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED


def test_device_memory_of_this_process_can_be_mapped_by_another(memory):
    values = np.arange(100, dtype=np.int32)
    pointer = to_device(memory, values)
    links = pathlib.Path("/proc/self/fd").iterdir()
    (fd,) = [f.name for f in links if f.is_symlink() and "pynccl-gpu-0" in os.readlink(f)]
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    base = min(int(line.split("-")[0], 16) for line in maps if "pynccl-gpu-0" in line)
    program = f"""
import mmap, os, numpy
fd = os.open("/proc/{os.getpid()}/fd/{fd}", os.O_RDWR)
memory = numpy.frombuffer(mmap.mmap(fd, 0), numpy.int32, 100, {int(pointer) - base})
print(int(memory.sum()))
memory[0] = 77
"""
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.stdout.strip() == str(values.sum()), shown.stderr
    assert to_host(pointer, values)[0] == 77


# Streams and events


def test_work_runs_in_order_without_holding_up_the_caller(stream, gate):
    seen = []
    functions = [HOST_FUNCTION(lambda _, i=i: seen.append(i)) for i in range(20)]
    gate.close(stream)
    for function in functions:
        launch(stream, function)
    assert result_of(driver.cuStreamQuery, stream) == Result.CUDA_ERROR_NOT_READY
    assert seen == []
    gate.opened.set()
    call(driver.cuStreamSynchronize, stream)
    assert seen == list(range(20))
    assert result_of(driver.cuStreamQuery, stream) == Result.CUDA_SUCCESS


def test_work_runs_though_nobody_waits_for_it(stream):
    ran = threading.Event()
    function = HOST_FUNCTION(lambda _: ran.set())
    launch(stream, function)
    assert ran.wait(30)
    call(driver.cuStreamSynchronize, stream)


def test_pageable_memory_may_change_after_the_call_and_pinned_may_not(memory, stream, gate):
    pageable = np.full(100, 1, np.int32)
    address = call(driver.cuMemHostAlloc, 400, 0)
    pinned = np.ctypeslib.as_array((ctypes.c_int32 * 100).from_address(int(address)))
    pinned[:] = 1
    first, second = memory(400), memory(400)
    gate.close(stream)
    call(driver.cuMemcpyHtoDAsync, first, pageable.ctypes.data, 400, stream)
    call(driver.cuMemcpyHtoDAsync, second, int(address), 400, stream)
    pageable[:] = 2
    pinned[:] = 2
    gate.opened.set()
    call(driver.cuStreamSynchronize, stream)
    assert (to_host(first, pageable) == 1).all()
    assert (to_host(second, pageable) == 2).all()
    call(driver.cuMemFreeHost, int(address))


def test_pinned_memory_freed_in_use_lives_until_the_work_is_done(memory, stream, gate):
    address = call(driver.cuMemHostAlloc, 4 << 20, 0)
    ctypes.memset(int(address), 3, 4 << 20)
    target = memory(4 << 20)
    gate.close(stream)
    call(driver.cuMemcpyHtoDAsync, target, int(address), 4 << 20, stream)
    call(driver.cuMemFreeHost, int(address))
    assert result_of(driver.cuMemFreeHost, int(address)) == Result.CUDA_ERROR_INVALID_VALUE
    gate.opened.set()
    call(driver.cuStreamSynchronize, stream)
    assert (to_host(target, np.empty(4 << 20, np.uint8)) == 3).all()


def test_a_copy_to_pageable_memory_returns_when_it_is_done(memory, stream):
    values = np.arange(1 << 16, dtype=np.int32)
    source = to_device(memory, values)
    middle = memory(values.nbytes)
    back = np.zeros_like(values)
    call(driver.cuMemcpyDtoDAsync, middle, source, values.nbytes, stream)
    call(driver.cuMemcpyDtoHAsync, back.ctypes.data, middle, values.nbytes, stream)
    assert np.array_equal(back, values)


def test_a_stream_waits_for_an_event_of_another(stream, gate):
    other = call(driver.cuStreamCreate, NON_BLOCKING)
    event = call(driver.cuEventCreate, 0)
    seen = []
    names = ["first", "second"]
    functions = [HOST_FUNCTION(lambda _, name=name: seen.append(name)) for name in names]
    gate.close(stream)
    launch(stream, functions[0])
    call(driver.cuEventRecord, event, stream)
    call(driver.cuStreamWaitEvent, other, event, 0)
    launch(other, functions[1])
    assert result_of(driver.cuEventQuery, event) == Result.CUDA_ERROR_NOT_READY
    threading.Timer(0.05, gate.opened.set).start()
    call(driver.cuStreamSynchronize, other)
    assert seen == ["first", "second"]
    assert result_of(driver.cuEventQuery, event) == Result.CUDA_SUCCESS
    call(driver.cuEventDestroy, event)
    call(driver.cuStreamDestroy, other)


def test_an_event_never_recorded_holds_nobody_up(stream):
    event = call(driver.cuEventCreate, 0)
    call(driver.cuStreamWaitEvent, stream, event, 0)
    call(driver.cuEventSynchronize, event)
    call(driver.cuEventQuery, event)
    elapsed = result_of(driver.cuEventElapsedTime, event, event)
    assert elapsed == Result.CUDA_ERROR_INVALID_HANDLE
    call(driver.cuEventDestroy, event)


def test_elapsed_time_is_that_between_two_events(stream):
    events = [call(driver.cuEventCreate, 0) for _ in range(2)]
    nap = HOST_FUNCTION(lambda _: time.sleep(0.02))
    call(driver.cuEventRecord, events[0], stream)
    launch(stream, nap)
    call(driver.cuEventRecord, events[1], stream)
    call(driver.cuEventSynchronize, events[1])
    assert 19 < call(driver.cuEventElapsedTime, *events) < 20000
    for event in events:
        call(driver.cuEventDestroy, event)


@pytest.mark.parametrize("legacy_first", [True, False])
def test_the_default_stream_and_blocking_streams_order_each_other(gate, legacy_first):
    blocking = call(driver.cuStreamCreate, 0)
    seen = []
    function = HOST_FUNCTION(lambda _: seen.append("second"))
    before, after = (LEGACY, blocking) if legacy_first else (blocking, LEGACY)
    gate.close(before)
    launch(after, function)
    time.sleep(0.05)
    assert seen == []
    gate.opened.set()
    call(driver.cuStreamSynchronize, after)
    assert seen == ["second"]
    call(driver.cuStreamDestroy, blocking)


def test_a_nonblocking_stream_does_not_wait_for_the_default_stream(stream, gate):
    gate.close(LEGACY)
    ran = threading.Event()
    function = HOST_FUNCTION(lambda _: ran.set())
    launch(stream, function)
    assert ran.wait(30)
    assert result_of(driver.cuStreamQuery, LEGACY) == Result.CUDA_ERROR_NOT_READY


def test_each_thread_has_its_own_per_thread_stream(gate):
    gate.close(PER_THREAD)
    gate.entered.wait(30)
    done = []

    def elsewhere():
        call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, 0))
        function = HOST_FUNCTION(lambda _: done.append(True))
        launch(PER_THREAD, function)
        call(driver.cuStreamSynchronize, PER_THREAD)
        call(driver.cuDevicePrimaryCtxRelease, 0)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(30)
    assert done == [True]
    assert result_of(driver.cuStreamQuery, PER_THREAD) == Result.CUDA_ERROR_NOT_READY


def test_a_destroyed_stream_finishes_its_work(gate):
    stream = call(driver.cuStreamCreate, NON_BLOCKING)
    ran = []
    function = HOST_FUNCTION(lambda _: ran.append(True))
    gate.close(stream)
    launch(stream, function)
    call(driver.cuStreamDestroy, stream)
    assert result_of(driver.cuStreamQuery, stream) == Result.CUDA_ERROR_INVALID_HANDLE
    assert ran == []
    gate.opened.set()
    call(driver.cuCtxSynchronize)
    assert ran == [True]


def test_waiting_inside_a_host_function_is_refused(stream):
    results = []

    def wait(_):
        results.append(result_of(driver.cuStreamSynchronize, stream))

    function = HOST_FUNCTION(wait)
    launch(stream, function)
    call(driver.cuStreamSynchronize, stream)
    assert results == [Result.CUDA_ERROR_NOT_PERMITTED]


def test_streams_tell_their_properties(context):
    stream = call(driver.cuStreamCreateWithPriority, NON_BLOCKING, -3)
    assert call(driver.cuStreamGetPriority, stream) == -3
    assert call(driver.cuStreamGetFlags, stream) == NON_BLOCKING
    assert int(call(driver.cuStreamGetDevice, stream)) == 0
    assert call(driver.cuStreamGetId, stream) != call(driver.cuStreamGetId, LEGACY)
    call(driver.cuStreamDestroy, stream)
    assert result_of(driver.cuStreamDestroy, stream) == Result.CUDA_ERROR_INVALID_HANDLE
    assert result_of(driver.cuStreamDestroy, LEGACY) == Result.CUDA_ERROR_INVALID_HANDLE
    assert result_of(driver.cuStreamCreate, 8) == Result.CUDA_ERROR_INVALID_VALUE


def test_many_threads_may_use_one_stream(memory, stream):
    counter = memory(4)
    call(driver.cuMemsetD32, counter, 0, 1)
    call(driver.cuStreamSynchronize, 0)
    total = [0]

    def add(_):  # unprotected: only the stream's order keeps it right
        seen = total[0]
        time.sleep(0)
        total[0] = seen + 1

    function = HOST_FUNCTION(add)

    def work():
        call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, 0))
        for _ in range(50):
            launch(stream, function)
            call(driver.cuMemsetD32Async, counter, 1, 1, stream)
        call(driver.cuStreamSynchronize, stream)
        call(driver.cuDevicePrimaryCtxRelease, 0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert total == [200]


# Stream-ordered allocation


def test_pools_count_what_is_allocated_from_them(stream):
    used = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    pool = call(driver.cuDeviceGetDefaultMemPool, 0)
    before = int(call(driver.cuMemPoolGetAttribute, pool, used))
    pointer = call(driver.cuMemAllocAsync, 1000, stream)
    assert int(call(driver.cuMemPoolGetAttribute, pool, used)) == before + 1000
    call(driver.cuMemsetD8Async, pointer, 1, 1000, stream)
    call(driver.cuMemFreeAsync, pointer, stream)
    assert int(call(driver.cuMemPoolGetAttribute, pool, used)) == before
    assert result_of(driver.cuMemFreeAsync, pointer, stream) == Result.CUDA_ERROR_INVALID_VALUE


def test_a_pool_refuses_what_passes_its_limit():
    device = Device(0)
    device.set_current()
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=1 << 20))
    core_stream = device.create_stream()
    buffer = resource.allocate(1 << 19, stream=core_stream)
    with pytest.raises(Exception, match="OUT_OF_MEMORY"):
        resource.allocate((1 << 19) + 1, stream=core_stream)
    buffer.close(core_stream)


# cuda.core


def test_cuda_core_devices_tell_their_properties():
    device = Device(1)
    assert device.name == "pynccl emulated GPU"
    assert device.compute_capability == (9, 0)
    assert device.properties.warp_size == 32
    assert device.properties.unified_addressing
    assert device.can_access_peer(Device(0))
    assert len({d.uuid for d in Device.get_all_devices()}) == len(Device.get_all_devices())


def test_cuda_core_buffers_copy_and_carry_dlpack():
    device = Device(0)
    device.set_current()
    stream = device.create_stream(options=StreamOptions(nonblocking=True))
    source, target = (device.allocate(4096, stream=stream) for _ in range(2))
    pinned = LegacyPinnedMemoryResource().allocate(4096, stream=stream)
    host = np.from_dlpack(pinned)
    host[:] = np.arange(4096, dtype=np.uint32).astype(np.uint8).view(host.dtype)
    expected = host.copy()
    source.copy_from(pinned, stream=stream)
    source.copy_to(target, stream=stream)
    pinned.fill(0, stream=stream)
    stream.sync()
    assert not host.any()
    target.copy_to(pinned, stream=stream)
    stream.sync()
    assert np.array_equal(host, expected)
    kind = 2  # kDLCUDA
    assert target.__dlpack_device__() == (kind, 0)
    assert target.is_device_accessible and not target.is_host_accessible
    for buffer in (source, target):
        buffer.close(stream)


def test_cuda_core_streams_wait_for_events():
    device = Device(0)
    device.set_current()
    first, second = device.create_stream(), device.create_stream()
    gate = Gate().close(first.handle)
    event = first.record(options=EventOptions(timing_enabled=True))
    second.wait(event)
    after = second.record(options=EventOptions(timing_enabled=True))
    assert not event.is_done and not after.is_done
    gate.opened.set()
    second.sync()
    assert event.is_done and after - event >= 0


# The end of processes


def test_a_process_ends_while_streams_have_work():
    program = """
import ctypes, sys, threading, time
driver.cuInit(0); driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.01))
for i in range(5):
    stream = driver.cuStreamCreate(i % 2)[1]
    for _ in range(1000):
        driver.cuLaunchHostFunc(stream, ctypes.cast(function, ctypes.c_void_p).value, 0)
driver.cuLaunchHostFunc(driver.CUstream(2), ctypes.cast(function, ctypes.c_void_p).value, 0)
print(json.dumps("ended"), flush=True)
"""
    for _ in range(3):
        assert run_python(program) == "ended"


def test_a_forked_child_is_told_that_the_driver_is_not_initialized():
    program = """
import os
driver.cuInit(0); driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
pointer = driver.cuMemAlloc(64)[1]
stream = driver.cuStreamCreate(0)[1]
driver.cuMemsetD8Async(pointer, 1, 64, stream)
read, write = os.pipe()
if os.fork() == 0:
    results = [driver.cuInit(0)[0], driver.cuMemAlloc(8)[0], driver.cuStreamSynchronize(stream)[0],
               driver.cuMemFree(pointer)[0], driver.cuStreamDestroy(stream)[0]]
    os.write(write, bytes(results))
    os._exit(0)
answer = list(os.read(read, 100))
os.wait()
print(json.dumps([answer, int(driver.cuStreamSynchronize(stream)[0])]))
"""
    assert run_python(program) == [[3] * 5, 0]


def test_a_child_forked_before_initialization_can_initialize():
    program = """
import os
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, bytes([driver.cuInit(0)[0], driver.cuDeviceGetCount()[1]]))
    os._exit(0)
answer = list(os.read(read, 10))
os.wait()
print(json.dumps(answer))
"""
    assert run_python(program, PYNCCL_EMULATOR_DEVICES="3") == [0, 3]


# The interface


def test_per_thread_variants_take_the_null_stream_for_the_per_thread_one():
    program = """
import ctypes, sys
driver.cuInit(0); driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
print(json.dumps([driver.cuStreamGetId(i)[1] for i in (0, 1, 2)]))
"""
    null, legacy, own = run_python(program)
    assert null == legacy != own
    null, legacy, own = run_python(program, CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM="1")
    assert null == own != legacy


def test_names_are_exported_with_and_without_their_version():
    libcuda = ctypes.CDLL("libcuda.so.1")
    for name in ("cuMemAlloc", "cuMemFree", "cuMemcpyHtoDAsync", "cuStreamDestroy", "cuCtxCreate"):
        both = [getattr(libcuda, name), getattr(libcuda, name + "_v2")]
        assert len({ctypes.cast(function, ctypes.c_void_p).value for function in both}) == 1
    with pytest.raises(AttributeError):
        libcuda.cuModuleLoad  # noqa: B018


STRUCTS = {
    "CUuuid": ["bytes"],
    "CUmemLocation": ["type", "id"],
    "CUmemAccessDesc": ["location", "flags"],
    "CUmemPoolProps": ["allocType", "handleTypes", "location", "win32SecurityAttributes"],
    "CUDA_GRAPH_INSTANTIATE_PARAMS": ["flags", "hUploadStream", "hErrNode_out", "result_out"],
    "CUDA_MEMCPY2D": [
        *("srcXInBytes", "srcY", "srcMemoryType", "srcHost", "srcDevice", "srcArray", "srcPitch"),
        *("dstXInBytes", "dstY", "dstMemoryType", "dstHost", "dstDevice", "dstArray", "dstPitch"),
        *("WidthInBytes", "Height"),
    ],
}


def cuda_headers():
    places = [os.environ.get("CUDA_HOME", "/usr/local/cuda")]
    places += [f"{path}/nvidia/{part}" for path in sys.path for part in ("cu13", "cuda_runtime")]
    folders = [pathlib.Path(place) / "include" for place in places]
    return next((folder for folder in folders if (folder / "cuda.h").exists()), None)


def test_values_and_layouts_are_those_of_the_real_header(tmp_path):
    include = cuda_headers()
    if include is None or shutil.which("g++") is None:
        pytest.skip("needs g++ and cuda.h, in CUDA_HOME/include or from an nvidia wheel")
    ours = (SOURCES / "cuda_abi.h").read_text() + (SOURCES / "cuda_results.h").read_text()
    names = re.findall(r"\b(CU_[A-Z0-9_a-z]+) = \d", ours)
    names += re.findall(r"X\((CUDA_[A-Z0-9_]+), \d", ours)
    names.remove("CU_DEVICE_ATTRIBUTE_MAX")  # grows with every release
    assert len(names) > 200
    lines = [f'show("{name}", (long long)({name}));' for name in names]
    for struct, fields in STRUCTS.items():
        lines.append(f'show("{struct}", sizeof({struct}));')
        lines += [f'show("{struct}.{f}", offsetof({struct}, {f}));' for f in fields]
    text = "#include <cstddef>\n#include <cstdio>\n#include HEADER\n"
    text += "void show(const char* name, long long value) {"
    text += ' std::printf("%s %lld\\n", name, value); }\n'
    text += "int main() {\n" + "\n".join(lines) + "\n}\n"
    (tmp_path / "show.cc").write_text(text)
    shown = []
    for header, folder in [("cuda_abi.h", SOURCES), ("cuda.h", include)]:
        program = tmp_path / f"show-{header}"
        command = ["g++", "-std=c++17", f'-DHEADER="{header}"', f"-I{folder}", "show.cc"]
        subprocess.run([*command, "-o", program], cwd=tmp_path, check=True)
        shown.append(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
    assert shown[0] == shown[1]
