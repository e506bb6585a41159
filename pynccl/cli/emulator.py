"""``python -m pynccl emulator``: its libraries, and programs that run on them."""

from __future__ import annotations

import argparse
import sys

from pynccl.emulator import build
from pynccl.errors import EmulatorBuildError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("build", help="compile the libraries where they are not compiled yet")
    actions.add_parser("status", help="show the compiler, the folder, and whether it is built")
    actions.add_parser("clean", help="remove all builds from the cache")
    run_ = actions.add_parser("run", help="run a Python program on the emulated libraries")
    run_.add_argument("program", help="a file, or -m and a module", nargs=argparse.REMAINDER)


def run(options: argparse.Namespace) -> int:
    """Do what was asked; 1 where it cannot be done."""
    try:
        if options.action == "run":
            from pynccl.emulator.run import run as run_program

            run_program(options.program)
        elif options.action == "build":
            print(build.ensure())
        elif options.action == "status":
            for name, value in build.status().items():
                print(f"{name:9} {value}")
        else:
            removed = build.clean()
            print("\n".join(f"removed {folder}" for folder in removed) or "nothing to remove")
    except (EmulatorBuildError, FileNotFoundError, ValueError) as error:
        if options.action == "run" and options.program and not isinstance(error, FileNotFoundError):
            raise
        print(f"pynccl emulator: {error}", file=sys.stderr)
        return 1
    return 0
