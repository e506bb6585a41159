"""How a communicator is doing, and what stops and resumes it."""

from __future__ import annotations

from ctypes import byref, c_uint64

from pynccl import bindings, errors, recorder
from pynccl.flags import CommSuspendFlag
from pynccl.one_sided import OneSided
from pynccl.types import CommMemStat, Result
from pynccl.waiting import poll

__all__ = ["Condition"]


class Condition(OneSided):
    """What a communicator tells of itself, and its states between made and destroyed."""

    _finalized: bool

    @property
    def ptr(self) -> int:
        """NCCL's handle (``ncclComm_t``); 0 once the communicator is gone."""
        return self._handle.value

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until a communicator that is not blocking has done what was last asked of it.

        Raises:
            NCCLTimeout: it was not ready after ``timeout`` seconds
            NCCLError: it failed
        """
        comm = self.ptr or self._gone()
        if not poll(lambda: self._handle.asynchronous_error() != Result.IN_PROGRESS, timeout):
            raise errors.NCCLTimeout(
                Result.TIMEOUT,
                "wait_ready",
                f"still in progress after {timeout:g} s",
                report=recorder.failed(comm, f"wait_ready: timeout after {timeout:g} s"),
            )
        errors.check(self._handle.asynchronous_error(), "ncclCommGetAsyncError", comm)

    def revoke(self) -> None:
        """Stop the work under way and take no more (``ncclCommRevoke``, NCCL 2.28.7).

        Every rank that is left calls it; then split, shrink, destroy and abort are possible, and
        finalize is not.
        """
        comm = self._handle.value or self._gone()
        self._finalized = True  # there is nothing left to finalize
        errors.check(bindings.ncclCommRevoke(comm, 0), "ncclCommRevoke", comm)

    def suspend(self, flags: CommSuspendFlag = CommSuspendFlag.MEM) -> None:
        """Give memory back; nothing may be asked of it until ``resume``.

        ``ncclCommSuspend``, NCCL 2.29.7. Called by all ranks, when no operation is under way.
        """
        comm = self._handle.value or self._gone()
        errors.check(bindings.ncclCommSuspend(comm, flags), "ncclCommSuspend", comm)

    def resume(self) -> None:
        """End a ``suspend`` (``ncclCommResume``, NCCL 2.29.7)."""
        comm = self._handle.value or self._gone()
        errors.check(bindings.ncclCommResume(comm), "ncclCommResume", comm)

    def get_mem_stat(self, stat: CommMemStat) -> int:
        """Return a statistic of its GPU memory, in bytes (``ncclCommMemStats``, NCCL 2.29.7).

        ``GPU_MEM_SUSPENDED`` is 1 while the communicator is suspended, else 0.
        """
        comm = self._handle.value or self._gone()
        value = c_uint64()
        errors.check(bindings.ncclCommMemStats(comm, stat, byref(value)), "ncclCommMemStats", comm)
        return value.value

    def get_async_error(self) -> Result:
        """Return how the communicator is doing (``ncclCommGetAsyncError``, NCCL 2.4.2)."""
        if not (self._handle.value or self._gone()):
            return Result.SUCCESS
        return Result(self._handle.asynchronous_error())

    def get_last_error(self) -> str:
        """Return NCCL's account of the last error (``ncclGetLastError``, NCCL 2.13.4)."""
        return (bindings.ncclGetLastError(self.ptr) or b"").decode(errors="replace")
