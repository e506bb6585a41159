"""Compiles the emulator's two libraries, once per compiler, flags and sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pynccl.errors import EmulatorBuildError
from pynccl.functions import FUNCTIONS
from pynccl.types import LATEST, version_code

__all__ = ["cache", "clean", "ensure", "status"]

SOURCES = Path(__file__).parent / "src"
# Sources of libcuda.so.1 by the first part of their names; all others are libnccl.so.2's.
DRIVER = ("board", "context", "device", "driver", "event", "graph", "memory", "races", "stream")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread")
SANITIZERS = ("address", "undefined", "thread")
# The source that makes a libnccl of one release: all others serve every release.
RELEASE = "release"
OLDEST, NEWEST = "2.18.1", ".".join(map(str, LATEST))


def cache() -> Path:
    """Return the folder that holds the built libraries, private to the user."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "pynccl"


def ensure() -> Path:
    """Return the folder with ``libcuda.so.1`` and ``libnccl.so.2``, building them where needed.

    Processes that come at the same time wait for one build.

    Raises:
        EmulatorBuildError: there is no C++ compiler, or it fails
    """
    compiler = _compiler()
    release = _release()
    folder = _folder(compiler, release)
    if _is_built(folder):
        return folder
    try:
        cache().mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EmulatorBuildError(
            f"the emulator cannot be built: no folder {cache()} ({error}); set XDG_CACHE_HOME to "
            "one that can be written"
        ) from error
    with _only_builder():
        _remove_leftovers()
        latest = _folder(compiler, NEWEST)
        if not _is_built(latest):
            # Half a minute on two cores: nobody should take that for a hang.
            print(f"pynccl: compiling the emulator into {latest}, once", file=sys.stderr)
            _build(compiler, latest)
        if not _is_built(folder):
            _build_release(compiler, release, latest, folder)
    return folder


