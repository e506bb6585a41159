"""Loads the emulated libraries so that everything in the process finds them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from pynccl.emulator import build, faults
from pynccl.errors import NCCLLibraryNotFound

__all__ = ["load"]


def load() -> tuple[str, ctypes.CDLL]:
    """Load libcuda, then libnccl, and return libnccl's path and handle.

    Whoever asks the loader for ``libcuda.so.1`` or ``libnccl.so.2`` from then on, as cuda-python
    does, is given these.

    Raises:
        NCCLLibraryNotFound: a real libcuda or libnccl is loaded already
        EmulatorBuildError: the libraries cannot be compiled
        ValueError: ``PYNCCL_EMULATOR_FAULTS`` cannot be read
    """
    _refuse_real_libraries()
    folder = build.ensure()
    ctypes.CDLL(str(folder / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
    faults.set_from_environment()
    path = str(folder / "libnccl.so.2")
    return path, ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def _refuse_real_libraries() -> None:
    ours = str(build.cache())
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[-1]
        name = os.path.basename(path)
        if name.startswith(("libcuda.so", "libnccl.so")) and not path.startswith(ours):
            raise NCCLLibraryNotFound(
                f"the emulator cannot be loaded: {path} is already in this process. Import pynccl "
                "with PYNCCL_BACKEND=emulator before anything that loads it"
            )
