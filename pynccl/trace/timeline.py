"""The picture of the records: ranks over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pynccl.trace.findings import Finding
from pynccl.trace.records import Communicator, Member

__all__ = ["draw"]

# The least part of the picture's width that an operation takes: most are far shorter.
LEAST = 0.004
LABELLED = 24  # rows beside which there is room for words
COLOURS = {
    "ncclAllReduce": "#0072b2",
    "ncclReduce": "#56b4e9",
    "ncclReduceScatter": "#009e73",
    "ncclAllGather": "#e69f00",
    "ncclBroadcast": "#f0e442",
    "ncclAlltoAll": "#cc79a7",
    "ncclGather": "#8c6d31",
    "ncclScatter": "#bd9e39",
    "ncclSend": "#756bb1",
    "ncclRecv": "#9e9ac8",
}
OTHER = "#999999"


def draw(path: Path, communicators: list[Communicator], found: list[Finding]) -> None:
    """Draw each rank's operations, from the call to when they were known to be done.

    Raises:
        ImportError: there is no matplotlib
    """
    from matplotlib.figure import Figure

    rows = [(one, member) for one in communicators for member in one.members.values()]
    rows = [row for row in rows if row[1].operations]
    height = min(20.0, 1.9 + 0.38 * len(rows))
    figure = Figure(figsize=(11, height), layout="constrained")
    axes = figure.add_subplot()
    starts = [member.start(one) for _, member in rows for one in member.operations]
    ends = [member.end(one) for _, member in rows for one in member.operations]
    zero = min(starts, default=0.0)
    span = max(max(ends, default=0.0) - zero, 1e-6)
    scale, unit = (1e3, "ms") if span < 1 else (1.0, "s")
    used: set[str] = set()
    for row, (_, member) in enumerate(rows):
        used |= _row(axes, row, member, zero, span, scale)
        if len(rows) <= LABELLED:
            _label(axes, row, member)
    _rows_named(axes, rows, len(communicators) > 1)
    _mark(axes, found, zero, scale)
    axes.set_xlim(-0.02 * span * scale, 1.02 * span * scale)
    axes.set_xlabel(f"{unit} since the first recorded operation")
    axes.spines[["top", "right"]].set_visible(False)
    _legend(figure, sorted(used))
    figure.savefig(path, dpi=120)


def _row(axes: Any, row: int, member: Member, zero: float, span: float, scale: float) -> set[str]:
    """Draw a rank's bars; return the functions that they show."""
    for one in member.operations:
        start = member.start(one) - zero
        width = max(member.end(one) - zero - start, LEAST * span)
        axes.barh(
            row,
            width * scale,
            left=start * scale,
            height=0.62,
            color=COLOURS.get(one.function, OTHER),
            hatch="" if one.state == "completed" else "///",
            edgecolor="white" if one.state == "completed" else "#333333",
            linewidth=0.4,
        )
    return {one.function if one.function in COLOURS else "other" for one in member.operations}


def _label(axes: Any, row: int, member: Member) -> None:
    """Tell, to the right of the bars, the first operation that was not done, or the last one."""
    waiting = [one for one in member.operations if one.state == "not completed"]
    one = waiting[0] if waiting else member.operations[-1]
    site = one.site.rpartition("/")[2]
    axes.text(
        1.01,
        row,
        f"#{one.number} {one.function} {site}\n{one.state}",
        transform=axes.get_yaxis_transform(),
        va="center",
        fontsize=8,
        linespacing=1.0,
    )


def _rows_named(axes: Any, rows: list[tuple[Communicator, Member]], several: bool) -> None:
    names = []
    for communicator, member in rows:
        name = member.process.name
        if several or name != f"rank {member.rank}":
            name += f"\n{communicator.name}: rank {member.rank}"
        names.append(name)
    every = max(1, len(rows) // 48)
    axes.set_yticks(range(0, len(rows), every), names[::every], fontsize=8)
    axes.invert_yaxis()


def _mark(axes: Any, found: list[Finding], zero: float, scale: float) -> None:
    """Draw a line where the ranks first part."""
    parted = [one for one in found if one.operation]
    if not parted:
        return
    first = parted[0]
    axes.axvline((first.time - zero) * scale, color="#d55e00", linewidth=1.5, linestyle="--")
    title = f"communicator {first.communicator}: {first.text.splitlines()[0].rstrip(':')}"
    axes.set_title(title, color="#d55e00", fontsize=10, loc="left")


def _legend(figure: Any, functions: list[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=COLOURS.get(name, OTHER), label=name) for name in functions]
    patches.append(
        Patch(facecolor="white", edgecolor="#333333", hatch="///", label="not known to be done")
    )
    figure.legend(handles=patches, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
