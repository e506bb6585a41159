"""``python -m pynccl perf``: nccl-tests without a compiler."""

from __future__ import annotations

import argparse
import sys
import traceback

from pynccl import errors
from pynccl.perf import options as command_line

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of nccl-tests."""
    command_line.add_arguments(parser)
    parser.epilog = (
        "mpirun -n N python -m mpi4py -m pynccl perf all_reduce -b 8 -e 128M -f 2 measures N "
        "processes with a GPU each; -g G gives each process G GPUs. The exit status is 0 where all "
        "results were right, 1 where not, 2 where the measurement could not be made."
    )


def run(options: argparse.Namespace) -> int:
    """Measure. On a failure all processes of the job end."""
    from pynccl.perf.run import run as measure

    try:
        return measure(options, sys.argv)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if isinstance(error, errors.NCCLError) or not isinstance(error, RuntimeError):
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = str(error)
        print(f"pynccl perf: {reason}", file=sys.stderr, flush=True)
    except Exception:
        traceback.print_exc()
    _end_job()
    return 2


def _end_job() -> None:
    """End the job's other processes, which may wait for this one."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.size > 1:
        mpi.COMM_WORLD.Abort(2)
