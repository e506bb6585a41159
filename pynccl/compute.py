"""Array arithmetic on a communicator's GPU: cupy there, numpy on the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pynccl import library

__all__ = ["computing"]


@contextmanager
def computing(device: int, stream: int, wait: Callable[[], None]) -> Iterator[Any]:
    """Yield the array module, with its work ordered on the stream.

    Raises:
        ImportError: on a GPU, where cupy is not installed
    """
    if library.backend() == "emulator":
        import numpy

        wait()
        yield numpy
        return
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "compute() on a GPU needs CuPy: pip install cupy-cuda13x (or -cuda12x)"
        ) from error
    with cupy.cuda.Device(device), cupy.cuda.ExternalStream(stream, device):
        yield cupy
