"""The records as trace events, which Perfetto and Chrome's ``about:tracing`` show."""

from __future__ import annotations

from typing import Any

from pynccl.trace.findings import Finding
from pynccl.trace.records import Communicator, Member, Process

__all__ = ["trace_events"]


def trace_events(
    processes: list[Process], communicators: list[Communicator], found: list[Finding]
) -> dict[str, Any]:
    """Return the content of ``trace.json``: a process a rank, a thread a communicator and stream.

    Times are in microseconds since the first operation.
    """
    places = {id(process): place for place, process in enumerate(processes)}
    members = [(one, m) for one in communicators for m in one.members.values()]
    starts = [m.start(operation) for _, m in members for operation in m.operations[:1]]
    zero = min(starts, default=0.0)
    events: list[dict[str, Any]] = []
    for process in processes:
        name = {"name": f"{process.name} ({process.host})"}
        events.append(_metadata("process_name", places[id(process)], 0, name))
        for reason in process.reasons:
            events.append(
                {
                    "ph": "i",
                    "s": "p",
                    "name": reason["reason"],
                    "pid": places[id(process)],
                    "tid": 0,
                    "ts": max(0.0, (reason["time"] - zero) * 1e6),
                }
            )
    threads: dict[tuple[int, str, int, int], int] = {}
    for communicator, member in members:
        place = places[id(member.process)]
        for operation in member.operations:
            key = (place, communicator.name, member.rank, operation.stream)
            if key not in threads:
                threads[key] = len(threads) + 1
                name = {"name": f"communicator {communicator.name}, stream {operation.stream:#x}"}
                events.append(_metadata("thread_name", place, threads[key], name))
            event = _event(member, operation, zero)
            event.update(pid=place, tid=threads[key])
            text = _told_of(found, communicator.name, member.rank, operation)
            if text:
                event["args"]["finding"] = text
                event["cname"] = "terrible"
            events.append(event)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": arguments}


def _event(member: Member, operation: Any, zero: float) -> dict[str, Any]:
    start = member.start(operation)
    return {
        "ph": "X",
        "name": operation.function,
        "cat": operation.kind,
        "ts": (start - zero) * 1e6,
        "dur": max(1.0, (member.end(operation) - start) * 1e6),
        "args": {
            "number": operation.number,
            "call": operation.call,
            "site": operation.site,
            "bytes": operation.nbytes,
            "group": operation.group,
            "state": operation.state,
        },
    }


def _told_of(found: list[Finding], communicator: str, rank: int, operation: Any) -> str:
    for finding in found:
        message = finding.kind == "no partner"
        if (
            finding.communicator == communicator
            and finding.operation == operation.ordinal
            and rank in finding.ranks
            and message == (operation.kind == "message")
        ):
            return finding.text
    return ""
