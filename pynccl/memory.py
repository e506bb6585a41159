"""Memory as NCCL likes it best: for registered buffers and windows."""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any

from pynccl import bindings, errors

if TYPE_CHECKING:
    from cuda.core import Buffer

__all__ = ["mem_alloc", "mem_free"]


class _Memory:
    """Memory of ``ncclMemAlloc``, freed when nothing refers to it any more."""

    __slots__ = ("__weakref__", "_free", "ptr")

    def __init__(self, nbytes: int) -> None:
        self.ptr = 0
        self._free = bindings.ncclMemFree
        pointer = c_void_p()
        errors.check(bindings.ncclMemAlloc(byref(pointer), nbytes), "ncclMemAlloc")
        self.ptr = pointer.value or 0

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            self._free(self.ptr)


def mem_alloc(nbytes: int, device: Any = None) -> Buffer:
    """Allocate GPU memory (``ncclMemAlloc``, NCCL 2.19.1).

    Returns a ``cuda.core.Buffer``: bytes, at an address that is a multiple of 4096. To communicate
    them, pass ``(int(buffer.handle), count, dtype)``. The memory is freed by ``mem_free``, or when
    nothing refers to the buffer any more.

    Args:
        nbytes: bytes
        device: a ``cuda.core.Device`` or its ordinal; None for the current one
    Raises:
        NCCLCudaError: the GPU's memory does not suffice
        ValueError: ``nbytes`` is negative
    """
    from cuda.core import Buffer, Device

    if nbytes < 0:
        raise ValueError(f"nbytes {nbytes} must not be negative")
    (device if isinstance(device, Device) else Device(device)).set_current()
    memory = _Memory(nbytes)
    return Buffer.from_handle(memory.ptr, nbytes, owner=memory)


def mem_free(buffer: Buffer) -> None:
    """Free memory of ``mem_alloc`` (``ncclMemFree``, NCCL 2.19.1). A second call has no effect."""
    buffer.close()
