"""``python -m pynccl trace``: lay the ranks' flight records side by side."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path

from pynccl.trace.events import trace_events
from pynccl.trace.findings import Finding, findings
from pynccl.trace.records import Communicator, Process, communicators, read

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("folder", type=Path, help="what PYNCCL_TRACE named when the job ran")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.epilog = (
        "Writes trace.json (for Perfetto or about:tracing) and timeline.png to the folder. The "
        "exit status is 0 where the ranks agree, 1 where they do not, 2 where there is nothing "
        "to read."
    )


def run(options: argparse.Namespace) -> int:
    """Tell what does not fit, and write the events and the picture."""
    try:
        processes = read(options.folder)
    except ValueError as error:
        print(f"python -m pynccl trace: {error}", file=sys.stderr)
        return 2
    known = communicators(processes)
    found = findings(known)
    if options.json:
        print(json.dumps(_as_dict(processes, known, found), indent=2))
    else:
        _tell(options.folder, processes, known, found)
    _write(options.folder, processes, known, found)
    return 1 if found else 0


def _as_dict(
    processes: list[Process], known: list[Communicator], found: list[Finding]
) -> dict[str, object]:
    return {
        "consistent": not found,
        "findings": [finding.as_dict() for finding in found],
        "communicators": [
            {"name": one.name, "nranks": one.nranks, "recorded": sorted(one.members)}
            for one in known
        ],
        "processes": [
            {"name": one.name, "file": str(one.path), "reasons": one.reasons} for one in processes
        ],
    }


def _tell(
    folder: Path, processes: list[Process], known: list[Communicator], found: list[Finding]
) -> None:
    print(f"{folder}: {_number(processes, 'file')}, {_number(known, 'communicator')}")
    for reason, names in _reasons(processes).items():
        print(f"{', '.join(names)}: {reason}")
    for finding in found:
        nranks = next(one.nranks for one in known if one.name == finding.communicator)
        print(f"\ncommunicator {finding.communicator} ({nranks} ranks): {finding.text}")
    if not found:
        print("\nthe ranks agree: every operation has its counterparts")


def _reasons(processes: list[Process]) -> dict[str, list[str]]:
    """Return why the files were first written, in a line each, and by whom."""
    names: dict[str, list[str]] = {}
    for process in processes:
        reason = process.reasons[0]["reason"].splitlines()[0] if process.reasons else "?"
        names.setdefault(textwrap.shorten(reason, 140, placeholder=" ..."), []).append(process.name)
    return names


def _number(things: list[Process] | list[Communicator], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _write(
    folder: Path, processes: list[Process], known: list[Communicator], found: list[Finding]
) -> None:
    try:
        events = trace_events(processes, known, found)
        (folder / "trace.json").write_text(json.dumps(events), encoding="utf-8")
        from pynccl.trace import timeline

        timeline.draw(folder / "timeline.png", known, found)
    except ImportError as error:
        print(f"timeline.png was not drawn: {error}; pip install matplotlib", file=sys.stderr)
    except OSError as error:
        print(f"{folder} cannot be written to: {error}", file=sys.stderr)
