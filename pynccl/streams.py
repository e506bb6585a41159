"""Any stream object as a handle, and the order between streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["check_driver", "handle_of", "make_wait", "on_device", "same"]

# Handles with a meaning: the legacy default stream has two.
LEGACY = 1


def handle_of(stream: Any) -> int:
    """Return the CUDA handle of a stream.

    Args:
        stream: a ``cuda.core.Stream``, anything with ``__cuda_stream__``, a CuPy or PyTorch
            stream, or the handle itself
    Raises:
        TypeError: it is no stream
    """
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, handle = protocol() if callable(protocol) else protocol
        if version != 0:
            raise TypeError(f"stream: version {version} of __cuda_stream__ is not known")
        return int(handle)
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    raise TypeError(
        f"stream is a {type(stream).__name__}; it must be a cuda.core.Stream, an object with "
        "__cuda_stream__, or a handle"
    )


def same(one: int, other: int) -> bool:
    """Tell whether two handles name one stream."""
    return one == other or (one in (0, LEGACY) and other in (0, LEGACY))


@contextmanager
def on_device(ordinal: int) -> Iterator[None]:
    """Make a GPU current to this thread, and afterwards the one that was.

    Where none was, it stays current.
    """
    from cuda.bindings import driver
    from cuda.core import Device

    before = check_driver(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
    Device(ordinal).set_current()
    try:
        yield
    finally:
        if int(before):
            driver.cuCtxSetCurrent(before)


def make_wait(consumer: int, producer: int, device: int | None = None) -> None:
    """Make what comes next on one stream wait for what is queued on another.

    Where the waiting stream is captured into a graph nothing is done: a graph cannot wait for what
    is outside it, and whoever launches it orders it.

    Args:
        device: ordinal of the GPU that both belong to; None for the current one
    """
    if same(consumer, producer):
        return
    if device is not None:
        # The default stream is that of the current GPU, and an event belongs to it.
        with on_device(device):
            make_wait(consumer, producer)
        return
    from cuda.bindings import driver

    status = check_driver(driver.cuStreamIsCapturing(consumer), "cuStreamIsCapturing")
    if status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
        return
    event = check_driver(
        driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING), "cuEventCreate"
    )
    try:
        check_driver(driver.cuEventRecord(event, producer), "cuEventRecord")
        check_driver(driver.cuStreamWaitEvent(consumer, event, 0), "cuStreamWaitEvent")
    finally:
        driver.cuEventDestroy(event)  # lives on until the wait is over


def check_driver(answer: tuple[Any, ...], function: str) -> Any:
    """Return what a driver function gave, or raise for its error.

    Raises:
        NCCLCudaError: naming the function and CUDA's own words
    """
    result = answer[0]
    if result == 0:
        return answer[1] if len(answer) > 1 else None
    from cuda.bindings import driver

    from pynccl.emulator import races
    from pynccl.errors import NCCLCudaError

    text = (driver.cuGetErrorString(result)[1] or b"").decode()
    if result == driver.CUresult.CUDA_ERROR_ILLEGAL_STATE:
        text = races.last_race() or text
    raise NCCLCudaError(1, function, f"{result.name} ({text})")
