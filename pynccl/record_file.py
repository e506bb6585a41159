"""The file in which a rank's flight record is left, and when it is."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pynccl import record_signals, recorder

__all__ = ["FORMAT", "write", "write_quietly"]

FORMAT = 1
_reasons: list[dict[str, Any]] = []
_process = os.getpid()


def write(folder: Path, reason: str) -> Path:
    """Write the record of all communicators and return the file, which only its owner may read.

    Raises:
        OSError: the file cannot be written
    """
    _reasons.append({"reason": reason, "time": time.time()})
    rank, size = world()
    folder.mkdir(parents=True, exist_ok=True)
    who = "" if rank is None else f"rank{rank:05}-"
    path = folder / f"{who}{socket.gethostname()}-{os.getpid()}.json"
    # Beside its final place, so that a reader finds a whole file or none.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(content(rank, size), file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def write_quietly(reason: str) -> None:
    """Write to the folder of ``PYNCCL_TRACE``; what keeps it from that is told, and not raised.

    A forked child writes nothing: the communicators are its parent's.
    """
    if os.getpid() != _process:
        return
    try:
        write(Path(os.environ["PYNCCL_TRACE"]), reason)
    except Exception as error:
        print(
            f"pynccl: the flight record could not be written to "
            f"PYNCCL_TRACE={os.environ.get('PYNCCL_TRACE')}: {type(error).__name__}: {error}",
            file=sys.stderr,
        )


def content(rank: int | None, size: int | None) -> dict[str, Any]:
    """Return what the file holds."""
    from pynccl import library

    loaded = library.load() if recorder.logs() else None
    # The two clocks read together: the operations' times are the monotonic one's.
    epoch, monotonic = time.time(), time.perf_counter()
    return {
        "format": FORMAT,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "world_rank": rank,
        "world_size": size,
        "program": sys.argv,
        "backend": loaded.backend if loaded else None,
        "nccl": loaded.version if loaded else None,
        "clock": {"epoch": epoch, "monotonic": monotonic},
        "reasons": _reasons,
        "communicators": [_communicator(log) for log in recorder.logs()],
    }


def _communicator(log: recorder.Log) -> dict[str, Any]:
    return {
        "identity": log.identity,
        "alias": log.alias,
        "rank": log.rank,
        "nranks": log.nranks,
        "device": log.device,
        "state": log.state,
        "issued": log.issued,
        "collectives": log.collectives,
        "messages": [[function, peer, n] for (function, peer), n in log.peers.copy().items()],
        "operations": [operation._asdict() for operation in log.operations()],
    }


def world() -> tuple[int | None, int | None]:
    """Return the rank and size of MPI's world; None where there is no MPI to say."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return int(mpi.COMM_WORLD.rank), int(mpi.COMM_WORLD.size)
    for prefix in ("OMPI_COMM_WORLD_", "PMIX_", "PMI_"):
        rank, size = (os.environ.get(prefix + word, "") for word in ("RANK", "SIZE"))
        if rank.isdecimal():
            return int(rank), int(size) if size.isdecimal() else None
    return None, None


def write_at_exit() -> None:
    """Leave the record when the process ends; the error that ended it is the reason."""
    error = getattr(sys, "last_value", None)
    recorder.ended("exit" if error is None else f"exit after {type(error).__name__}")


def begin() -> None:
    """Arrange for the record to be left whenever the process ends."""
    atexit.register(write_at_exit)
    record_signals.watch()
