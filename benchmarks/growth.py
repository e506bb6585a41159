"""How costs grow: with ranks, with size, with communicators, with operations in a group.

Ranks are GPUs of one process, so that 64 of them need no launcher; on the emulator each has a
thread. --soak issues operations for long and looks for memory or descriptors that are not given
back.

Run: python benchmarks/growth.py [--plot growth.png]
     python benchmarks/growth.py --soak 200000
"""

import argparse
import os
import pathlib
import time

# Before pynccl, which reads it when it loads the emulator.
os.environ.setdefault("PYNCCL_EMULATOR_DEVICES", "64")

import numpy as np
from machine import machine

import pynccl

RANKS = (1, 2, 4, 8, 16, 32, 64)
SIZES = (8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20, 32 << 20)
COMMUNICATORS = (1, 4, 16, 64)
GROUPED = (1, 4, 16, 64, 256)
SOAK_ROUND = 1000
# What a process may gain after the first rounds: the allocator's own noise.
SLACK_BYTES = 4 << 20


def wait(comms):
    for comm in comms:
        comm.synchronize()


def microseconds(call, comms, calls, rounds=5):
    """Medians over rounds of so many calls: the time of one, and of its issuing alone."""
    call()
    wait(comms)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        issued = time.perf_counter()
        wait(comms)
        times.append(((time.perf_counter() - start) / calls, (issued - start) / calls))
    return [float(median) * 1e6 for median in np.median(times, axis=0)]


def reduce_all(comms, arrays, times=1):
    with pynccl.group():
        for _ in range(times):
            for comm, array in zip(comms, arrays):
                comm.allreduce(array)


def destroy(comms):
    for comm in comms:
        comm.finalize()
    for comm in comms:
        comm.destroy()


def by_ranks():
    """An all-reduce of 1 KiB, its issuing by one thread for all ranks, and making communicators."""
    destroy(pynccl.Communicator.init_all(1))  # loads what there is to load
    for nranks in RANKS:
        start = time.perf_counter()
        comms = pynccl.Communicator.init_all(nranks)
        made = (time.perf_counter() - start) * 1e6
        arrays = [comm.asarray(np.ones(256, np.float32)) for comm in comms]
        took = microseconds(lambda: reduce_all(comms, arrays), comms, 20)  # noqa: B023
        yield nranks, *took, made
        destroy(comms)


def by_size():
    comms = pynccl.Communicator.init_all(2)
    for nbytes in SIZES:
        arrays = [comm.empty(nbytes // 4, "float32") for comm in comms]
        calls = max(2, min(50, (16 << 20) // nbytes))
        took, _ = microseconds(lambda: reduce_all(comms, arrays), comms, calls)  # noqa: B023
        source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        copied, _ = microseconds(lambda: np.copyto(target, source), [], calls)  # noqa: B023
        yield nbytes, took, copied
    destroy(comms)


def by_communicators():
    """An all-reduce of 1 KiB on the newest of so many communicators of the same two GPUs."""
    sets = []
    for number in COMMUNICATORS:
        while len(sets) < number:
            sets.append(pynccl.Communicator.init_all(2))
        comms = sets[-1]
        arrays = [comm.asarray(np.ones(256, np.float32)) for comm in comms]
        took, _ = microseconds(lambda: reduce_all(comms, arrays), comms, 50)  # noqa: B023
        yield number, took
    for comms in sets:
        destroy(comms)


def by_group():
    """One group of so many all-reduces of 1 KiB: microseconds of each."""
    comms = pynccl.Communicator.init_all(2)
    arrays = [comm.asarray(np.zeros(256, np.float32)) for comm in comms]
    for number in GROUPED:
        took, _ = microseconds(lambda: reduce_all(comms, arrays, number), comms, 5)  # noqa: B023
        yield number, took / number
    destroy(comms)


# For each axis: its measurement, its title, and what the columns are.
TABLES = {
    "ranks": (
        by_ranks,
        "An all-reduce of 1 KiB against ranks",
        *("all-reduce", "issuing it", "making all"),
    ),
    "bytes": (by_size, "An all-reduce against size", "all-reduce", "one copy"),
    "communicators": (
        by_communicators,
        "An all-reduce of 1 KiB against communicators",
        "all-reduce",
    ),
    "operations": (
        by_group,
        "All-reduces of 1 KiB in a group, each",
        "each",
    ),
}


def grow(plot):
    print(machine())
    found = {}
    for axis, (measure, title, *columns) in TABLES.items():
        print(f"\n{title}, in microseconds")
        print(f"{axis:>14}" + "".join(f"{name:>14}" for name in columns))
        found[axis] = []
        for row in measure():
            print(f"{row[0]:14d}" + "".join(f"{value:14.1f}" for value in row[1:]), flush=True)
            found[axis].append(row)
    if plot:
        draw(found, plot)


def draw(found, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    for axes, (axis, rows) in zip(figure.subplots(2, 2).flat, found.items()):
        _, title, *columns = TABLES[axis]
        places = [row[0] for row in rows]
        for index, name in enumerate(columns, start=1):
            axes.loglog(places, [row[index] for row in rows], "o-", label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [written(place, axis) for place in places])
        axes.set_ylim(bottom=min(1, *(value for row in rows for value in row[1:])))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(axis)
        axes.set_ylabel("microseconds")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(file, dpi=120)


def written(place, axis):
    """A place on an axis, as its label has it."""
    if axis != "bytes" or place < 1024:
        return str(place)
    return f"{place >> 20} Mi" if place >= 1 << 20 else f"{place >> 10} Ki"


def resident():
    """Bytes of this process's own memory; shared mappings, such as emulated GPUs, are left out."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def soak(operations):
    """Issue so many all-reduces, and communicators and arrays by the way; fail where any stays."""
    print(machine())
    print(f"{'operations':>12}{'MiB':>10}{'descriptors':>13}{'us each':>10}")
    comms = pynccl.Communicator.init_all(2)
    first = None
    for done in range(0, operations, SOAK_ROUND):
        arrays = [comm.asarray(np.ones(256, np.float32)) for comm in comms]
        start = time.perf_counter()
        for _ in range(SOAK_ROUND):
            reduce_all(comms, arrays)
        wait(comms)
        each = (time.perf_counter() - start) / SOAK_ROUND * 1e6
        destroy(pynccl.Communicator.init_all(2))
        state = resident(), descriptors()
        if done == 2 * SOAK_ROUND:
            first = state
        if done // SOAK_ROUND % max(1, operations // SOAK_ROUND // 10) == 0:
            line = f"{done + SOAK_ROUND:12d}{state[0] / 2**20:10.1f}{state[1]:13d}{each:10.1f}"
            print(line, flush=True)
    destroy(comms)
    if first is None:
        raise SystemExit(f"--soak {operations}: at least {3 * SOAK_ROUND} are needed to compare")
    gained = state[0] - first[0], state[1] - first[1]
    print(f"after the first rounds: {gained[0] / 2**20:+.1f} MiB, {gained[1]:+d} descriptors")
    if gained[0] > SLACK_BYTES or gained[1] > 0:
        raise SystemExit("memory or descriptors grew")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="How costs grow.")
    parser.add_argument("--plot", metavar="FILE", help="draw the tables (needs matplotlib)")
    parser.add_argument("--soak", type=int, metavar="N", help="issue N operations instead")
    args = parser.parse_args()
    if args.soak:
        soak(args.soak)
    else:
        grow(args.plot)
