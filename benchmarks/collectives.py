"""Collectives of pynccl on the emulator beside those of MPI and gloo, in one run.

For every number of ranks there is a job for pynccl, one for pynccl without the emulator's checks
(PYNCCL_EMULATOR_CHECKS=0), one for each MPI, one for gloo where PyTorch is installed, and one that
only copies memory. They take turns of a few calls, so that all see the same machine; a time is that
of the slowest rank, in the table its median. Two MPIs do not go into one environment: --also names
the Python of another one, with mpi4py and perhaps PyTorch.

"best" is pynccl's time beside that of the fastest MPI or gloo. "memory" is the part of what memory
allows: the time in which all ranks at once would copy the bytes that the operation must read and
write, beside pynccl's.

Run: python benchmarks/collectives.py --ranks 2 4 8 --also .venv-mpich/bin/python
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys

os.environ["PYNCCL_BACKEND"] = "emulator"

from collectives_report import draw, markdown, text
from machine import machine
from rank_jobs import Job

OPERATIONS = ("allreduce", "allgather", "reduce_scatter", "broadcast", "alltoall", "sendrecv")
TYPES = ("float32", "bfloat16")
SIZES = tuple(kib << 10 for kib in (1, 8, 64, 256, 1024, 4096, 16384, 65536))
TRAFFIC = 16 << 20  # bytes that one turn moves, at most 50 calls
PROGRAM = str(pathlib.Path(__file__).with_name("collectives_rank.py"))
# What an environment has: the name of its MPI, and whether there is PyTorch.
LOOK = """
import importlib.util, json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
text = MPI.Get_library_version()
name = "Open MPI" if "Open MPI" in text else "MPICH" if "MPICH" in text else text.split(",")[0]
print(json.dumps([name, importlib.util.find_spec("torch") is not None]))
"""


def ways(others):
    """What is compared: by its name, the library, the Python that has it, and the environment."""
    found = {
        "pynccl": ("pynccl", sys.executable, {"PYNCCL_EMULATOR_CHECKS": "1"}),
        "unchecked": ("pynccl", sys.executable, {"PYNCCL_EMULATOR_CHECKS": "0"}),
    }
    for python in (sys.executable, *others):
        answer = subprocess.run([python, "-c", LOOK], check=True, capture_output=True).stdout
        mpi, has_torch = json.loads(answer)
        found.setdefault(mpi, ("mpi", python, {}))
        if has_torch:
            found.setdefault("gloo", ("gloo", python, {}))
    return {**found, "copy": ("copy", sys.executable, {})}


def measure(jobs, operation, type, nbytes, rounds):
    """Medians of the seconds of every job that has the operation, by its name."""
    request = {"operation": operation, "type": type, "bytes": nbytes}
    able = [job for job in jobs if all(job.ask(request))]
    calls = {"calls": max(2, min(50, TRAFFIC // nbytes))}
    times = {job.name: [] for job in able}
    for _ in range(rounds):
        for job in able:
            times[job.name].append(max(job.ask(calls)))
    return {name: statistics.median(values) for name, values in times.items()}


def start(resources, nranks, compared):
    """The jobs of so many ranks, which end with the resources."""
    for name, (library, python, environment) in compared.items():
        environment = {"PYNCCL_EMULATOR_DEVICES": str(max(8, nranks)), **environment}
        job = Job(name, nranks, python, [PROGRAM, library], environment)
        resources.callback(job.close)
        yield job


def results(args, compared):
    for nranks in args.ranks:
        with contextlib.ExitStack() as resources:
            jobs = list(start(resources, nranks, compared))
            for operation in args.operation or OPERATIONS:
                for type in args.type or TYPES:
                    for nbytes in SIZES:
                        if args.smallest <= nbytes <= args.largest:
                            seconds = measure(jobs, operation, type, nbytes, args.rounds)
                            yield {
                                **{"ranks": nranks, "operation": operation, "type": type},
                                **{"bytes": nbytes, "seconds": seconds},
                            }


def main(args):
    compared = ways(args.also)
    print(machine())
    for name in ("Open MPI", "MPICH", "gloo"):
        if name not in compared:
            print(f"{name} is not compared: no Python that was given has it (--also)")
    rows = []
    show = markdown if args.markdown else text
    for row in results(args, compared):
        print("\n".join(show(row, list(compared), first=not rows)), flush=True)
        rows.append(row)
    if args.json:
        document = {"machine": machine(), "compared": list(compared), "results": rows}
        pathlib.Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.plot:
        draw(rows, list(compared), args.plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Collectives of pynccl beside MPI's and gloo's.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--also", action="append", default=[], metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each library (5)")
    parser.add_argument("--smallest", type=int, default=1 << 10, help="bytes (1 KiB)")
    parser.add_argument("--largest", type=int, default=64 << 20, help="bytes (64 MiB)")
    parser.add_argument("--operation", action="append", choices=OPERATIONS)
    parser.add_argument("--type", action="append", choices=TYPES)
    parser.add_argument("--markdown", action="store_true", help="a table for a document")
    parser.add_argument("--json", metavar="FILE", help="write the times there as well")
    parser.add_argument("--plot", metavar="FOLDER", help="draw a picture per ranks and type there")
    main(parser.parse_args())
