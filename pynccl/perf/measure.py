"""Times an operation of one size, and checks what it leaves in memory."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pynccl
from pynccl.arrays import numpy_dtype
from pynccl.perf.gpu import Gpu, Issue, issue
from pynccl.perf.graphs import Graphs
from pynccl.perf.job import Job
from pynccl.perf.operations import OPERATIONS, Shape
from pynccl.perf.patterns import Pattern, scalar_of
from pynccl.streams import check_driver
from pynccl.types import DataType, RedOp

__all__ = ["Case", "Measurement", "Result"]

SUM = 4  # of Job.combine


@dataclass(frozen=True)
class Case:
    """What is measured, but for its size.

    Attributes:
        operation, type, reduction: nccl-tests' names; ``none`` without a reduction
        datatype: NCCL's
        root: -1 without a root
    """

    operation: str
    type: str
    datatype: DataType
    reduction: str
    root: int


@dataclass
class Result:
    """One measurement.

    Attributes:
        microseconds: of one operation
        algbw, busbw: 10^9 bytes a second
        wrong: elements on all ranks that were not what they must be; None where not checked
        iterations: microseconds of each iteration, on the slowest rank
        by_process: the same for each process
    """

    microseconds: float
    algbw: float
    busbw: float
    wrong: int | None
    iterations: list[float] = field(default_factory=list)
    by_process: list[list[float]] = field(default_factory=list)


class _Events:
    """Events on every GPU's stream, made before the clock runs and recorded in order."""

    def __init__(self, gpus: list[Gpu], count: int) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self.gpus = gpus
        self.rows: list[list[Any]] = []
        self.recorded = 0
        for _ in range(count):
            row = []
            for gpu in gpus:
                gpu.device.set_current()
                row.append(check_driver(driver.cuEventCreate(0), "cuEventCreate"))
            self.rows.append(row)

    def record(self) -> None:
        """Record the next event on each GPU."""
        for gpu, event in zip(self.gpus, self.rows[self.recorded]):
            if len(self.gpus) > 1:
                gpu.device.set_current()
            check_driver(self._driver.cuEventRecord(event, gpu.stream), "cuEventRecord")
        self.recorded += 1

    def seconds(self, start: int, end: int) -> list[float]:
        """Return each GPU's time from one record to another, once both are done."""
        milliseconds = [
            check_driver(self._driver.cuEventElapsedTime(first, last), "cuEventElapsedTime")
            for first, last in zip(self.rows[start], self.rows[end])
        ]
        return [value / 1e3 for value in milliseconds]

    def close(self) -> None:
        """Destroy the events."""
        for row in self.rows:
            for event in row:
                self._driver.cuEventDestroy(event)


