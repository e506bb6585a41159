"""What the records of a communicator's ranks contradict each other in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pynccl.recorder import Operation
from pynccl.trace.records import Communicator, Member

__all__ = ["Finding", "findings", "ranges"]


@dataclass
class Finding:
    """Something that does not fit.

    Attributes:
        kind: ``"divergence"``, ``"behind"``, ``"no record"``, ``"stuck"`` or ``"no partner"``
        operation: the collective's number, or the message's; 0 where it is of no operation
        ranks: whom it is about
        time: when the ranks parted, in seconds since the epoch
        text: all of it in words
    """

    kind: str
    communicator: str
    operation: int
    ranks: list[int]
    time: float
    text: str

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def findings(communicators: Iterable[Communicator]) -> list[Finding]:
    """Return what does not fit, the earliest first."""
    found: list[Finding] = []
    for communicator in communicators:
        parted = _divergence(communicator) or _behind(communicator)
        if parted is None:
            parted = _stuck(communicator)
        found += [parted] if parted is not None else []
        found += _no_record(communicator)
        found += _no_partner(communicator)
    return sorted(found, key=lambda finding: finding.time)


def _collectives(member: Member) -> dict[int, Operation]:
    return {
        one.ordinal: one for one in member.operations if one.kind in ("collective", "control")
    }


def _signature(operation: Operation) -> tuple[Any, ...]:
    return operation[3:9]  # function, elements, dtype, nbytes, op, root


def _divergence(communicator: Communicator) -> Finding | None:
    """The first collective that is another one on another rank."""
    kept = {rank: _collectives(member) for rank, member in communicator.members.items()}
    for number in sorted({number for one in kept.values() for number in one}):
        at = {rank: one[number] for rank, one in kept.items() if number in one}
        if len({_signature(operation) for operation in at.values()}) > 1:
            lines = _who_did_what(at)
            text = f"operation {number} differs between the ranks:" + _indented(lines)
            return _finding("divergence", communicator, number, at, text)
    return None


def _behind(communicator: Communicator) -> Finding | None:
    """The first collective that some ranks did not come to."""
    members = communicator.members
    reached = {rank: member.collectives for rank, member in members.items()}
    if not reached or min(reached.values()) == max(reached.values()):
        return None
    number = min(reached.values()) + 1
    late = [rank for rank, count in reached.items() if count < number]
    at = {}
    for rank, member in members.items():
        operation = _collectives(member).get(number)
        if operation is not None:
            at[rank] = operation
    lines = _who_did_what(at, state=True)
    if not at:
        lines = ["what the other ranks did there is no longer in their records"]
    lines += [f"rank {rank} {_last_of(members[rank])}" for rank in late]
    lines += _other_lines(communicator, number)
    verb = "has" if len(late) == 1 else "have"
    text = f"{ranges(late)} {verb} not come to operation {number}:" + _indented(lines)
    return _finding("behind", communicator, number, at, text, late)


def _last_of(member: Member) -> str:
    own = list(_collectives(member).values())
    if not own:
        return f"issued {member.collectives} collectives"
    last = own[-1]
    return f"stopped after operation {last.ordinal}, {last.call} at {last.site}, {last.state}"


def _other_lines(communicator: Communicator, end: int) -> list[str]:
    """Tell where the ranks first called the same from different lines: one may have been left out.

    Ranks may well do so in a program without a mistake.
    """
    kept = {rank: _collectives(member) for rank, member in communicator.members.items()}
    for number in sorted({number for one in kept.values() for number in one if number < end}):
        at = {rank: one[number] for rank, one in kept.items() if number in one}
        if len({operation.site for operation in at.values()}) > 1:
            told = "; ".join(_who_did_what(at))
            return [f"the ranks call from different lines since operation {number}: {told}"]
    return []


def _stuck(communicator: Communicator) -> Finding | None:
    """The first collective that all ranks came to and none has done."""
    members = communicator.members
    if communicator.absent or not any(one.process.failed for one in members.values()):
        return None
    at = {}
    for rank, member in members.items():
        waiting = [one for one in _collectives(member).values() if one.state == "not completed"]
        if not waiting:
            return None
        at[rank] = waiting[0]
    number = next(iter(at.values())).ordinal
    if any(operation.ordinal != number for operation in at.values()):
        return None
    text = f"all ranks are in operation {number}, and it was not done:"
    return _finding("stuck", communicator, number, at, text + _indented(_who_did_what(at)))


def _no_record(communicator: Communicator) -> list[Finding]:
    """The ranks without a file, unless the communicator came to its proper end."""
    members = communicator.members.values()
    absent = communicator.absent
    if not absent or all(member.state == "destroyed" for member in members):
        return []
    verb, its = ("leaves", "its") if len(absent) == 1 else ("leave", "their")
    text = (
        f"{ranges(absent)} {verb} no record of this communicator: {its} process was killed, "
        "crashed, or wrote to another folder"
    )
    return [_finding("no record", communicator, 0, {}, text, absent)]


def _no_partner(communicator: Communicator) -> Iterator[Finding]:
    """Sends without a receive, receives without a send, and pairs of different sizes."""
    for rank, member in communicator.members.items():
        for operation in member.operations:
            known = operation.kind == "message" and operation.peer is not None
            if not known or operation.function not in ("ncclSend", "ncclRecv"):
                continue
            partner = communicator.members.get(operation.peer or 0)
            if partner is None:
                continue
            text = _mismatch(operation, rank, partner)
            if text:
                at = {rank: operation}
                yield _finding(
                    "no partner", communicator, operation.ordinal, at, text, [rank, partner.rank]
                )


def _mismatch(operation: Operation, rank: int, partner: Member) -> str:
    sends = operation.function == "ncclSend"
    other, noun = ("ncclRecv", "receive") if sends else ("ncclSend", "send")
    what = f"rank {rank}: {operation.call} at {operation.site}"
    have = partner.messages.get((other, rank), 0)
    if operation.ordinal > have:
        if operation.state == "completed":
            return ""
        toward = "from" if sends else "to"
        return (
            f"{what} has no {noun} on rank {partner.rank}: it is number {operation.ordinal}, and "
            f"rank {partner.rank} issued {have} {toward} rank {rank}"
        )
    for one in partner.operations if sends else ():
        pair = one.function == other and one.peer == rank and one.ordinal == operation.ordinal
        if pair and one.nbytes != operation.nbytes:
            return f"{what} meets rank {partner.rank}: {one.call} at {one.site}: the sizes differ"
    return ""


def _who_did_what(at: dict[int, Operation], state: bool = False) -> list[str]:
    """Return a line for each group of ranks that did the same."""
    same: dict[str, list[int]] = {}
    for rank, operation in at.items():
        what = f"{operation.call} at {operation.site}"
        same.setdefault(f"{what}, {operation.state}" if state else what, []).append(rank)
    return [f"{ranges(ranks)}: {what}" for what, ranks in same.items()]


def ranges(ranks: list[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 2-5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(told)}"


def _indented(lines: list[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)


def _finding(
    kind: str,
    communicator: Communicator,
    number: int,
    at: dict[int, Operation],
    text: str,
    ranks: list[int] | None = None,
) -> Finding:
    times = [communicator.members[rank].start(operation) for rank, operation in at.items()]
    written = (member.process.written for member in communicator.members.values())
    when = min(times) if times else max(written)
    return Finding(
        kind, communicator.name, number, sorted(at) if ranks is None else ranks, when, text
    )
