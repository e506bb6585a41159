"""Memory as NCCL likes it best: for registered buffers and windows."""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import Any

from pynccl import bindings, errors

__all__ = ["Memory", "mem_alloc", "mem_free"]


class Memory:
    """GPU memory of ``ncclMemAlloc``, freed when nothing refers to it any more.

    Attributes:
        ptr: its address, a multiple of 4096
        nbytes: how much was asked for
    """

    __slots__ = ("__weakref__", "_free", "nbytes", "ptr")

    def __init__(self, nbytes: int) -> None:
        self.ptr = 0
        self.nbytes = nbytes
        self._free = bindings.ncclMemFree
        pointer = c_void_p()
        errors.check(bindings.ncclMemAlloc(byref(pointer), nbytes), "ncclMemAlloc")
        self.ptr = pointer.value or 0

    def free(self) -> None:
        """Free the memory now (``ncclMemFree``). A second call is without effect."""
        pointer, self.ptr = self.ptr, 0
        if pointer:
            errors.check(self._free(pointer), "ncclMemFree")

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            self._free(self.ptr)


def mem_alloc(nbytes: int, device: Any = None) -> Memory:
    """Allocate GPU memory (``ncclMemAlloc``, NCCL 2.19.1).

    Args:
        nbytes: bytes
        device: a ``cuda.core.Device`` or its ordinal; None for the current one
    Raises:
        NCCLCudaError: the GPU's memory does not suffice
    """
    from cuda.core import Device

    if nbytes < 0:
        raise ValueError(f"nbytes {nbytes} must not be negative")
    (device if isinstance(device, Device) else Device(device)).set_current()
    return Memory(nbytes)


def mem_free(memory: Memory) -> None:
    """Free memory of ``mem_alloc`` (``ncclMemFree``, NCCL 2.19.1)."""
    memory.free()
