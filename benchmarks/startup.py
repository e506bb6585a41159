"""Time from a process's start to its first all-reduce, in its phases, on this job's ranks.

Each rank notes when a phase begins and ends; the time to gather them is in none. The launcher's
own start is the time from --started, seconds since 1970, to the first line of this program.

Run: python benchmarks/startup.py 2 16 64        one job for each number of ranks
     mpirun -n 4 python -m mpi4py benchmarks/startup.py
"""

import time

BEGUN = time.time()

import argparse  # noqa: E402 - after the first look at the clock
import os  # noqa: E402
import pathlib  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402

PHASES = (
    "launcher",
    "import of mpi4py",
    "MPI's initialization",
    "import of pynccl",
    "import of cuda.core",
    "loading of libnccl",
    "facts of the node",
    "agreement",
    "unique ids",
    "NCCL's initialization",
    "first all-reduce",
)
# What the limit of a job is, in seconds.
LIMIT = 280


class Phases:
    """Seconds of each phase on this rank."""

    def __init__(self):
        self.seconds = {}

    def timed(self, name, function):
        """Return the function, with its time noted under the name."""

        def call(*arguments, **options):
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name] = time.perf_counter() - start

        return call


def measure(started, ranks_per_id):
    """Start up, and return MPI's world and the seconds of each phase on this rank."""
    phases = Phases()
    phases.seconds["launcher"] = BEGUN - started if started else float("nan")

    def import_mpi4py():
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI

        return MPI

    def import_pynccl():
        import numpy

        import pynccl.bootstrap

        return numpy, pynccl

    def import_cuda():
        import cuda.core  # noqa: F401 - only for its time

    MPI = phases.timed(PHASES[1], import_mpi4py)()  # noqa: N806 - its name
    phases.timed(PHASES[2], MPI.Init_thread)(MPI.THREAD_MULTIPLE)
    numpy, pynccl = phases.timed(PHASES[3], import_pynccl)()
    phases.timed(PHASES[4], import_cuda)()
    phases.timed(PHASES[5], pynccl.library.load)()
    bootstrap = pynccl.bootstrap
    bootstrap._prepare = phases.timed(PHASES[6], bootstrap._prepare)
    bootstrap._agree = phases.timed(PHASES[7], bootstrap._agree)
    bootstrap._spread_ids = phases.timed(PHASES[8], bootstrap._spread_ids)
    pynccl.Communicator.init = phases.timed(PHASES[9], pynccl.Communicator.init)
    comm = pynccl.Communicator.from_mpi(MPI.COMM_WORLD, ranks_per_id=ranks_per_id)

    def reduce():
        array = comm.asarray(numpy.ones(1))
        return comm.allreduce(array).get()[0]

    assert phases.timed(PHASES[10], reduce)() == comm.nranks
    total = time.time() - BEGUN
    comm.destroy()
    return MPI.COMM_WORLD, phases.seconds, total


def resident_mib():
    """Most memory that this process has had, in MiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(world, seconds, total):
    import numpy

    mine = numpy.array([*(seconds[name] for name in PHASES), total, resident_mib()])
    everyone = numpy.empty((world.size, mine.size)) if world.rank == 0 else None
    world.Gather(mine, everyone)
    if everyone is None:
        return
    print(f"\n{world.size} ranks{'':18}{'median':>10}{'maximum':>10}   seconds")
    for index, name in enumerate([*PHASES, "all but the launcher"]):
        column = everyone[:, index]
        print(f"{name:<26}{numpy.median(column):>10.3f}{column.max():>10.3f}")
    memory = everyone[:, -1]
    print(f"{'memory':<26}{numpy.median(memory):>10.0f}{memory.max():>10.0f}   MiB", flush=True)


def launch(nranks, ranks_per_id):
    beside = pathlib.Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    environment = {
        "PYNCCL_EMULATOR_DEVICES": str(max(8, nranks)),
        "MPIEXEC_TIMEOUT": str(LIMIT),
        **os.environ,
    }
    command = [mpirun, "-n", str(nranks), sys.executable, "-m", "mpi4py", __file__]
    command += ["--started", repr(time.time())]
    if ranks_per_id:
        command += ["--ranks-per-id", str(ranks_per_id)]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode


def main():
    parser = argparse.ArgumentParser(description="Time to the first all-reduce, in its phases.")
    parser.add_argument("ranks", type=int, nargs="*", help="launch a job of so many")
    parser.add_argument("--ranks-per-id", type=int, help="as of Communicator.from_mpi")
    parser.add_argument("--started", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.ranks:
        world, *measured = measure(args.started, args.ranks_per_id)
        report(world, *measured)
        from mpi4py import MPI

        MPI.Finalize()  # which mpi4py leaves to who has initialized it
        return 0
    from machine import machine

    print(machine())
    return max(launch(nranks, args.ranks_per_id) for nranks in args.ranks)


if __name__ == "__main__":
    sys.exit(main())
