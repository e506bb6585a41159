"""Programs that use pynccl.mpi from their start to their end, under mpirun."""

import os
import pathlib
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import time

import pytest
from helpers.launch import OPEN_MPI, REPOSITORY, launcher, mpirun

PROGRAM = """
{before}
from mpi4py import MPI
import numpy as np
from pynccl.mpi import Comm
comm = Comm(MPI.COMM_WORLD)
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
x = comm.nccl.asarray(np.full(1000, comm.rank + 1.0))
y = comm.nccl.empty(1000, "float64")
comm.Sendrecv(x, right, 0, y, left, 0)
comm.Allreduce(MPI.IN_PLACE, x)
assert x.get()[0] == comm.size * (comm.size + 1) / 2
assert y.get()[0] == left + 1
rank = comm.rank
{after}
if rank == 0:
    print("done")
"""

LEVELS = ["single", "funneled", "serialized", "multiple"]

ENDINGS = {
    "nothing is freed": "",
    "what was duplicated is not freed": "kept = comm.Dup(); kept.nccl",
    "MPI is finalized by the program": "MPI.Finalize()",
    "MPI is finalized, then arrays and communicators go": "MPI.Finalize(); del x, y",
    "a copy is freed through MPI": "copy = MPI.COMM_WORLD.Dup(); Comm(copy).nccl; copy.Free()",
    "a request is never waited for": "comm.Isend(x, right, 9); comm.Irecv(y, left, 9)",
    "a request never has a partner": "comm.Irecv(y, left, 9)",
    "a persistent request is never freed": "comm.Recv_init(y, left, 9)",
    "a persistent request never has a partner": "comm.Recv_init(y, left, 9).Start()",
}


def run(nranks, before="", after=""):
    return mpirun(nranks, "-c", PROGRAM.format(before=before, after=after), timeout=40)


@pytest.mark.parametrize("level", LEVELS)
def test_comm_works_at_every_thread_level(level):
    before = f"import mpi4py; mpi4py.rc.thread_level = {level!r}"
    request = """
import pynccl.mpi
z = comm.nccl.asarray(np.ones(1000))  # x may not be changed while it is sent
requests = [comm.Isend(x, right), comm.Irecv(y, left), comm.Iallreduce(MPI.IN_PLACE, z)]
requests[2].Wait()
pynccl.mpi.Request.Waitall(requests[:2] + [MPI.COMM_WORLD.Ibarrier()])
repeated = [comm.Recv_init(y, left), comm.Send_init(x, right), comm.Allreduce_init(x, z)]
for turn in range(3):
    pynccl.mpi.Prequest.Startall(repeated)
    pynccl.mpi.Request.Waitall(repeated)
    assert y.get()[0] == x.get()[0] and z.get()[0] == comm.size * x.get()[0]
"""
    done = run(2, before, request)
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout


@pytest.mark.parametrize("ending", ENDINGS)
def test_program_ends_however_it_does(ending):
    done = run(3, after=ENDINGS[ending])
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    told = "neither destroyed nor aborted" in done.stderr
    assert told == (ending == "what was duplicated is not freed"), done.stderr


def test_message_that_other_ranks_do_not_begin_with_raises():
    program = """
from mpi4py import MPI
import pynccl.mpi.shared
from pynccl.mpi import Comm
pynccl.mpi.shared.PATIENCE = 1.0
comm = Comm(MPI.COMM_WORLD)
if comm.rank < 2:
    from pynccl.device_array import DeviceArray
    pynccl.library.require_gpu()
    from cuda.core import Device
    Device(comm.rank).set_current()
    x = DeviceArray.allocate(4, "int32", comm.rank, 0, lambda: None)
    try:
        comm.Send(x, 1 - comm.rank)
    except RuntimeError as error:
        print("refused:", error)
MPI.COMM_WORLD.Barrier()
"""
    done = mpirun(3, "-c", program, timeout=40)
    assert done.stdout.count("comm.nccl on all ranks") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("nranks", [1, 3])
def test_heat_equation_is_the_same_with_mpi_and_with_nccl(nranks):
    done = mpirun(nranks, "examples/heat_equation.py", "--size", "20")
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"two runs differ by at most (\S+)", done.stdout)[1]) == 0
    for error in re.findall(r"exact solution by at most (\S+)", done.stdout):
        assert float(error) < 3e-3


def test_heat_equation_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "heat.png"
    done = mpirun(2, "examples/heat_equation.py", "--size", "16", "--picture", picture)
    assert done.returncode == 0, done.stderr
    from matplotlib import image

    pixels = image.imread(picture)[..., :3]
    assert pixels.shape[0] > 300
    assert len({tuple(pixel) for pixel in pixels[::7, ::7].reshape(-1, 3)}) > 30


def test_c_program_hands_its_communicator_to_python(tmp_path):
    compiler = pathlib.Path(launcher()).with_name("mpicc")
    config = pathlib.Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}-config")
    library = sysconfig.get_config_var("LDLIBRARY") or ""
    if not compiler.exists() or not config.exists() or ".so" not in library:
        pytest.skip(f"needs {compiler}, {config} and Python as a shared library")
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("needs a C compiler")
    flags = [
        subprocess.run([config, *what], check=True, capture_output=True, text=True).stdout.split()
        for what in (["--includes"], ["--ldflags", "--embed"])
    ]
    folder = pathlib.Path(sysconfig.get_config_var("LIBDIR"))
    program = tmp_path / "embed"
    source = REPOSITORY / "examples" / "embed" / "embed.c"
    command = [compiler, "-Wall", "-Wextra", *flags[0], source, "-o", program, *flags[1]]
    command += [f"-Wl,-rpath,{folder}", f"-Wl,-rpath,{pathlib.Path(sys.prefix, 'lib')}"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr

    paths = [str(REPOSITORY), *site.getsitepackages(), os.environ.get("PYTHONPATH", "")]
    environment = {
        **OPEN_MPI,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "MPIEXEC_TIMEOUT": "60",
    }
    done = subprocess.run(
        [launcher(), "-n", "3", program],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3: 6" for rank in range(3)]


DYING = """
from mpi4py import MPI
import numpy as np
import os, signal, time
from pynccl.mpi import Comm
comm = Comm(MPI.COMM_WORLD)
x = np.ones(1 << 20)
if {on_gpu}:
    x = comm.nccl.asarray(x)
comm.Allreduce(MPI.IN_PLACE, x)
print("pid", os.getpid(), flush=True)
comm.Barrier()
if comm.rank == 1:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
{call}
"""


@pytest.mark.parametrize("on_gpu", [True, False], ids=["gpu", "host"])
@pytest.mark.parametrize(
    "call", ["comm.Recv(x, 1)", "comm.Send(x, 1)", "comm.Allreduce(MPI.IN_PLACE, x)"]
)
def test_job_ends_where_a_rank_is_killed_while_others_wait_for_it(call, on_gpu):
    done = mpirun(3, "-c", DYING.format(on_gpu=on_gpu, call=call), timeout=40)
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", done.stdout)]
    assert len(pids) == 3, done.stdout + done.stderr
    assert done.returncode != 0
    assert "signal 9" in done.stderr, done.stderr  # and not the launcher's timeout
    assert not [pid for pid in pids if runs(pid)]


def runs(pid, patience=5.0):
    """Tell whether a process goes on past a while; one that only was not yet reaped does not."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return False
        if state in "ZX":
            return False
        time.sleep(0.1)
    return True
