"""Runs any Python program on the emulated libraries."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from pynccl import library

__all__ = ["run"]


def run(program: Sequence[str]) -> None:
    """Run a program in this process as Python would, with the emulator's libcuda and libnccl.

    What asks for these libraries by their names finds the emulated ones: cuda-python, nccl4py and
    other bindings. Processes that the program starts use the emulator where they import pynccl.

    Args:
        program: a file and its arguments; or ``-m``, a module and its arguments
    Raises:
        ValueError: no program is named
        FileNotFoundError: the file does not exist
        EmulatorBuildError: the emulator cannot be compiled
    """
    if not program or (program[0] == "-m" and len(program) < 2):
        raise ValueError("name a program: a file, or -m and a module")
    os.environ["PYNCCL_BACKEND"] = "emulator"
    library.load()
    if program[0] == "-m":
        sys.argv = list(program[1:])
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    if not os.path.exists(program[0]):
        raise FileNotFoundError(f"there is no program {program[0]}")
    sys.argv = list(program)
    sys.path.insert(0, os.path.dirname(os.path.abspath(program[0])))
    runpy.run_path(program[0], run_name="__main__")
