"""Failures to rehearse on the emulator: ranks that die or are late, calls that fail, full GPUs.

As functions, each for as long as a ``with`` block lasts or until ``clear``::

    with faults.delay(rank=1, operation=5, milliseconds=200):
        train(comm)

or in the environment, from the start of every process::

    PYNCCL_EMULATOR_FAULTS="kill rank=2 operation=10; fail rank=0 function=ncclGetUniqueId"

The rank is that in the communicator of ``from_mpi`` or ``init``, also for communicators that were
split, shrunk or grown from it; for functions that take no communicator it is the launcher's rank.
Operations, calls and allocations are counted from 1 on each rank or GPU, since the fault was set.
Each fault says on stderr that it has happened. A fault happens once on a rank; a GPU that is out of
memory stays so.
"""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import c_int
from typing import Any

from pynccl import library
from pynccl.functions import FUNCTIONS
from pynccl.types import ENUMS

__all__ = ["GRAMMAR", "VARIABLE", "Fault", "clear", "delay", "error", "fail", "kill"]
__all__ += ["out_of_memory", "parse", "set_from_environment"]

VARIABLE = "PYNCCL_EMULATOR_FAULTS"

GRAMMAR = """\
kill [rank=R] [operation=N]
delay [rank=R] [operation=N] milliseconds=M
error [rank=R] [operation=N] [result=ncclRemoteError]
fail [rank=R] function=ncclName [call=N] [result=ncclSystemError]
out_of_memory [device=D] allocation=N
out_of_memory [device=D] free=BYTES
Several are separated by semicolons. Left out, a rank or device is every one, N is 1; BYTES may end
in K, M or G."""

KINDS = ("kill", "delay", "error", "fail", "out_of_memory")  # numbered as FaultKind in C++
RESULTS = {name: value for name, (value, _) in ENUMS["ncclResult_t"].items()}
NO_FAILURES = ("ncclSuccess", "ncclInProgress", "ncclNumResults")
# These must work for the library to be loaded, or return no result code.
CANNOT_FAIL = ("ncclGetVersion", *(n for n, row in FUNCTIONS.items() if row.restype is not c_int))

FIELDS: dict[str, dict[str, Any]] = {  # of each kind, with what they are when left out
    "kill": {"rank": None, "operation": 1},
    "delay": {"rank": None, "operation": 1, "milliseconds": ...},
    "error": {"rank": None, "operation": 1, "result": "ncclRemoteError"},
    "fail": {"rank": None, "function": ..., "call": 1, "result": "ncclSystemError"},
    "out_of_memory": {"device": None, "allocation": None, "free": None},
}


class Fault:
    """A fault in force. As a context manager it is cleared at the end of the block."""

    def __init__(self, kind: str, **fields: Any) -> None:
        settings = checked(kind, fields)
        loaded = library.load()
        if loaded.backend != "emulator":
            raise RuntimeError(
                f"failures are rehearsed on the emulator only, and this process has loaded "
                f"{loaded.path}: set PYNCCL_BACKEND=emulator"
            )
        self._set(kind, settings)

    @classmethod
    def _of(cls, kind: str, settings: dict[str, Any]) -> Fault:
        made = object.__new__(cls)
        made._set(kind, settings)
        return made

    def _set(self, kind: str, settings: dict[str, Any]) -> None:
        given = {name: value for name, value in settings.items() if value is not None}
        self.text = " ".join([kind, *(f"{name}={value}" for name, value in given.items())])
        place = given.get("operation") or given.get("call") or given.get("allocation") or 0
        value = given.get("milliseconds", given.get("free", 0))
        if "result" in given:
            value = RESULTS[given["result"]]
        self._id = _driver().pynccl_fault_set(
            KINDS.index(kind),
            given.get("rank", given.get("device", -1)),
            place,
            value,
            library.environment_rank(),
            given.get("function", "").encode(),
            self.text.encode(),
        )
        self._fired = 0
        _in_force.append(self)

    @property
    def fired(self) -> int:
        """How many times it has happened in this process."""
        if self in _in_force:
            self._fired = int(_driver().pynccl_fault_fired(self._id))
        return self._fired

    def clear(self) -> None:
        """End the fault. A second call is without effect."""
        if self in _in_force:
            self._fired = self.fired
            _driver().pynccl_fault_clear(self._id)
            _in_force.remove(self)

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"<Fault {self.text}>"


_in_force: list[Fault] = []


def kill(*, rank: int | None = None, operation: int = 1) -> Fault:
    """End the process of a rank by SIGKILL as its n-th operation begins.

    Other ranks in that process, of its other threads or GPUs, die with it.
    """
    return Fault("kill", rank=rank, operation=operation)


