"""What a collective costs in Python, beside the bare foreign call.

One rank and a function of C that does nothing stand behind the calls, so that only the way there is
measured; then NCCL's own, for one element, where NVIDIA's nccl4py is measured too if it is there.
The ways alternate, and each time is the smallest mean of all rounds.

Run: python benchmarks/call_path.py
"""

import argparse
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
from machine import machine

import pynccl
from pynccl import bindings

BARE = "bare ctypes call"
NOTHING = """
#include <stddef.h>
int ncclAllReduce(const void* s, void* r, size_t n, int t, int o, void* c, void* q) {
  (void)s; (void)r; (void)n; (void)t; (void)o; (void)c; (void)q;
  return 0;
}
"""


def function_that_does_nothing():
    """Compile a function with ncclAllReduce's arguments and load it."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "nothing.c")
        source.write_text(NOTHING)
        library = source.with_suffix(".so")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        function = ctypes.CDLL(str(library)).ncclAllReduce
    function.argtypes = bindings.ncclAllReduce.argtypes
    function.restype = bindings.ncclAllReduce.restype
    return function


class Foreign:
    """An array of another library: what it says of itself is made anew each time."""

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        array = self.array
        return {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ptr, False),
            "strides": None,
            "version": 3,
        }


def ways(comm, array):
    """Every way to issue the all-reduce, by name."""
    function = bindings.ncclAllReduce
    arguments = (array.ptr, array.ptr, array.size, pynccl.FLOAT32, pynccl.SUM, comm.ptr, 0)
    plain = tuple(int(argument) for argument in arguments)
    converted = tuple(kind(value) for kind, value in zip(function.argtypes, plain))
    prepared = comm.prepare("allreduce", array)
    spec = (array.ptr, array.size, "float32")
    foreign = Foreign(array)
    allreduce = comm.allreduce
    return {
        BARE: lambda: function(*plain),
        "bare, converted arguments": lambda: function(*converted),
        "prepare(...)()": prepared,
        "allreduce(DeviceArray)": lambda: allreduce(array),
        "allreduce(new view)": lambda: allreduce(array[:]),
        "allreduce(x with __cuda_array_interface__)": lambda: allreduce(foreign),
        "allreduce((pointer, count, dtype))": lambda: allreduce(spec),
    }


def nccl4py_ways(array):
    """The same by NVIDIA's package, if it is installed."""
    try:
        import nccl.core as nccl
    except ImportError:
        return {}
    comm = nccl.Communicator.init(1, 0, nccl.get_unique_id())
    device_array = Foreign(array)
    return {
        "nccl4py allreduce(x with __cuda_array_interface__)": lambda: comm.allreduce(
            device_array, device_array, nccl.SUM, stream=0
        )
    }


def cupy_ways(comm, count):
    """allreduce of CuPy's arrays, and CuPy's own, if it is installed and has a GPU."""
    try:
        import cupy
        from cupy.cuda import nccl

        array = cupy.zeros(count, "float32")
    except Exception as error:  # an absent package, driver or GPU: whatever it is, it is told
        print(f"CuPy is left out: {type(error).__name__}: {error}".splitlines()[0])
        return {}
    own = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    pointer = array.data.ptr
    return {
        "allreduce(cupy.ndarray)": lambda: comm.allreduce(array),
        "CuPy's allReduce(pointers)": lambda: own.allReduce(pointer, pointer, count, 7, 0, 0),
    }


def measure(table, calls, rounds, settle):
    """Seconds of one call, for each way: the least of the rounds' means."""
    least = dict.fromkeys(table, float("inf"))
    for _ in range(rounds):
        for name, call in table.items():
            for _ in range(calls // 10):
                call()
            settle()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            least[name] = min(least[name], (time.perf_counter() - start) / calls)
            settle()
    return least


def show(title, seconds):
    print(f"\n{title}")
    print(f"{'':52}{'us':>8}{'+ us':>8}{'ratio':>8}")
    bare = seconds[BARE]
    for name, value in seconds.items():
        print(f"{name:52}{value * 1e6:8.2f}{(value - bare) * 1e6:8.2f}{value / bare:8.2f}")


def import_seconds(rounds=7):
    """Median seconds that ``import pynccl`` takes once numpy is imported."""
    program = (
        "import numpy, time; s = time.perf_counter(); import pynccl; print(time.perf_counter() - s)"
    )
    times = [
        float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(rounds)
    ]
    return float(np.median(times))


def main(args):
    print(machine())
    print(f"import pynccl, beyond numpy: {import_seconds() * 1e3:.1f} ms")
    (comm,) = pynccl.Communicator.init_all(1)
    with comm:
        array = comm.empty(1, "float32")
        real = bindings.ncclAllReduce
        bindings.ncclAllReduce = function_that_does_nothing()
        nothing = measure(ways(comm, array), args.calls, args.rounds, comm.synchronize)
        show("Behind the calls a function that does nothing", nothing)
        bindings.ncclAllReduce = real
        table = ways(comm, array) | nccl4py_ways(array) | cupy_ways(comm, 1)
        behind = measure(table, args.calls // 10, args.rounds, comm.synchronize)
        show("Behind the calls NCCL", behind)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What a collective costs in Python.")
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=7)
    main(parser.parse_args())
