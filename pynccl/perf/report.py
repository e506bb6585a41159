"""The table that nccl-tests prints, and the files beside it."""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any

from pynccl import __version__, library
from pynccl.perf import files
from pynccl.perf.measure import Case, Result
from pynccl.perf.operations import Shape
from pynccl.types import version_text

__all__ = ["Report"]

_TIME = "%Y-%m-%d %H:%M:%S"
# How far below the bandwidth that NCCL_TESTS_MIN_BW asks for a run may stay.
_SLACK = 0.9


class Report:
    """Writes a run's table line by line; at its end the files.

    Args:
        options: the run's
        arguments: its command line
        leads: whether this process reports; the others are silent
    """

    def __init__(self, options: argparse.Namespace, arguments: list[str], leads: bool) -> None:
        self.options = options
        self.leads = leads
        self.rows: list[dict[str, Any]] = []
        self.wrong = 0
        self.busbw: list[float] = []
        self.record: dict[str, Any] = {
            "version": 1,
            "start_time": time.strftime(_TIME),
            "args": arguments,
            "env": _environment(),
            "nccl_version": library.load().version,
            "pynccl_version": __version__,
            "backend": library.backend(),
            "operation": options.operation,
        }

    def begin(self, devices: list[dict[str, Any]], notes: list[str]) -> None:
        """Write what comes above the numbers."""
        options = self.options
        self.record["config"] = {**_config(options), "devices": devices}
        self._say(
            f"# pynccl version {__version__} nccl-library={version_text(library.load().version)} "
            f"backend={library.backend()}"
        )
        self._say(f"# Collective test starting: {options.operation}_perf")
        factor = options.stepfactor > 1
        self._say(
            f"# nThread {options.nthreads} nGpus {options.ngpus} minBytes {options.minbytes} "
            f"maxBytes {options.maxbytes} "
            f"step: {options.stepfactor if factor else options.stepbytes}"
            f"({'factor' if factor else 'bytes'}) warmup iters: {options.warmup_iters} "
            f"iters: {options.iters} agg iters: {options.agg_iters} validation: {options.check} "
            f"graph: {options.cudagraph} unalign: {options.unalign}"
        )
        for note in [*_BLOCKING[options.blocking], *notes]:
            self._say(f"# {note}")
        self._say("#")
        self._say("# Using devices")
        for rank in devices:
            self._say(
                f"#  Rank {rank['rank']:2d} Group {rank['group']:2d} Pid {rank['pid']:6d} on "
                f"{rank['hostname']:>10} device {rank['device']:2d} [{rank['device_hex']}] "
                f"{rank['device_info']}"
            )
        self._head()

    def _head(self) -> None:
        options = self.options
        timed = "cputime" if options.report_cputime else "time"
        extra = ("i_min", "i_max", "i_p99", "i_cv%") if options.per_iter_timing else ()
        units = ("(us)", "(us)", "(us)", "(%)") if options.per_iter_timing else ()
        width = 31 + 9 * len(extra)
        left = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
        self._say("#")
        self._say(f"{left}  {'out-of-place':^{width}}  {'in-place':^{width}}".rstrip())
        names = _columns(timed, "algbw", "busbw", "#wrong", *extra)
        below = _columns("(us)", "(GB/s)", "(GB/s)", "", *units)
        stamp = f" {'timestamp':>19}" if options.report_timestamps else ""
        self._say(
            f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
            f"{names}{names}{stamp}"
        )
        units_row = f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}{below}{below}"
        self._say(units_row.rstrip())

    def line(self, case: Case, shape: Shape, results: list[Result]) -> None:
        """Write the numbers of one size.

        Args:
            results: out of place and in place; the first alone where there is no other
        """
        size = max(shape.send, shape.recv) * case.datatype.itemsize
        row = {
            "size": size,
            "count": shape.count,
            "type": case.type,
            "redop": case.reduction,
            "root": str(case.root),
        }
        text = f"{size:12d}  {shape.count:12d}  {case.type:>8}  {case.reduction:>6}  {case.root:>6}"
        for name, result in zip(("out_of_place", "in_place"), [*results, None]):
            row |= _members(name, result, self.options)
            text += _cells(result, self.options)
            if result is not None:
                self.busbw.append(result.busbw)
                self.wrong += bool(result.wrong)
        if self.options.report_timestamps:
            text += time.strftime(f"  {_TIME}")
        self.rows.append({**row, "actual_iterations": self.options.iters, "experiment_name": ""})
        self._say(text)

    def end(self, memory: list[tuple[str, int]] | None) -> int:
        """Write what comes below the numbers, and the files; return the exit status.

        Args:
            memory: GPU memory by what took it, if it is to be told
        """
        average = math.fsum(self.busbw) / len(self.busbw) if self.busbw else 0.0
        least = os.environ.get("NCCL_TESTS_MIN_BW")
        enough = least is None or average >= float(least) * _SLACK
        self._say(
            f"# {'Out of bounds values':<20} : {self.wrong} {'FAILED' if self.wrong else 'OK'}"
        )
        judged = "" if least is None else " OK" if enough else " FAILED"
        self._say(f"# {'Avg bus bandwidth':<20} : {average:g}{judged}")
        self._say("#")
        if memory is not None:
            told = " | ".join(f"{name} {_bytes(nbytes)}" for name, nbytes in memory)
            total = _bytes(sum(nbytes for _, nbytes in memory))
            self._say(f"# {'GPU memory usage':<20} : {told} | Total {total}")
        self._say(f"# Collective test concluded: {self.options.operation}_perf")
        self.record |= {
            "results": self.rows,
            "out_of_bounds": {"count": self.wrong, "okay": not self.wrong},
            "average_bus_bandwidth": {
                "bandwidth": average,
                "okay": "unchecked" if least is None else enough,
            },
            "end_time": time.strftime(_TIME),
        }
        if self.leads:
            for written in files.write(self.record, self.options):
                self._say(f"# wrote {written}")
        return 0 if enough and not self.wrong else 1

    def _say(self, text: str) -> None:
        if self.leads:
            print(text, flush=True)


