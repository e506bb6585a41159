"""What a communicator lends: reductions, registered buffers, windows. Each is closed once."""

from __future__ import annotations

from ctypes import byref, c_void_p
from types import TracebackType
from typing import Any

from pynccl import bindings, errors
from pynccl.waiting import Handle

__all__ = ["CustomRedOp", "RegisteredBuffer", "RegisteredWindow"]


class _Resource:
    """Belongs to a communicator and is gone with it; ``close`` may come earlier, and twice."""

    _release: str

    def __init__(self, owner: Handle, value: int) -> None:
        self._owner = owner
        self._value = value
        self._closed = False

    @property
    def is_valid(self) -> bool:
        """Whether neither the resource was closed nor its communicator destroyed."""
        return not self._closed and self._owner.value != 0

    def close(self) -> None:
        """Give the resource back. Without effect where it or its communicator is gone."""
        if not self.is_valid:
            self._closed = True
            return
        self._closed = True
        errors.check(
            getattr(bindings, self._release)(*self._release_arguments()),
            self._release,
            self._owner.value,
        )

    def _release_arguments(self) -> tuple[int, int]:
        return self._owner.value, self._value

    def _use(self) -> int:
        if not self.is_valid:
            raise ValueError(f"{self!r} is closed, or its communicator was destroyed")
        return self._value

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class CustomRedOp(_Resource):
    """A reduction made by ``create_pre_mul_sum``, to pass as ``op``.

    ``close()`` is ``ncclRedOpDestroy`` (NCCL 2.11.4).
    """

    _release = "ncclRedOpDestroy"

    def __init__(self, owner: Handle, value: int, keep: Any) -> None:
        super().__init__(owner, value)
        self._keep = keep  # a scalar on the GPU is read when a collective runs

    def _release_arguments(self) -> tuple[int, int]:
        return self._value, self._owner.value

    @property
    def op(self) -> int:
        """The value of ``ncclRedOp_t``.

        Raises:
            ValueError: it is closed
        """
        return self._use()

    def __int__(self) -> int:
        return self._use()

    def __repr__(self) -> str:
        return f"<CustomRedOp {self._value}>"


class RegisteredBuffer(_Resource):
    """A buffer that NCCL may read and write without copies (``ncclCommRegister``, NCCL 2.19.1).

    Keeps the buffer while it is registered. ``close()`` is ``ncclCommDeregister``.
    """

    _release = "ncclCommDeregister"

    def __init__(self, owner: Handle, buffer: Any, ptr: int, nbytes: int) -> None:
        handle = c_void_p()
        errors.check(
            bindings.ncclCommRegister(owner.value, ptr, nbytes, byref(handle)),
            "ncclCommRegister",
            owner.value,
        )
        super().__init__(owner, handle.value or 0)
        self._buffer = buffer
        self.size = nbytes

    def close(self) -> None:
        """Deregister the buffer and let go of it."""
        super().close()
        self._buffer = None

    @property
    def handle(self) -> int:
        """NCCL's handle.

        Raises:
            ValueError: it is closed
        """
        return self._use()

    def __repr__(self) -> str:
        return f"<RegisteredBuffer of {self.size} bytes>"


class RegisteredWindow(_Resource):
    """Memory that all ranks have registered together (``ncclCommWindowRegister``, NCCL 2.27.3).

    Keeps the buffer while it is registered. ``close()`` is ``ncclCommWindowDeregister``.
    """

    _release = "ncclCommWindowDeregister"

    def __init__(self, owner: Handle, buffer: Any, ptr: int, nbytes: int, flags: int) -> None:
        # In a group, and for a communicator that is not blocking, NCCL fills this in later.
        self._window = c_void_p()
        errors.check(
            bindings.ncclCommWindowRegister(owner.value, ptr, nbytes, byref(self._window), flags),
            "ncclCommWindowRegister",
            owner.value,
        )
        super().__init__(owner, 0)
        self._buffer = buffer
        self.size = nbytes

    def _release_arguments(self) -> tuple[int, int]:
        return self._owner.value, self._window.value or 0

    def close(self) -> None:
        """Deregister the window on this rank, when no put to it is under way."""
        super().close()
        self._buffer = None

    @property
    def handle(self) -> int:
        """NCCL's handle; 0 until the group ends or the communicator is ready.

        Raises:
            ValueError: it is closed
        """
        self._use()
        return self._window.value or 0

    @property
    def user_ptr(self) -> int:
        """Address of this rank's part (``ncclWinGetUserPtr``, NCCL 2.29.2)."""
        pointer = c_void_p()
        errors.check(
            bindings.ncclWinGetUserPtr(self._owner.value, self.handle, byref(pointer)),
            "ncclWinGetUserPtr",
            self._owner.value,
        )
        return pointer.value or 0

    def __repr__(self) -> str:
        return f"<RegisteredWindow of {self.size} bytes>"
