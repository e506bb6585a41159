"""Waiting for a stream so that failures, timeouts and Ctrl-C end the wait."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_uint, c_void_p
from functools import cache, partial

from pynccl import bindings, errors, recorder
from pynccl.streams import check_driver, on_device
from pynccl.types import Result

__all__ = ["Handle", "StreamWait", "poll"]

# How long a wait asks without sleeping, and the longest sleep between two questions, in seconds.
EAGER = 200e-6
LONGEST_SLEEP = 1e-3
# How long a wait inside the driver may keep Ctrl-C waiting, in milliseconds.
SLICE = 50
# A wait that may last longer than so many seconds is, for the emulator's search for deadlocks, one
# without end.
SHORT = 2.0

SUCCESS, NOT_READY = 0, 600  # of CUresult


class Handle:
    """A communicator's handle, which arrays share with it: 0 once the communicator is gone."""

    __slots__ = ("_state", "_where", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        # Kept from one question to the next: to make them would take as long as to ask. Threads may
        # share them, as a communicator that has failed stays so.
        self._state = c_int()
        self._where = byref(self._state)

    def asynchronous_error(self) -> int:
        """Return the code of ``ncclCommGetAsyncError``; success without a communicator."""
        if not self.value:
            return 0
        code = bindings.ncclCommGetAsyncError(self.value, self._where)
        if code:
            errors.check(code, "ncclCommGetAsyncError")
        return self._state.value

    def failed(self) -> bool:
        """Tell whether the communicator has an asynchronous error."""
        return self.asynchronous_error() not in (Result.SUCCESS, Result.IN_PROGRESS)

    def raise_asynchronous_error(self) -> None:
        """Raise for an error that happened after a call returned."""
        state = self.asynchronous_error()
        if state:
            errors.check(state, "an operation of the communicator", self.value, recorded=True)


def poll(done: Callable[[], bool], timeout: float | None) -> bool:
    """Ask until ``done()``, more and more rarely. False after ``timeout`` seconds."""
    start = time.monotonic()
    pause = 0.0
    while not done():
        elapsed = time.monotonic() - start
        if timeout is not None and elapsed >= timeout:
            return False
        if elapsed > EAGER:
            pause = min(LONGEST_SLEEP, pause + 20e-6)
            time.sleep(pause)
    return True


@cache
def _driver_wait() -> Callable[..., int] | None:
    """Return the driver's own wait of limited length, which CUDA's does not have."""
    function = getattr(ctypes.CDLL("libcuda.so.1"), "pynccl_stream_wait", None)
    if function is not None:
        function.argtypes = [c_int, c_void_p, c_uint, c_int]
    return function


class StreamWait:
    """Waits for a stream of a communicator.

    Args:
        device: ordinal of the stream's GPU
        stream: the stream's handle
        handle: the communicator's
        timeout: seconds that a call may wait where it names no other; None for ever
    """

    __slots__ = ("_first", "device", "handle", "stream", "timeout")

    def __init__(self, device: int, stream: int, handle: Handle, timeout: float | None) -> None:
        self.device = device
        self.stream = stream
        self.handle = handle
        self.timeout = timeout
        wait = _driver_wait()
        # C's types made beforehand, which no call then has to do.
        self._first = wait and partial(
            wait, c_int(device), c_void_p(stream), c_uint(SLICE), c_int(True)
        )

    def __call__(self, timeout: float | None = None) -> None:
        """Block until the work queued on the stream is done.

        Raises:
            NCCLTimeout: it took longer than it may
            NCCLError: the communicator has an asynchronous error
        """
        handle = self.handle
        log = recorder.of(handle.value)
        issued = log.issued if log is not None else 0
        limit = self.timeout if timeout is None else timeout
        first = self._first
        if first is None:
            with on_device(self.device):
                done = self._ask(limit)
        # The first time without looking at the clock: mostly it is enough.
        elif limit is None and first() == SUCCESS:
            done = True
        else:
            done = self._wait_in_driver(first.func, limit)
        if not done:
            raise self._too_long(limit)
        handle.raise_asynchronous_error()
        if log is not None:
            log.synchronized(self.stream, issued)

    def _too_long(self, limit: float | None) -> errors.NCCLTimeout:
        return errors.NCCLTimeout(
            Result.TIMEOUT,
            "synchronize",
            f"the stream's work was not done after {limit:g} s; a rank may not have come to an "
            "operation. The communicator can be aborted",
            report=recorder.failed(self.handle.value, f"timeout after {limit:g} s"),
        )

    def _ask(self, limit: float | None) -> bool:
        from cuda.bindings import driver

        def done() -> bool:
            answer = driver.cuStreamQuery(self.stream)
            if answer[0] == NOT_READY:
                return self.handle.failed()
            check_driver(answer, "cuStreamQuery")
            return True

        return poll(done, limit)

    def _wait_in_driver(self, wait: Callable[..., int], limit: float | None) -> bool:
        slice_ = SLICE if limit is None else min(SLICE, int(limit * 1000) + 1)
        end = None if limit is None else time.monotonic() + limit
        for_good = True
        while True:
            if end is not None:
                for_good = end - time.monotonic() > SHORT
            if (result := wait(self.device, self.stream, slice_, for_good)) != NOT_READY:
                break
            if self.handle.failed():
                return True
            if end is not None and time.monotonic() >= end:
                return False
        if result != SUCCESS:
            from cuda.bindings import driver

            check_driver((driver.CUresult(result),), "waiting for the stream")
        return True