_BLOCKING: tuple[list[str], ...] = (
    [],
    ["Blocking Enabled: wait and barrier after each inner iteration (-m)"],
    ["Blocking Enabled: wait after each inner iteration (-m), no barrier"],
    ["Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier"],
)


def _columns(time_: str, algbw: str, busbw: str, wrong: str, *extra: str) -> str:
    text = f"  {time_:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}"
    return text + "".join(f"  {word:>7}" for word in extra)


def _cells(result: Result | None, options: argparse.Namespace) -> str:
    extra = ["N/A"] * (4 if options.per_iter_timing else 0)
    if result is None:
        return _columns("N/A", "N/A", "N/A", "N/A", *extra)
    if options.per_iter_timing:
        told = _statistics(result.iterations[options.per_iter_skip :])
        extra = [_number(told[name], 7) for name in ("min_us", "max_us", "p99_us", "cv_pct")]
    wrong = "N/A" if result.wrong is None else f"{result.wrong:g}"
    return _columns(
        _number(result.microseconds, 7),
        _number(result.algbw, 6),
        _number(result.busbw, 6),
        wrong,
        *extra,
    )


def _members(name: str, result: Result | None, options: argparse.Namespace) -> dict[str, Any]:
    """Return a result as the JSON file has it."""
    if result is None:
        return {name: None}
    members: dict[str, Any] = {
        name: {
            "cpu_time" if options.report_cputime else "time": result.microseconds,
            "alg_bw": result.algbw,
            "bus_bw": result.busbw,
            "nwrong": result.wrong,
        }
    }
    if options.per_iter_timing:
        members[f"{name}_per_iter"] = {
            "skipped_iterations": options.per_iter_skip,
            **_statistics(result.iterations[options.per_iter_skip :]),
            "times_us": result.iterations,
        }
        if len(result.by_process) > 1:
            members[f"{name}_per_iter"]["per_process_max_times_us"] = result.by_process
    return members


def _statistics(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    count = len(ordered)
    average = math.fsum(ordered) / count
    deviation = math.sqrt(math.fsum((value - average) ** 2 for value in ordered) / count)
    return {
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "avg_us": average,
        "p50_us": ordered[count // 2],
        "p95_us": ordered[min(count - 1, math.ceil(count * 0.95) - 1)],
        "p99_us": ordered[min(count - 1, math.ceil(count * 0.99) - 1)],
        "stdev_us": deviation,
        "cv_pct": 100 * deviation / average if average else 0.0,
    }


def _number(value: float, width: int) -> str:
    """Write a number in so many columns, with two places where they fit."""
    for places in (2, 1, 0):
        text = f"{value:.{places}f}"
        if len(text) <= width:
            return text
    return f"{value:.{1 if width >= 7 else 0}e}"


def _bytes(nbytes: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} B"


def _environment() -> list[str]:
    """Return the variables that bear on NCCL: the others are nobody's business."""
    prefixes = ("NCCL_", "PYNCCL_", "CUDA_VISIBLE_DEVICES")
    return [f"{name}={text}" for name, text in sorted(os.environ.items())
            if name.startswith(prefixes)]


def _config(options: argparse.Namespace) -> dict[str, Any]:
    step = {"step_bytes": options.stepbytes}
    if options.stepfactor > 1:
        step = {"step_factor": options.stepfactor}
    return {
        "nthreads": options.nthreads,
        "ngpus": options.ngpus,
        "minimum_bytes": options.minbytes,
        "maximum_bytes": options.maxbytes,
        **step,
        "warmup_iters": options.warmup_iters,
        "iterations": options.iters,
        "aggregated_iterations": options.agg_iters,
        "validation": options.check,
        "graph": options.cudagraph,
        "blocking_collectives": bool(options.blocking),
        "per_iter_timing": bool(options.per_iter_timing),
        "per_iter_skip": options.per_iter_skip,
        "parallel_init": False,
    }