class Measurement:
    """One operation of one size, in place or not, ready to be issued again and again."""

    def __init__(
        self,
        job: Job,
        gpus: list[Gpu],
        options: argparse.Namespace,
        case: Case,
        shape: Shape,
        in_place: bool,
    ) -> None:
        self.job = job
        self.gpus = gpus
        self.options = options
        self.case = case
        self.shape = shape
        self.in_place = in_place
        self.offset = options.unalign * case.datatype.itemsize
        self.ops = [_reduction(gpu.comm, case) for gpu in gpus]
        self._issues: dict[int, list[list[list[Issue]]]] = {}

    def close(self) -> None:
        """Give back what a reduction with a scalar took."""
        for op in self.ops:
            if isinstance(op, pynccl.CustomRedOp):
                op.close()

    def start(self, number: int) -> None:
        """Issue the operation: the next one elsewhere in the buffers, so that no cache helps it."""
        used = max(self.shape.send, self.shape.recv) * self.case.datatype.itemsize
        places = max(1, self.options.maxbytes // used) if used else 1
        shift = used * (number % places)
        if shift not in self._issues:
            self._issues[shift] = [
                gpu.issues(
                    OPERATIONS[self.case.operation],
                    self.shape,
                    self.case.datatype,
                    int(op),
                    self.case.root,
                    self.in_place,
                    self.offset + shift,
                )
                for gpu, op in zip(self.gpus, self.ops)
            ]
        issue(self._issues[shift])

    def wait(self) -> None:
        """Block until all of the process's GPUs are done."""
        for gpu in self.gpus:
            gpu.comm.synchronize(self.options.timeout or None)

    def warm_up(self, iterations: int) -> None:
        """Issue some operations that are not timed, and wait for them."""
        for number in range(iterations):
            self.start(number)
        self.wait()

    def time(self) -> Result:
        """Time the iterations that the options ask for."""
        if self.options.check:
            self._fill(99)
        self.warm_up(1)
        self.job.barrier()
        events = _Events(self.gpus, 2 * self.options.iters + 2)
        try:
            if self.options.cudagraph:
                called, intervals = self._launch_graphs(events)
            else:
                called, intervals = self._iterate(events)
            self.wait()
            times = [events.seconds(start, end) for start, end in intervals]
        finally:
            events.close()
        return self._result(called, times)

    def _iterate(self, events: _Events) -> tuple[float, list[tuple[int, int]]]:
        """Issue all iterations; return the seconds in calls, and the events around each time."""
        options = self.options
        apart = options.blocking == 3
        called = 0.0
        for iteration in range(options.iters):
            start = time.perf_counter()
            if apart or options.per_iter_timing or iteration == 0:
                events.record()
            self._iteration(iteration)
            if options.blocking == 3:
                self.wait()
                events.record()
            called += time.perf_counter() - start
            if apart:
                self.job.barrier()
        if apart:
            return called, [(2 * index, 2 * index + 1) for index in range(options.iters)]
        events.record()
        return called, [(index, index + 1) for index in range(events.recorded - 1)]

    def _iteration(self, iteration: int) -> None:
        together = self.options.agg_iters
        with pynccl.group() if together > 1 else nullcontext():
            for number in range(iteration * together, (iteration + 1) * together):
                self.start(number)
                if self.options.blocking in (1, 2):
                    self.wait()
                if self.options.blocking == 1:
                    self.job.barrier()

    def _launch_graphs(self, events: _Events) -> tuple[float, list[tuple[int, int]]]:
        """Capture all iterations, launch them as often as asked for, and return as _iterate."""
        graphs = Graphs(self.gpus)
        with graphs.capture():
            for iteration in range(self.options.iters):
                self._iteration(iteration)
        self.job.barrier()
        start = time.perf_counter()
        events.record()
        for _ in range(self.options.cudagraph):
            graphs.launch()
        events.record()
        called = time.perf_counter() - start
        self.wait()
        graphs.close()
        return called, [(0, 1)]

    def _result(self, called: float, times: list[list[float]]) -> Result:
        """Reckon time and bandwidth.

        Args:
            called: seconds spent in calls
            times: seconds of each interval, for each GPU
        """
        options = self.options
        operations = options.iters * options.agg_iters * max(1, options.cudagraph)
        ranks = [sum(column) / operations for column in zip(*times)]
        seconds = self.job.combine(ranks, options.average)
        algbw, busbw = OPERATIONS[self.case.operation].bandwidth(
            self.shape, self.case.datatype.itemsize, self.job.nranks, seconds
        )
        shown = seconds
        if options.report_cputime:
            shown = self.job.combine([called / operations] * len(ranks), options.average)
        result = Result(shown * 1e6, algbw, busbw, None)
        if options.per_iter_timing:
            slowest = [max(row) * 1e6 / options.agg_iters for row in times]
            table = self.job.by_process(slowest)
            result.iterations = table.max(axis=0).tolist()
            result.by_process = table.tolist()
        return result

    def check(self, seed: int) -> int:
        """Run the operation once on known contents; return the wrong elements of all ranks."""
        self._fill(seed)
        if self.options.cudagraph:
            graphs = Graphs(self.gpus)
            with graphs.capture():
                self.start(0)
            graphs.launch()
            self.wait()
            graphs.close()
        else:
            self.start(0)
            self.wait()
        pattern = self._pattern(seed)
        wrong = 0
        for gpu in self.gpus:
            expected = pattern.received(gpu.comm.rank, self.shape)
            if expected is not None and expected.size:
                _, pointer = gpu.pointers(self.shape, self.case.datatype.itemsize, self.in_place)
                result = gpu.read(pointer + self.offset, expected.size, expected.dtype)
                wrong += pattern.wrong(result, expected)
        return int(self.job.combine([float(wrong)], SUM))

    def _pattern(self, seed: int) -> Pattern:
        case = self.case
        return Pattern(
            case.operation, case.reduction, case.datatype, self.job.nranks, case.root, seed
        )

    def _fill(self, seed: int) -> None:
        pattern = self._pattern(seed)
        itemsize = self.case.datatype.itemsize
        for gpu in self.gpus:
            gpu.clear(gpu.recv + self.offset, self.shape.recv * itemsize)
            source, _ = gpu.pointers(self.shape, itemsize, self.in_place)
            gpu.write(source + self.offset, pattern.sent(gpu.comm.rank, self.shape.send))


def _reduction(comm: pynccl.Communicator, case: Case) -> Any:
    if case.reduction == "none":
        return RedOp.SUM
    if case.reduction == "mulsum":
        return comm.create_pre_mul_sum(scalar_of(comm.rank), numpy_dtype(case.datatype))
    return RedOp[case.reduction.upper()]
