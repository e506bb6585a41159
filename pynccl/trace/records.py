"""Reading the files that the ranks left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pynccl.record_file import FORMAT
from pynccl.recorder import Operation

__all__ = ["Communicator", "Member", "Process", "communicators", "read"]


@dataclass
class Process:
    """What one process left.

    Attributes:
        name: ``rank 2``, of MPI's world, or host and number of the process
        order: where it belongs among the others
        offset: seconds to add to an operation's time to have that since the epoch
        written: when, in seconds since the epoch
        reasons: why it was written, the last one last
    """

    path: Path
    name: str
    order: tuple[Any, ...]
    host: str
    offset: float
    written: float
    reasons: list[dict[str, Any]]
    members: list[Member]

    @property
    def failed(self) -> bool:
        """Whether something other than an ordinary end made it write."""
        return any(reason["reason"] not in ("exit", "dump()") for reason in self.reasons)


@dataclass
class Member:
    """One rank's part of a communicator.

    Attributes:
        collectives: how many it came to, the controls among them
        messages: (function, peer) -> how many
        operations: the last ones, oldest first
    """

    process: Process
    names: tuple[str, ...]
    rank: int
    nranks: int
    state: str
    collectives: int
    messages: dict[tuple[str, int], int]
    operations: list[Operation]

    def start(self, operation: Operation) -> float:
        """When an operation was issued, in seconds since the epoch."""
        return operation.time + self.process.offset

    def end(self, operation: Operation) -> float:
        """When it was known to be done; when the file was written, if it was not done."""
        if operation.known is not None:
            return operation.known + self.process.offset
        return self.start(operation) if operation.state == "completed" else self.process.written


@dataclass
class Communicator:
    """A communicator as its ranks tell of it.

    Attributes:
        members: by rank; those that left a file
    """

    name: str
    nranks: int
    members: dict[int, Member]

    @property
    def absent(self) -> list[int]:
        """The ranks of which no file tells."""
        return [rank for rank in range(self.nranks) if rank not in self.members]


def read(folder: Path) -> list[Process]:
    """Return what the files of a folder hold, by rank.

    Raises:
        ValueError: there is no folder, no file in it, or one that is no flight record
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    paths = [path for path in sorted(folder.glob("*.json")) if path.name != "trace.json"]
    if not paths:
        raise ValueError(
            f"{folder} has no flight records: run the job with PYNCCL_TRACE={folder}, on all ranks"
        )
    return sorted((_process(path) for path in paths), key=lambda process: process.order)


def _process(path: Path) -> Process:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, not {FORMAT}")
        clock, rank = content["clock"], content["world_rank"]
        name = f"{content['host']} pid {content['pid']}" if rank is None else f"rank {rank}"
        process = Process(
            path,
            name,
            (rank is None, rank or 0, content["host"], content["pid"]),
            content["host"],
            clock["epoch"] - clock["monotonic"],
            clock["epoch"],
            content["reasons"],
            [],
        )
        process.members = [_member(process, entry) for entry in content["communicators"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no flight record that can be read: {type(error).__name__}: {error}"
        ) from error
    return process


def _member(process: Process, entry: dict[str, Any]) -> Member:
    return Member(
        process,
        tuple(name for name in (entry["identity"], entry["alias"]) if name),
        entry["rank"],
        entry["nranks"],
        entry["state"],
        entry["collectives"],
        {(function, peer): number for function, peer, number in entry["messages"]},
        [Operation(**operation) for operation in entry["operations"]],
    )


def communicators(processes: list[Process]) -> list[Communicator]:
    """Return the communicators, each with its ranks, in the order in which they were made."""
    known: dict[str, Communicator] = {}
    made: list[Communicator] = []
    # Whoever has two names for one communicator joins those who have either.
    members = [member for process in processes for member in process.members if member.names]
    for member in sorted(members, key=lambda member: -len(member.names)):
        one = next((known[name] for name in member.names if name in known), None)
        if one is None:
            one = Communicator(member.names[0], member.nranks, {})
            made.append(one)
        for name in member.names:
            known[name] = one
        one.nranks = max(one.nranks, member.nranks)
        one.members[member.rank] = member
    for one in made:
        one.members = dict(sorted(one.members.items()))
    return sorted(made, key=_first)


def _first(communicator: Communicator) -> float:
    return min(
        (
            member.start(operation)
            for member in communicator.members.values()
            for operation in member.operations[:1]
        ),
        default=float("inf"),
    )
