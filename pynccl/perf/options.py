"""The command line of nccl-tests, and what is added to it."""

from __future__ import annotations

import argparse
import re

from pynccl.perf.operations import OPERATIONS
from pynccl.types import DataType

__all__ = ["REDUCTIONS", "TYPES", "add_arguments", "notes", "settle"]

# nccl-tests' names, in its order; numpy's are taken as well.
TYPES = {
    "int8": DataType.INT8,
    "uint8": DataType.UINT8,
    "int32": DataType.INT32,
    "uint32": DataType.UINT32,
    "int64": DataType.INT64,
    "uint64": DataType.UINT64,
    "half": DataType.FLOAT16,
    "float": DataType.FLOAT32,
    "double": DataType.FLOAT64,
    "bfloat16": DataType.BFLOAT16,
    "f8e4m3": DataType.FLOAT8_E4M3,
    "f8e5m2": DataType.FLOAT8_E5M2,
}
_ALIASES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
REDUCTIONS = ("sum", "prod", "max", "min", "avg", "mulsum")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the operation and all options."""
    add = parser.add_argument
    add("operation", choices=sorted(OPERATIONS), help="what to measure")
    add("-t", "--nthreads", type=_positive, default=1, metavar="N",
        help="multiplies -g: one thread drives all GPUs of a process (1)")
    add("-g", "--ngpus", type=_positive, default=1, metavar="N", help="GPUs of a process (1)")
    add("-b", "--minbytes", type=_size, default=32 << 20, metavar="SIZE",
        help="smallest size; K, M, G are powers of 1024 (32M)")
    add("-e", "--maxbytes", type=_size, default=32 << 20, metavar="SIZE", help="largest size (32M)")
    add("-i", "--stepbytes", type=_size, default=1 << 20, metavar="SIZE",
        help="from one size to the next (1M)")
    add("-f", "--stepfactor", type=_number, default=1, metavar="N",
        help="factor from one size to the next, in place of -i")
    add("-n", "--iters", type=_positive, default=20, metavar="N", help="timed iterations (20)")
    add("-m", "--agg_iters", type=_positive, default=1, metavar="N",
        help="operations in each iteration, in one group (1)")
    add("-w", "--warmup_iters", type=_number, default=1, metavar="N",
        help="iterations before, not timed (1)")
    add("-N", "--run_cycles", type=_number, default=1, metavar="N",
        help="how often to go through all sizes; 0 for ever (1)")
    add("-p", "--parallel_init", type=_number, default=0, metavar="0/1",
        help="without effect: communicators are made in one group")
    add("-c", "--check", type=_number, default=1, metavar="N",
        help="iterations whose results are checked (1)")
    add("-o", "--op", type=_reduction, default=("sum",), metavar="OP",
        help=f"{', '.join(REDUCTIONS)} or all (sum)")
    add("-d", "--datatype", type=_type, default=("float",), metavar="TYPE",
        help=f"{', '.join(TYPES)} or all (float)")
    add("-r", "--root", type=_root, default=0, metavar="RANK", help="root, or all (0)")
    add("-z", "--blocking", type=int, choices=(0, 1, 2, 3), default=0,
        help="wait after each operation: with a barrier (1), without (2), or with one after each "
        "iteration that is not timed (3)")
    add("-y", "--stream_null", type=_number, default=0, metavar="0/1",
        help="on CUDA's default stream")
    add("-T", "--timeout", type=_number, default=0, metavar="SECONDS",
        help="give up when a wait takes longer")
    add("-G", "--cudagraph", type=_number, default=0, metavar="N",
        help="capture the iterations as a CUDA graph, and launch it N times")
    add("-C", "--report_cputime", type=_number, default=0, metavar="0/1",
        help="report how long the calls took, not the operations")
    add("-S", "--report_timestamps", type=_number, default=0, metavar="0/1",
        help="a time of day on each line")
    add("-a", "--average", type=int, choices=(0, 1, 2, 3), default=1,
        help="time of rank 0, the average, the minimum or the maximum of all ranks (1)")
    add("-R", "--local_register", type=int, choices=(0, 1, 2), default=0,
        help="register the buffers (1), or register them as symmetric windows (2)")
    add("-x", "--cta_policy", type=int, choices=(0, 1, 2), default=None,
        help="thread blocks: default, efficiency, zero")
    add("-D", "--device_implementation", type=_number, default=0, metavar="N",
        help="without effect: it needs compiled kernels")
    add("-V", "--device_cta_count", type=_number, default=16, metavar="N", help="without effect")
    add("-M", "--memory", type=_number, default=0, metavar="0/1", help="report GPU memory")
    add("-u", "--unalign", type=_number, default=0, metavar="N",
        help="begin N elements into the buffers")
    add("-I", "--per_iter_timing", type=_number, default=0, metavar="0/1",
        help="time each iteration, and add columns for them")
    add("-K", "--per_iter_skip", type=_number, default=0, metavar="N",
        help="leave the first N out of those columns")
    add("-J", "--output_file", "--json", dest="json", metavar="FILE",
        help="write the results as JSON, in nccl-tests' layout")
    add("--csv", metavar="FILE", help="write a row for each measurement")
    add("--plot", metavar="FILE", help="draw bandwidth and latency against size (png, pdf, svg)")
    add("--with", dest="others", action="append", default=[], metavar="FILE",
        help="draw the results of an earlier --json in the same plot; may be repeated")


def settle(options: argparse.Namespace, nranks: int) -> None:
    """Check options against each other and the number of ranks.

    Raises:
        ValueError: they do not go together
    """
    if options.stepfactor < 2 and options.stepbytes < 1 and options.maxbytes > options.minbytes:
        raise ValueError("-i 0: the size would never grow")
    if options.per_iter_timing and options.cudagraph:
        raise ValueError("-I and -G: a graph's iterations cannot be timed one by one")
    if options.blocking == 3 and options.cudagraph:
        raise ValueError("-z 3 and -G: a graph cannot wait between its iterations")
    if options.blocking and options.cudagraph:
        raise ValueError("-z and -G: a graph is launched as a whole")
    if options.blocking and options.agg_iters > 1 and options.blocking != 3:
        raise ValueError("-z and -m: operations of one group cannot be waited for one by one")
    if options.per_iter_timing and options.per_iter_skip >= options.iters:
        raise ValueError(f"-K {options.per_iter_skip} leaves none of {options.iters} iterations")
    if options.others and not options.plot:
        raise ValueError("--with needs --plot")
    if options.root is not None and not 0 <= options.root < nranks:
        raise ValueError(f"-r {options.root}: must be a rank from 0 to {nranks - 1}, or all")


def notes(options: argparse.Namespace) -> list[str]:
    """Return what to say of options that are taken and change nothing here."""
    said = []
    if options.nthreads > 1:
        said.append(f"-t {options.nthreads}: one thread drives the process's GPUs, in groups")
    if options.parallel_init:
        said.append("-p: communicators are made in one group; there are no threads to make them")
    if options.device_implementation:
        said.append(
            f"-D {options.device_implementation}: kernels would have to be compiled; the host's "
            "operation is measured"
        )
    return said


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _number(text: str) -> int:
    number = _integer(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} must not be negative")
    return number


def _positive(text: str) -> int:
    number = _integer(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be 1 or more")
    return number


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGkmg]?)[Bb]?", text.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 8, 64K or 1.5G")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _reduction(text: str) -> tuple[str, ...]:
    name = text.lower()
    if name == "all":
        return REDUCTIONS
    if name not in REDUCTIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(REDUCTIONS)}, all")
    return (name,)


def _type(text: str) -> tuple[str, ...]:
    name = _ALIASES.get(text.lower(), text.lower())
    if name == "all":
        return tuple(TYPES)
    if name not in TYPES:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(TYPES)}, all")
    return (name,)


def _root(text: str) -> int | None:
    return None if text.lower() in ("all", "-1") else _number(text)
