"""The commands of ``python -m pynccl``: a module each, with ``configure`` and ``run``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "info": "show versions, paths, GPUs, MPI and environment",
    "doctor": "tell what would keep a job from running here, and what to do",
    "emulator": "build, look after and run programs on the CPU emulator",
    "perf": "measure NCCL's operations, with nccl-tests' options and columns",
    "trace": "lay the ranks' flight records side by side: where they part, and a timeline",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m pynccl", description="NCCL for Python.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_ in COMMANDS.items():
        command = commands.add_parser(name, help=help_, description=f"{help_.capitalize()}.")
        # Only what was asked for is imported: the others may need what is not there.
        if name in words[:1]:
            module = import_module(f"pynccl.cli.{name}")
            module.configure(command)
            command.set_defaults(run=module.run)
    options = parser.parse_args(words)
    return int(options.run(options))
