"""The emulator's check for races, where Python touches GPU memory by itself."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from pynccl import errors
from pynccl.types import Result

__all__ = ["host_reads", "last_race"]


@cache
def _function(name: str) -> Any:
    """Return a function of the emulated driver; None where the real one is loaded."""
    return getattr(ctypes.CDLL("libcuda.so.1"), name, None)


def host_reads(ptr: int, nbytes: int) -> None:
    """Make sure that the host may read GPU memory: whatever writes it has been waited for.

    Raises:
        NCCLInvalidUsage: it has not, with the operation and its stream
    """
    ask = _function("pynccl_host_access")
    reads = 0
    if ask(ctypes.c_void_p(ptr), ctypes.c_size_t(nbytes), reads) != 0 and last_race():
        raise errors.NCCLInvalidUsage(Result.INVALID_USAGE, "numpy.asarray", last_race())


def last_race() -> str:
    """Return what the thread's last driver call was refused for; empty on a real GPU."""
    text = _function("pynccl_race")
    if text is None:
        return ""
    text.restype = ctypes.c_char_p
    return str(text().decode())
