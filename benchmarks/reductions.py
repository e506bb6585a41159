"""The emulator's reductions alone: time of a thousand elements, by type and operation.

Sixteen sources that the processor's caches hold are reduced to one result, so that the time is
that of the arithmetic: one step for every element of every source but the first. A cell is the
fastest of several calls, in nanoseconds. There is a table for each instruction set that this
processor has loops for; the emulator chooses the first.

Run: python benchmarks/reductions.py
"""

import argparse
import ctypes
import os
import pathlib
import shlex
import subprocess
import tempfile
import time

import ml_dtypes
import numpy as np
from machine import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "pynccl" / "emulator" / "src"
INSTRUCTIONS = ("avx512", "avx2", "plain")
# In the orders of ncclDataType_t and ncclRedOp_t.
TYPES = [
    np.dtype(t)
    for t in (
        *(np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64),
        *(np.float16, np.float32, np.float64),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
]
OPERATIONS = ("sum", "prod", "max", "min", "avg", "pre_mul_sum")
ELEMENTS, REDUCED = 8192, 16


def compiled(folder):
    """The emulator's loops in a library of their own, compiled as the emulator is."""
    library = pathlib.Path(folder) / "libreduce.so"
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    flags = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-shared", f"-I{SOURCES}"]
    shim = ROOT / "tests" / "native" / "reduce_shim.cc"
    sources = [*sorted(SOURCES.glob("reduce*.cc")), SOURCES / "copy.cc", shim]
    subprocess.run([*compiler, *flags, *map(str, sources), "-o", str(library)], check=True)
    loops = ctypes.CDLL(str(library))
    loops.choose_loops.restype = ctypes.c_bool
    return loops


def nanoseconds(loops, dtype, operation, repetitions):
    """What a thousand steps take."""
    random = np.random.default_rng(0)
    values = [random.integers(-100, 100, ELEMENTS).astype(dtype) for _ in range(2)]
    result, scalars = np.zeros_like(values[0]), np.ones(REDUCED, dtype)
    sources = (ctypes.c_void_p * REDUCED)(*(values[i % 2].ctypes.data for i in range(REDUCED)))
    arguments = (
        *(TYPES.index(dtype), OPERATIONS.index(operation), sources, REDUCED),
        ctypes.c_void_p(scalars.ctypes.data),
        *((ctypes.c_void_p * 1)(result.ctypes.data), 1, ctypes.c_size_t(ELEMENTS)),
    )
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        loops.reduce_with_loops(*arguments)
        best = min(best, time.perf_counter() - start)
    return best * 1e12 / (ELEMENTS * (REDUCED - 1))


def main(args):
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        loops = compiled(folder)
        for instructions in INSTRUCTIONS:
            if not loops.choose_loops(instructions.encode()):
                print(f"\n{instructions}: not on this processor")
                continue
            print(f"\n{instructions:15}" + "".join(f"{name:>12}" for name in OPERATIONS))
            for dtype in TYPES:
                row = [nanoseconds(loops, dtype, name, args.repetitions) for name in OPERATIONS]
                print(f"{dtype.name:15}" + "".join(f"{value:12.0f}" for value in row), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The emulator's reductions alone.")
    parser.add_argument("--repetitions", type=int, default=12)
    main(parser.parse_args())