def delay(*, milliseconds: int, rank: int | None = None, operation: int = 1) -> Fault:
    """Let the n-th operation of a rank begin late, on its stream; the call returns at once."""
    return Fault("delay", rank=rank, operation=operation, milliseconds=milliseconds)


def error(
    *, rank: int | None = None, operation: int = 1, result: str = "ncclRemoteError"
) -> Fault:
    """Give a communicator an asynchronous error, on all its ranks, at an operation of one."""
    return Fault("error", rank=rank, operation=operation, result=result)


def fail(
    *, function: str, rank: int | None = None, call: int = 1, result: str = "ncclSystemError"
) -> Fault:
    """Let the n-th call of a function of ``nccl.h`` return a result code and do nothing else."""
    return Fault("fail", rank=rank, function=function, call=call, result=result)


def out_of_memory(
    *, device: int | None = None, allocation: int | None = None, free: int | str | None = None
) -> Fault:
    """Refuse memory on a GPU, as long as the fault is set.

    Args:
        device: the GPU's index on the node, whatever ``CUDA_VISIBLE_DEVICES`` says
        allocation: refuse from the n-th allocation on; a communicator itself makes two
        free: or leave the GPU so many bytes in all, those taken already included
    """
    return Fault("out_of_memory", device=device, allocation=allocation, free=free)


def clear() -> None:
    """End all faults of this process, those of the environment included."""
    for fault in list(_in_force):
        fault.clear()


def parse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and the fields of each fault of a text as the environment has it.

    Raises:
        ValueError: the text is wrong; the message shows the grammar
    """
    found = []
    for clause in filter(None, (part.strip() for part in re.split(r"[;\n]", text))):
        kind, *words = clause.split()
        fields: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not value or name in fields:
                raise ValueError(_wrong(clause, f"{word!r} is not one field=value"))
            fields[name] = value
        try:
            found.append((kind, checked(kind, fields)))
        except ValueError as problem:
            raise ValueError(_wrong(clause, str(problem))) from None
    return found


def set_from_environment() -> None:
    """Set what ``PYNCCL_EMULATOR_FAULTS`` asks for; the emulator's loader calls it once.

    Raises:
        ValueError: as of ``parse``
    """
    for kind, settings in parse(os.environ.get(VARIABLE, "")):
        Fault._of(kind, settings)


def checked(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return all fields of a fault as they are used, from what was given.

    Raises:
        ValueError: there is no such kind, field, function or result, or a number is wrong
    """
    if kind not in FIELDS:
        raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
    for name in fields:
        if name not in FIELDS[kind]:
            raise ValueError(f"{kind} has no {name!r}, only {', '.join(FIELDS[kind])}")
    settings = {**FIELDS[kind], **{n: v for n, v in fields.items() if v is not None}}
    for name, value in settings.items():
        if value is ...:
            raise ValueError(f"{kind} needs {name}=")
        if value is not None:
            settings[name] = _value(name, value)
    if kind == "out_of_memory" and (settings["allocation"] is None) == (settings["free"] is None):
        raise ValueError("out_of_memory needs either allocation= or free=")
    return settings


def _value(name: str, value: Any) -> Any:
    if name == "function":
        if value not in FUNCTIONS or value in CANNOT_FAIL:
            raise ValueError(f"function={value} is no function of nccl.h that can fail")
        return value
    if name == "result":
        if value not in RESULTS or value in NO_FAILURES:
            known = ", ".join(known for known in RESULTS if known not in NO_FAILURES)
            raise ValueError(f"result={value} is none of {known}")
        return value
    least = 1 if name in ("operation", "call", "allocation") else 0
    units = {"": 0, "K": 10, "M": 20, "G": 30} if name == "free" else {"": 0}
    match = re.fullmatch(r"(\d{1,12})([KMG]?)", str(value))
    if match is None or match[2] not in units or int(match[1]) < least:
        unit = ", of bytes with K, M or G if need be" if name == "free" else ""
        raise ValueError(f"{name}={value} is no number from {least}{unit}")
    return int(match[1]) << units[match[2]]


def _wrong(clause: str, problem: str) -> str:
    indented = "\n    ".join(GRAMMAR.splitlines())
    return f"{VARIABLE}: {clause!r}: {problem}. The faults are:\n    {indented}"


def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")  # the emulator's, which is loaded
    driver.pynccl_fault_set.argtypes = [
        c_int,
        c_int,
        ctypes.c_ulonglong,
        ctypes.c_longlong,
        c_int,
        ctypes.c_char_p,
        ctypes.c_char_p,
    ]
    driver.pynccl_fault_fired.restype = ctypes.c_ulonglong
    return driver
