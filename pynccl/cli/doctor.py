"""``python -m pynccl doctor``: what would keep a job from running, each with its remedy."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
from typing import Any

import pynccl
from pynccl import bootstrap, library
from pynccl.cli import checks
from pynccl.cli.checks import Finding

__all__ = ["configure", "run"]

LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "FLUX_JOB_SIZE")
# These differ between the ranks of a good job.
OWN = ("NCCL_HOSTID", "NCCL_LOCAL_RANK", "PYNCCL_TRACE")
AS_RANKS = {
    "launch": "launch the programs as mpirun -n N python -m mpi4py program.py, so that one rank's "
    "exception ends the job",
    "ranks": "start as many ranks per node as there are GPUs, and show each rank its own GPU or "
    "all of them",
    "hosts": "start all ranks on one host, or use GPUs (PYNCCL_BACKEND=nccl)",
    "same release": "load the same module or environment on every node; PYNCCL_LIBRARY names the "
    "libnccl to use",
    "environment": "set it the same for every rank (mpirun -x NAME, srun --export=ALL)",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = (
        "With mpirun -n N python -m mpi4py -m pynccl doctor, started as the job will be, the ranks "
        "are compared and rank 0 prints one report. The exit status is 1 where a job would fail."
    )


def run(options: argparse.Namespace) -> int:
    """Examine and report; return 1, on rank 0, where a job would fail. Collective under mpirun."""
    world = None
    mine = checks.perform()
    # Under another MPI's launcher, or without MPI, starting MPI may never return.
    if _launched() and not any(one.check in ("MPI", "launcher", "several MPIs") for one in mine):
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        mine += _launch_findings(world)
    everyone = [_facts(mine)] if world is None else bootstrap.gather_facts(world, _facts(mine))
    found = _merge(everyone)
    if world is not None and world.size > 1:
        together = _compare(everyone)
        if not any(one.fatal for one, _ in found) and not any(one.fatal for one in together):
            refused = bootstrap.refusal(world)
            if refused:
                together.append(Finding("ranks", True, refused, AS_RANKS["ranks"]))
        found += [(one, []) for one in together]
    first = (library.environment_rank() if world is None else world.rank) == 0
    if first:
        print(_json(found, everyone) if options.json else _text(found, everyone), flush=True)
    if world is not None:
        _end_mpi(world)
    return int(first and any(one.fatal for one, _ in found))


def _end_mpi(world: Any) -> None:
    """Leave MPI, so that the exit status of 1 does not abort the job with a page of noise."""
    from mpi4py import MPI

    world.Barrier()
    MPI.Finalize()


def _launched() -> bool:
    return any(name in os.environ for name in LAUNCHED)


def _launch_findings(world: Any) -> list[Finding]:
    found = []
    try:
        bootstrap.check_launcher(world)
    except RuntimeError as error:
        remedy = next(one.remedy for one in checks.CHECKS if one.name == "launcher")
        found.append(Finding("launcher", True, str(error), remedy))
    if world.size > 1 and "mpi4py.run" not in sys.modules:
        text = "started without -m mpi4py: a rank that fails would leave the others waiting"
        found.append(Finding("launch", False, text, AS_RANKS["launch"]))
    return found


def _facts(found: list[Finding]) -> dict[str, Any]:
    try:
        loaded = library.load()
        backend, version = loaded.backend, loaded.version
    except Exception:  # it is among the findings
        backend, version = "", 0
    prefixes = ("NCCL_", "PYNCCL_")
    return {
        "host": socket.gethostname(),
        "findings": found,
        "backend": backend,
        "NCCL": version,
        "pynccl": pynccl.__version__,
        "Python": platform.python_version(),
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(prefixes) and name not in OWN
        },
    }


def _merge(everyone: list[dict[str, Any]]) -> list[tuple[Finding, list[int]]]:
    """Return each finding once, with the ranks that have it."""
    merged: dict[Finding, list[int]] = {}
    for rank, facts in enumerate(everyone):
        for one in facts["findings"]:
            merged.setdefault(Finding(*one), []).append(rank)
    return list(merged.items())


def _compare(everyone: list[dict[str, Any]]) -> list[Finding]:
    """Return what is wrong with the ranks together, though each may be right alone."""
    found = []
    for name in ("backend", "NCCL", "pynccl", "Python"):
        told = _differences([str(facts[name]) for facts in everyone], everyone)
        if told:
            text = f"the ranks differ in {name}: {told}"
            found.append(Finding("same release", name != "Python", text, AS_RANKS["same release"]))
    for name in sorted({name for facts in everyone for name in facts["environment"]}):
        values = [facts["environment"].get(name, "unset") for facts in everyone]
        told = _differences(values, everyone)
        if told:
            text = f"the ranks differ in {name}: {told}"
            found.append(Finding("environment", False, text, AS_RANKS["environment"]))
    hosts = sorted({facts["host"] for facts in everyone})
    if len(hosts) > 1 and any(facts["backend"] == "emulator" for facts in everyone):
        text = f"the emulator connects ranks of one host only, and these are on {', '.join(hosts)}"
        found.append(Finding("hosts", True, text, AS_RANKS["hosts"]))
    return found


def _differences(values: list[str], everyone: list[dict[str, Any]]) -> str:
    """Say which ranks have which value; empty where all have the same."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    if len(ranks) < 2:
        return ""
    return "; ".join(f"{value} on {_name(which, everyone)}" for value, which in ranks.items())


def _name(ranks: list[int], everyone: list[dict[str, Any]]) -> str:
    """Name ranks and their hosts, the first few of many."""
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    hosts = sorted({everyone[rank]["host"] for rank in ranks})
    where = ", ".join(hosts[:4]) + (", ..." if len(hosts) > 4 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown} ({where})"


def _text(found: list[tuple[Finding, list[int]]], everyone: list[dict[str, Any]]) -> str:
    lines = []
    for one, ranks in sorted(found, key=lambda pair: not pair[0].fatal):
        where = f" [{_name(ranks, everyone)}]" if ranks and len(everyone) > 1 else ""
        lines.append(f"{'PROBLEM' if one.fatal else 'warning'}: {one.check}: {one.text}{where}")
        lines.append(f"    remedy: {one.remedy}")
    fatal = sum(one.fatal for one, _ in found)
    hosts = len({facts["host"] for facts in everyone})
    backend = everyone[0]["backend"] or "no"
    lines.append(
        f"{fatal} problem{'s' * (fatal != 1)}, {len(found) - fatal} "
        f"warning{'s' * (len(found) - fatal != 1)}: {backend} backend, "
        f"{len(everyone)} process{'es' * (len(everyone) > 1)} on {hosts} host{'s' * (hosts > 1)}"
    )
    return "\n".join(lines)


def _json(found: list[tuple[Finding, list[int]]], everyone: list[dict[str, Any]]) -> str:
    rows = [{**one._asdict(), "ranks": ranks} for one, ranks in found]
    hosts = [facts["host"] for facts in everyone]
    return json.dumps({"findings": rows, "hosts": hosts}, indent=2)
