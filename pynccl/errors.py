"""Exceptions: NCCL's result codes, and what goes wrong before NCCL is reached."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pynccl.types import ENUMS, Result, version_code, version_text

__all__ = [
    "EmulatorBuildError",
    "NCCLCudaError",
    "NCCLError",
    "NCCLInternalError",
    "NCCLInvalidArgument",
    "NCCLInvalidUsage",
    "NCCLLibraryNotFound",
    "NCCLNotSupported",
    "NCCLRemoteError",
    "NCCLSystemError",
    "NCCLTimeout",
    "check",
]


class NCCLError(RuntimeError):
    """What NCCL reported.

    Attributes:
        result: the code: a ``pynccl.Result``, or the bare number of a code not known here
        function: the function of ``nccl.h`` that was called
        detail: NCCL's own account of it (``ncclGetLastError``), possibly empty
        report: the last operations of the communicator on this rank, where it is a matter of them
    """

    _kind = ""  # in place of the result's name, in the text

    def __init__(
        self, result: int, function: str, detail: str = "", hint: str = "", report: str = ""
    ) -> None:
        try:
            self.result: int = Result(result)
            name = Result(result).name
        except ValueError:
            self.result = result
            name = f"result code {result}"
        self.function = function
        self.detail = detail
        self.report = report
        text = f"{function}: {self._kind or name.lower().replace('_', ' ')}"
        if detail:
            text += f": {detail}"
        if hint:
            text += f" ({hint})"
        if report:
            text += f"\n{report}"
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (int(self.result), self.function, self.detail, "", self.report))


class NCCLCudaError(NCCLError):
    """A CUDA call inside NCCL failed (``ncclUnhandledCudaError``)."""


class NCCLSystemError(NCCLError):
    """A system call inside NCCL failed (``ncclSystemError``)."""


class NCCLInternalError(NCCLError):
    """An error inside NCCL (``ncclInternalError``)."""


class NCCLInvalidArgument(NCCLError):
    """An argument was wrong (``ncclInvalidArgument``)."""


class NCCLInvalidUsage(NCCLError):
    """The call was wrong at this point (``ncclInvalidUsage``)."""


class NCCLRemoteError(NCCLError):
    """Another rank failed or went away (``ncclRemoteError``)."""


class NCCLTimeout(NCCLError, TimeoutError):
    """Something took longer than it may (``ncclTimeout``, or a ``timeout=`` of this package)."""


class NCCLNotSupported(NCCLError):
    """The loaded libnccl lacks a function, a field or a type."""

    _kind = "not supported"

    def __init__(self, function: str, needs: str, have: str, path: str, note: str = "") -> None:
        super().__init__(
            Result.INVALID_USAGE,
            function,
            f"needs NCCL {needs} or later; the loaded library is NCCL {have} ({path})",
            note,
        )
        self._arguments = (function, needs, have, path, note)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self._arguments)


class NCCLLibraryNotFound(NCCLError, ImportError):
    """No usable libnccl, or no driver and GPU for it."""

    _kind = "not found"

    def __init__(self, detail: str) -> None:
        super().__init__(Result.SYSTEM_ERROR, "NCCL", detail)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.detail,))


class EmulatorBuildError(RuntimeError):
    """The emulator could not be compiled."""


_CLASSES: dict[int, type[NCCLError]] = {
    Result.UNHANDLED_CUDA_ERROR: NCCLCudaError,
    Result.SYSTEM_ERROR: NCCLSystemError,
    Result.INTERNAL_ERROR: NCCLInternalError,
    Result.INVALID_ARGUMENT: NCCLInvalidArgument,
    Result.INVALID_USAGE: NCCLInvalidUsage,
    Result.REMOTE_ERROR: NCCLRemoteError,
    Result.TIMEOUT: NCCLTimeout,
}

_NO_DRIVER = (
    "no CUDA driver or GPU was found on this machine; PYNCCL_BACKEND=emulator runs the program "
    "on the CPU"
)


def make(
    result: int, function: str, detail: str = "", hint: str = "", report: str = ""
) -> NCCLError:
    """Return the exception that stands for a result code."""
    return _CLASSES.get(result, NCCLError)(result, function, detail, hint, report)


def check(
    result: int,
    function: str,
    comm: int = 0,
    datatype: int | None = None,
    *,
    recorded: bool = False,
) -> None:
    """Raise the exception for a result code other than success and in-progress.

    Args:
        result: what the function returned
        function: its name in ``nccl.h``
        comm: the communicator's handle, for NCCL's account of the error
        datatype: of the call's elements, which the loaded libnccl may be too old for
        recorded: the error came after its call: its text ends with the communicator's last
            operations, as it always does where ranks or the machine went wrong
    """
    if result in (Result.SUCCESS, Result.IN_PROGRESS):
        return
    # These import this module, and are needed only here, where something has failed.
    bindings: Any = import_module("pynccl.bindings")
    library: Any = import_module("pynccl.library")
    if datatype is not None:
        _check_datatype(datatype, library.load())
    detail = ""
    if bindings.available("ncclGetLastError"):
        detail = (bindings.ncclGetLastError(comm) or b"").decode(errors="replace").strip()
    if not detail:
        detail = (bindings.ncclGetErrorString(result) or b"").decode(errors="replace")
    hint = ""
    if result == Result.UNHANDLED_CUDA_ERROR and not library.gpu_answers():
        hint = _NO_DRIVER
    report = ""
    if comm:
        recorder: Any = import_module("pynccl.recorder")
        if recorded or result != Result.INVALID_ARGUMENT:
            report = recorder.failed(comm, f"{function}: {detail}")
        else:
            recorder.refused(comm, function)
    raise make(result, function, detail, hint, report)


def _check_datatype(datatype: int, loaded: Any) -> None:
    for name, (value, since) in ENUMS["ncclDataType_t"].items():
        if value == datatype and version_code(since) > loaded.version:
            raise NCCLNotSupported(name, since, version_text(loaded.version), loaded.path)
