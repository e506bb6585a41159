"""Which libnccl and which CUDA driver this process uses, from where and why."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from pynccl.errors import NCCLLibraryNotFound, NCCLNotSupported
from pynccl.types import version_code, version_text

__all__ = [
    "Candidate",
    "Library",
    "backend",
    "driver_problem",
    "environment_rank",
    "gpu_answers",
    "load",
    "require_gpu",
    "search",
]

NAME = "libnccl.so.2"
OLDEST = "2.18.1"
WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
BACKENDS = ("nccl", "emulator", "auto")


@dataclass(frozen=True)
class Candidate:
    """A place where libnccl was looked for, and what was found there."""

    where: str
    path: str
    outcome: str


@dataclass(frozen=True)
class Library:
    """The loaded libnccl.

    Attributes:
        cdll: the ctypes handle
        path: the file
        version: NCCL's number, 23203 for 2.32.3
        backend: ``"nccl"`` or ``"emulator"``
        where: which step of the search found it
    """

    cdll: ctypes.CDLL = field(repr=False)
    path: str
    version: int
    backend: str
    where: str


_lock = threading.RLock()
_loaded: Library | None = None
_search: list[Candidate] = []


def search() -> list[Candidate]:
    """Return where libnccl was looked for so far in this process, in order, with the outcomes."""
    return list(_search)


def backend() -> str:
    """Return the backend in use, ``"nccl"`` or ``"emulator"``, without loading a library.

    Raises:
        ValueError: ``PYNCCL_BACKEND`` is none of nccl, emulator, auto
    """
    if _loaded is not None:
        return _loaded.backend
    wanted = os.environ.get("PYNCCL_BACKEND") or "nccl"
    if wanted not in BACKENDS:
        raise ValueError(f"PYNCCL_BACKEND is {wanted!r}; it must be one of {', '.join(BACKENDS)}")
    if wanted != "auto":
        return wanted
    return "nccl" if gpu_answers() else "emulator"


def load() -> Library:
    """Return the libnccl of this process, loading it on the first call.

    Raises:
        NCCLLibraryNotFound: there is none that can be loaded; the message tells the search
        NCCLNotSupported: it is older than NCCL 2.18
        EmulatorBuildError: the emulator was asked for and cannot be compiled
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    with _lock:
        if _loaded is None:
            chosen = backend()
            # Asked before the emulator's driver is there to answer.
            problem = driver_problem() if os.environ.get("PYNCCL_BACKEND") == "auto" else ""
            _loaded = _load_emulator() if chosen == "emulator" else _load_nccl()
            if os.environ.get("PYNCCL_BACKEND") == "auto" and environment_rank() == 0:
                print(_choice(_loaded, problem), file=sys.stderr)
    return _loaded


def gpu_answers() -> bool:
    """Tell whether a CUDA driver is here and shows this process at least one GPU."""
    return driver_problem() == ""


def require_gpu() -> None:
    """Raise where nothing can be computed: no driver, or no GPU, for the real NCCL.

    Raises:
        NCCLLibraryNotFound: naming what was looked for, what was found, and the emulator
    """
    loaded = load()
    with _lock:  # threads that import cuda.core at the same time may find it half made
        import_module("cuda.core")
    if loaded.backend == "emulator":
        return
    problem = driver_problem()
    if problem:
        raise NCCLLibraryNotFound(
            f"{problem}; libnccl itself was found: {load().path} "
            f"(NCCL {version_text(load().version)}). Set PYNCCL_BACKEND=emulator to run on the "
            "CPU instead"
        )


def candidates() -> Iterator[tuple[str, str]]:
    """Yield where libnccl may be, as (which step of the search, path), in the order of trust."""
    explicit = os.environ.get("PYNCCL_LIBRARY")
    if explicit:
        yield "PYNCCL_LIBRARY", explicit
        return
    for path in already_loaded():
        yield "already loaded in this process", path
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield "LD_LIBRARY_PATH", os.path.join(folder, NAME)
    home = os.environ.get("NCCL_HOME")
    if home:
        for folder in ("lib", "lib64"):
            yield "NCCL_HOME", os.path.join(home, folder, NAME)
    for wheel, path in wheels():
        yield f"wheel {wheel}", path
    yield "the loader's own path", NAME


def already_loaded() -> list[str]:
    """Return the files named libnccl.so that are mapped into this process."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/libnccl.so" in line}
    return sorted(paths)


def wheels() -> list[tuple[str, str]]:
    """Return (wheel and version, path of its libnccl) of the wheels that are installed."""
    found = []
    for name in WHEELS:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        path = str(distribution.locate_file(f"nvidia/nccl/lib/{NAME}"))
        found.append((f"{name} {distribution.version}", path))
    return found


def _load_nccl() -> Library:
    _search.clear()
    for where, path in candidates():
        if os.path.sep in path and not os.path.exists(path):
            _search.append(Candidate(where, path, "no such file"))
            continue
        try:
            cdll = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            _search.append(Candidate(where, path, str(error)))
            continue
        _search.append(Candidate(where, path, "loaded"))
        return _opened(cdll, path, "nccl", where)
    tried = "; ".join(f"{c.where}: {c.path}: {c.outcome}" for c in _search)
    driver = driver_problem()
    also = f" There is no usable GPU either: {driver}." if driver else ""
    raise NCCLLibraryNotFound(
        f"no {NAME} could be loaded. Looked for it in: {tried}.{also} Install nvidia-nccl-cu13 "
        "or -cu12, or set PYNCCL_LIBRARY to the file; or set PYNCCL_BACKEND=emulator to run on "
        "the CPU"
    )


def _load_emulator() -> Library:
    from pynccl.emulator import load as emulator

    path, cdll = emulator.load()
    _search[:] = [Candidate("PYNCCL_BACKEND", path, "loaded")]
    return _opened(cdll, path, "emulator", "PYNCCL_BACKEND")


def _opened(cdll: ctypes.CDLL, path: str, chosen: str, where: str) -> Library:
    number = ctypes.c_int()
    try:
        cdll.ncclGetVersion(ctypes.byref(number))
    except AttributeError:
        raise NCCLLibraryNotFound(f"{path} is no libnccl: it has no ncclGetVersion") from None
    if number.value < version_code(OLDEST):
        raise NCCLNotSupported("pynccl", OLDEST, version_text(number.value), path)
    if os.path.sep not in path:
        path = next(iter(already_loaded()), path)
    return Library(cdll, path, number.value, chosen, where)


def driver_problem() -> str:
    """Return what is wrong with the CUDA driver; empty where a GPU answers."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no CUDA driver ({error})"
    result = driver.cuInit(0)
    if result != 0:
        return f"the CUDA driver does not start: cuInit returned {result}"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value > 0:
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"the CUDA driver shows no GPU (CUDA_VISIBLE_DEVICES is {visible!r})"


def environment_rank() -> int:
    """Return the rank that the launcher's environment tells; it decides only who prints."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


def _choice(loaded: Library, problem: str) -> str:
    if loaded.backend == "emulator":
        return f"pynccl: running on the CPU emulator: {problem}"
    return f"pynccl: running on NCCL {version_text(loaded.version)} ({loaded.path})"