def status() -> dict[str, object]:
    """Return the compiler, the cache folder, and whether the libraries are built."""
    compiler = _compiler()
    folder = _folder(compiler, _release())
    return {
        "compiler": compiler,
        "folder": str(folder),
        "built": _is_built(folder),
        "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    }


def clean() -> list[str]:
    """Remove every built emulator from the cache; return the folders that were removed."""
    if not cache().exists():
        return []
    with _only_builder():
        folders = sorted(cache().glob("emulator-*"))
        for folder in folders:
            shutil.rmtree(folder)
        _remove_leftovers()
    (cache() / "build.lock").unlink(missing_ok=True)
    return [str(folder) for folder in folders]


def _release() -> str:
    """Return the release of NCCL to stand in for."""
    wanted = os.environ.get("PYNCCL_EMULATOR_NCCL_VERSION", "").strip()
    if not wanted:
        return NEWEST
    try:
        number = version_code(wanted)
    except ValueError:
        number = 0
    if not version_code(OLDEST) <= number <= version_code(NEWEST):
        raise EmulatorBuildError(
            f"PYNCCL_EMULATOR_NCCL_VERSION is {wanted!r}; it must be a release from {OLDEST} to "
            f"{NEWEST}"
        )
    return wanted


def _sanitizer() -> str:
    wanted = os.environ.get("PYNCCL_EMULATOR_SANITIZE", "")
    if wanted and wanted not in SANITIZERS:
        raise EmulatorBuildError(
            f"PYNCCL_EMULATOR_SANITIZE is {wanted!r}; it must be one of {', '.join(SANITIZERS)}"
        )
    return wanted


def _compiler() -> str:
    named = os.environ.get("CXX", "").split()
    tried = [named[0]] if named else ["c++", "g++", "clang++"]
    for name in tried:
        path = shutil.which(name)
        if path:
            return path
    raise EmulatorBuildError(
        f"the emulator needs a C++17 compiler, and found none (tried {', '.join(tried)}). Install "
        "one (apt-get install g++; dnf install gcc-c++; module load gcc) or set CXX to its path"
    )


def _flags() -> list[str]:
    sanitizer = _sanitizer()
    if not sanitizer:
        return list(FLAGS)
    return [*FLAGS, f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", "-g"]


def _folder(compiler: str, release: str) -> Path:
    """Return where the build of a release is; the newest one's also keeps the objects."""
    digest = hashlib.sha256()
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    for part in (compiler.encode(), version, " ".join(_flags()).encode()):
        digest.update(part + b"\0")
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    key = digest.hexdigest()[:16]
    return cache() / (f"emulator-{key}" if release == NEWEST else f"emulator-{key}-{release}")


def _is_built(folder: Path) -> bool:
    return (folder / "libnccl.so.2").exists()


@contextmanager
def _only_builder() -> Iterator[None]:
    # The kernel gives the lock back when its holder dies.
    with open(cache() / "build.lock", "w", opener=_private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remove_leftovers() -> None:
    for folder in cache().glob("building-*"):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Give a folder to build in, which takes its name only when it is complete."""
    building = Path(tempfile.mkdtemp(prefix="building-", dir=cache()))
    try:
        yield building
        os.replace(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _build(compiler: str, folder: Path) -> None:
    with _new_folder(folder) as building:
        objects = building / "objects"
        objects.mkdir()
        sources = [path for path in SOURCES.glob("*.cc") if path.stem != RELEASE]
        # The longest first, so that none is left to run alone at the end.
        sources.sort(key=lambda path: -path.stat().st_size)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda source: _compile(compiler, source, objects), sources))
        driver = [path for path in objects.iterdir() if _is_driver(path)]
        _link(compiler, driver, building / "libcuda.so.1", [])
        _link_nccl(compiler, NEWEST, objects, building)


def _build_release(compiler: str, release: str, latest: Path, folder: Path) -> None:
    with _new_folder(folder) as building:
        os.link(latest / "libcuda.so.1", building / "libcuda.so.1")
        _link_nccl(compiler, release, latest / "objects", building)


def _link_nccl(compiler: str, release: str, objects: Path, building: Path) -> None:
    own = _compile(
        compiler,
        SOURCES / f"{RELEASE}.cc",
        building,
        f"-DEMULATED_RELEASE={version_code(release)}",
    )
    exports = _exports(release, building)
    _link(
        compiler,
        [own, *(path for path in objects.iterdir() if not _is_driver(path))],
        building / "libnccl.so.2",
        [
            str(building / "libcuda.so.1"),
            "-Wl,-rpath,$ORIGIN",
            f"-Wl,--version-script={exports}",
        ],
    )
    own.unlink()
    exports.unlink()


def _is_driver(path: Path) -> bool:
    return path.stem.split("_")[0] in DRIVER


def _compile(compiler: str, source: Path, folder: Path, *more: str) -> Path:
    target = folder / f"{source.stem}.o"
    _run([compiler, *_flags(), *more, "-c", str(source), "-o", str(target)])
    return target


def _link(compiler: str, objects: list[Path], target: Path, others: list[str]) -> None:
    soname = f"-Wl,-soname,{target.name}"
    _run([compiler, *_flags(), "-shared", soname, "-o", str(target), *map(str, objects), *others])


def _exports(release: str, building: Path) -> Path:
    """Write the linker's list of what libnccl shows: the functions that the release has."""
    have = [name for name, row in FUNCTIONS.items() if _has(row.since, release)]
    have += ["pynccl_call_site", "pynccl_comm_progress"]
    script = building / "exports"
    script.write_text("{ global: " + " ".join(f"{name};" for name in have) + " local: *; };\n")
    return script


def _has(since: str, release: str) -> bool:
    return version_code(since) <= version_code(release)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EmulatorBuildError(
            f"the emulator could not be compiled: {' '.join(command)}\n{done.stdout}{done.stderr}"
        )
