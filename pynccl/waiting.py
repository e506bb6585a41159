"""Waiting for a stream so that failures, timeouts and Ctrl-C end the wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import byref, c_int

from pynccl import bindings, errors
from pynccl.streams import check_driver
from pynccl.types import Result

__all__ = ["Handle", "StreamWait", "poll"]

# How long a wait asks without sleeping, and the longest sleep between two questions, in seconds.
EAGER = 50e-6
LONGEST_SLEEP = 1e-3


class Handle:
    """A communicator's handle, which arrays share with it: 0 once the communicator is gone."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value

    def asynchronous_error(self) -> int:
        """Return the code of ``ncclCommGetAsyncError``; success without a communicator."""
        if self.value == 0:
            return Result.SUCCESS
        state = c_int()
        errors.check(
            bindings.ncclCommGetAsyncError(self.value, byref(state)), "ncclCommGetAsyncError"
        )
        return state.value

    def raise_asynchronous_error(self) -> None:
        """Raise for an error that happened after a call returned."""
        errors.check(self.asynchronous_error(), "an operation of the communicator", self.value)


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


class StreamWait:
    """Waits for a stream of a communicator.

    Args:
        device: ordinal of the stream's GPU
        stream: the stream's handle
        handle: the communicator's
        timeout: seconds that a call may wait where it names no other; None for ever
    """

    __slots__ = ("device", "handle", "stream", "timeout")

    def __init__(self, device: int, stream: int, handle: Handle, timeout: float | None) -> None:
        self.device = device
        self.stream = stream
        self.handle = handle
        self.timeout = timeout

    def __call__(self, timeout: float | None = None) -> None:
        """Block until the work queued on the stream is done.

        Raises:
            NCCLTimeout: it took longer than it may
            NCCLError: the communicator has an asynchronous error
        """
        from cuda.bindings import driver
        from cuda.core import Device

        Device(self.device).set_current()
        limit = self.timeout if timeout is None else timeout
        not_ready = driver.CUresult.CUDA_ERROR_NOT_READY

        def done() -> bool:
            answer = driver.cuStreamQuery(self.stream)
            if answer[0] != not_ready:
                check_driver(answer, "cuStreamQuery")
                return True
            state = self.handle.asynchronous_error()
            return state not in (Result.SUCCESS, Result.IN_PROGRESS)

        if not poll(done, limit):
            raise errors.NCCLTimeout(
                Result.TIMEOUT,
                "synchronize",
                f"the stream's work was not done after {limit:g} s; a rank may not have come to an "
                "operation. The communicator can be aborted",
            )
        self.handle.raise_asynchronous_error()
