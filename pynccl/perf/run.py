"""A whole run: all types, reductions, roots and sizes that the options ask for."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import pynccl
from pynccl.perf import options as command_line
from pynccl.perf.gpu import Gpu
from pynccl.perf.job import Job
from pynccl.perf.measure import Case, Measurement, Result
from pynccl.perf.operations import OPERATIONS, Shape
from pynccl.perf.report import Report

__all__ = ["run"]

LARGEST = 3  # of Job.combine


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    """Measure, report, and return the exit status: 0 where all results were right.

    Args:
        options: what ``options.add_arguments`` parsed
        arguments: the command line, for the record
    """
    gpus = options.nthreads * options.ngpus
    config = None
    if options.cta_policy is not None:
        config = pynccl.Config(cta_policy=options.cta_policy)
    job = Job(gpus, config, bool(options.stream_null))
    try:
        command_line.settle(options, job.nranks)
        if options.operation == "hypercube" and job.nranks & (job.nranks - 1):
            raise ValueError(f"hypercube needs a power of two ranks, not {job.nranks}")
        report = Report(options, arguments, job.leads)
        report.begin(job.describe(), command_line.notes(options))
        memory = _Memory(job)
        buffers = _buffers(job, options)
        memory.note("User-Allocated")
        _measure_all(job, buffers, options, report)
        memory.note("Collective")
        status = report.end(memory.used if options.memory else None)
        for gpu in buffers:
            gpu.close()
        job.close()
    except BaseException:
        for comm in job.comms:
            comm.abort()
        raise
    return status


def _buffers(job: Job, options: argparse.Namespace) -> list[Gpu]:
    needed = options.maxbytes
    for case in _cases(job, options):
        shape = _shape(case, options.maxbytes, job.nranks)
        needed = max(needed, max(shape.send, shape.recv) * case.datatype.itemsize)
    widest = 8
    buffers = [Gpu(comm, max(needed + options.unalign * widest, 1)) for comm in job.comms]
    if options.local_register:
        with pynccl.group():
            for gpu in buffers:
                gpu.register(options.local_register)
    return buffers


def _shape(case: Case, nbytes: int, nranks: int) -> Shape:
    itemsize = case.datatype.itemsize
    return OPERATIONS[case.operation].shape(nbytes // itemsize, itemsize, nranks)


def _cases(job: Job, options: argparse.Namespace) -> Iterator[Case]:
    operation = OPERATIONS[options.operation]
    reductions = options.op if operation.reduces else ("none",)
    roots: Any = (-1,)
    if operation.rooted:
        roots = range(job.nranks) if options.root is None else (options.root,)
    for name, reduction, root in itertools.product(options.datatype, reductions, roots):
        yield Case(options.operation, name, command_line.TYPES[name], reduction, root)


def _sizes(options: argparse.Namespace) -> Iterator[int]:
    size = options.minbytes
    while size <= options.maxbytes:
        yield size
        size = size * options.stepfactor if options.stepfactor > 1 else size + options.stepbytes


def _measure_all(
    job: Job, buffers: list[Gpu], options: argparse.Namespace, report: Report
) -> None:
    seed = itertools.count(1)
    for case in _cases(job, options):
        _warm_up(job, buffers, options, case)
        cycles = itertools.count() if options.run_cycles == 0 else range(options.run_cycles)
        for _ in cycles:
            for size in _sizes(options):
                shape = _shape(case, size, job.nranks)
                ways = (False, True) if OPERATIONS[case.operation].in_place else (False,)
                results = [
                    _measure(Measurement(job, buffers, options, case, shape, way), seed)
                    for way in ways
                ]
                report.line(case, shape, results)


def _measure(measurement: Measurement, seed: Iterator[int]) -> Result:
    try:
        result = measurement.time()
        measurement.job.barrier()
        for _ in range(measurement.options.check):
            result.wrong = measurement.check(next(seed))
            if result.wrong:
                break
        return result
    finally:
        measurement.close()


def _warm_up(job: Job, buffers: list[Gpu], options: argparse.Namespace, case: Case) -> None:
    """Go through sizes up to the largest, so that what NCCL sets up for each is not timed."""
    size = max(options.minbytes, case.datatype.itemsize)
    while size <= options.maxbytes:
        shape = _shape(case, size, job.nranks)
        measurement = Measurement(job, buffers, options, case, shape, False)
        measurement.warm_up(options.warmup_iters)
        measurement.close()
        size *= 2


class _Memory:
    """GPU memory that was taken, step by step: the most on any rank."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.used: list[tuple[str, int]] = []
        self._free = job.free_at_start
        self.note("Initialization")

    def note(self, name: str) -> None:
        """Note what was taken since the last note."""
        before, self._free = self._free, self.job.free_memory()
        taken = [float(old - new) for old, new in zip(before, self._free)]
        self.used.append((name, int(self.job.combine(taken, LARGEST))))
