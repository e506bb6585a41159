"""``python -m pynccl info``: what this process would use, and from where."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from typing import Any

import pynccl
from pynccl import library
from pynccl.types import version_text

__all__ = ["collect", "configure", "run"]

PACKAGES = ("numpy", "ml_dtypes", "mpi4py", "cuda-bindings", "cuda-core", *library.WHEELS)
PREFIXES = ("PYNCCL_", "NCCL_", "CUDA_VISIBLE", "LD_LIBRARY_PATH", "MPI4PY_", "OMPI_COMM_WORLD_")
MORE = ("PMI_RANK", "PMI_SIZE", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS")

# MPI starts in a process of its own: where it cannot, this one goes on.
ASK_MPI = """
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0].strip(chr(0) + " ,"))
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print what was found."""
    facts = collect()
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0
    for title, value in facts.items():
        print(f"{title}:")
        rows = value.items() if isinstance(value, dict) else [("", row) for row in value]
        for name, text in rows:
            print(f"  {name + ': ' if name else ''}{text}")
        if not value:
            print("  none")
    return 0


def collect() -> dict[str, Any]:
    """Return versions, the libraries with their search, GPUs, MPI and the environment."""
    nccl, search = _nccl()
    return {
        "versions": _versions(),
        "libnccl": nccl,
        "search": search,
        "other copies": _other_copies(nccl.get("path", "")),
        "GPUs": _gpus(nccl),
        "MPI": [_mpi()],
        "environment": _environment(),
    }


def _versions() -> dict[str, str]:
    found = {"pynccl": pynccl.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _nccl() -> tuple[dict[str, str], list[str]]:
    try:
        loaded = library.load()
        facts = {
            "backend": loaded.backend,
            "version": version_text(loaded.version),
            "path": loaded.path,
            "found by": loaded.where,
        }
    except Exception as error:  # whatever is wrong is what the reader wants to know
        facts = {"error": f"{type(error).__name__}: {error}"}
    return facts, [f"{c.where}: {c.path}: {c.outcome}" for c in library.search()]


def _other_copies(path: str) -> list[str]:
    """Return other files of libnccl that the search would have come to."""
    others = []
    for where, candidate in library.candidates():
        exists = os.path.sep in candidate and os.path.exists(candidate)
        if exists and not (path and os.path.samefile(candidate, path)):
            others.append(f"{where}: {candidate}")
    return others


def _gpus(nccl: dict[str, str]) -> list[str]:
    if "error" in nccl:
        return []
    try:
        library.require_gpu()
    except Exception as error:  # as above
        return [str(error)]
    from cuda.core import Device

    return [f"{d.device_id}: {d.name}, {d.uuid}" for d in Device.get_all_devices()]


def _mpi() -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK_MPI],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            env={k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMI"))},
        )
    except subprocess.TimeoutExpired:
        return "MPI did not start within 30 s"
    if done.returncode == 0:
        return done.stdout.strip()
    return (done.stderr.strip().splitlines() or ["mpi4py could not be imported"])[-1]


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES) or name in MORE
    }
