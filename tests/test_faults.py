"""Failures that are rehearsed: each kind happens where it is asked for, and programs survive it."""

import re

import pytest
from helpers.launch import mpirun
from helpers.processes import python

from pynccl import library
from pynccl.emulator import faults

VARIABLE = "PYNCCL_EMULATOR_FAULTS"

START = """
import time
import numpy
import pynccl
from mpi4py import MPI
from pynccl.emulator import faults

world = MPI.COMM_WORLD
comm = pynccl.Communicator.from_mpi(world)
x = comm.asarray(numpy.full(1000, comm.rank + 1.0))
total = comm.nranks * (comm.nranks + 1) / 2
"""

ALONE = """
import numpy
import pynccl
from pynccl.emulator import faults
comm = pynccl.Communicator.init(1, 0, pynccl.get_unique_id(), device=0)
"""

# Started so that the survivors of a death go on: mpirun would end them.
SURVIVORS = """
import subprocess, sys
import pynccl
unique_id, nranks = bytes(pynccl.get_unique_id()).hex(), int(sys.argv[1])
ranks = [
    subprocess.Popen([sys.executable, "-c", sys.argv[2], str(rank), str(nranks), unique_id])
    for rank in range(nranks)
]
print("statuses", *(rank.wait(timeout=50) for rank in ranks))
"""

RANK = """
import sys
import numpy
import pynccl
from pynccl.emulator import faults
rank, nranks = int(sys.argv[1]), int(sys.argv[2])
unique_id = pynccl.UniqueId.from_bytes(bytes.fromhex(sys.argv[3]))
comm = pynccl.Communicator.init(nranks, rank, unique_id, device=rank)
x = comm.asarray(numpy.ones(1000))
"""


def rehearse(nranks, program, wanted=""):
    done = mpirun(nranks, "-c", START + program, env={VARIABLE: wanted})
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(("nranks", "victim"), [(2, 0), (3, 1), (4, 3)])
def test_a_killed_rank_is_a_remote_error_that_names_it(nranks, victim):
    program = RANK + """
for step in range(1, 8):
    comm.allreduce(x)
try:
    comm.synchronize(timeout=30)
except pynccl.NCCLRemoteError as error:
    sys.stdout.write(f"survived {error}\\n")
comm.abort()
"""
    done = python(SURVIVORS, nranks, program, **{VARIABLE: f"kill rank={victim} operation=5"})
    statuses = re.search(r"statuses (.*)", done.stdout)[1].split()
    assert [status for status in statuses if status == "-9"] == ["-9"]
    assert statuses[victim] == "-9"
    told = re.findall("survived (.*)", done.stdout)
    assert len(told) == nranks - 1
    for text in told:
        assert f"rank {victim} (process" in text, text
        assert "operation 5" in text, text
    assert done.stderr.count("rehearsed fault on rank") == 1
    assert f"kill rank={victim} operation=5" in done.stderr


def test_a_rank_keeps_its_number_when_others_are_shrunk_away():
    program = RANK + """
killed = int(sys.argv[1]) == 1
try:
    for step in range(3):
        comm.allreduce(x)
    comm.synchronize(timeout=30)
except pynccl.NCCLRemoteError:
    comm.revoke()
    smaller = comm.shrink([1])
    ones = smaller.asarray(numpy.ones(4))
    for step in range(10):  # rank 2 has become rank 1, and lives
        smaller.allreduce(ones)
    smaller.synchronize(timeout=30)
    sys.stdout.write(f"rank {smaller.rank} of {smaller.nranks}: {ones.get()[0]:g}\\n")
    smaller.destroy()
    comm.abort()
"""
    told = python(SURVIVORS, 3, program, **{VARIABLE: "kill rank=1 operation=2"}).stdout
    assert "rank 0 of 2: 1024" in told
    assert "rank 1 of 2: 1024" in told


@pytest.mark.parametrize("nranks", [2, 4])
def test_a_delay_makes_an_operation_late_and_changes_no_result(nranks):
    program = """
start = time.monotonic()
for step in range(4):
    comm.allreduce(x, op=pynccl.AVG)
called = time.monotonic() - start
comm.synchronize()
took = time.monotonic() - start
assert took > 0.4 > called, (called, took)
assert (x.get() == total / comm.nranks).all()
comm.destroy()
"""
    done = rehearse(nranks, program, "delay rank=1 operation=3 milliseconds=500")
    assert done.stderr.count("rehearsed fault on rank 1") == 1


def test_delays_on_several_ranks_and_streams_change_no_result():
    program = """
streams = [comm.device.create_stream() for _ in range(2)]
parts = [comm.asarray(numpy.full(100, comm.rank + 1.0)) for _ in range(2)]
for step in range(6):
    with pynccl.group():
        comm.send(parts[0], (comm.rank + 1) % 3)
        comm.recv(parts[1], (comm.rank - 1) % 3)
    comm.allreduce(x, op=pynccl.MAX)
comm.synchronize()
assert (parts[1].get() == (comm.rank - 1) % 3 + 1).all()
assert (x.get() == comm.nranks).all()
comm.destroy()
"""
    wanted = "; ".join(f"delay rank={n % 3} operation={n} milliseconds=20" for n in range(1, 18))
    done = rehearse(3, program, wanted)
    assert done.stderr.count("rehearsed fault") == 17


def test_a_delay_is_no_obstacle_to_an_abort():
    program = ALONE + """
import time
x = comm.asarray(numpy.ones(10))
with faults.delay(milliseconds=60_000) as late:
    comm.allreduce(x)
    try:
        comm.synchronize(timeout=0.3)
    except pynccl.NCCLTimeout:
        start = time.monotonic()
        comm.abort()
        print(late.fired, time.monotonic() - start < 5)
"""
    assert python(program).stdout == "1 True\n"


@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_a_unique_id_that_cannot_be_made_fails_all_ranks_alike(nranks):
    program = START.partition("comm =")[0] + """
try:
    pynccl.Communicator.from_mpi(world)
except RuntimeError as error:
    texts = world.allgather(f"{type(error).__name__}: {error}")
    assert len(set(texts)) == 1, texts
    if world.rank == 0:
        print(texts[0])
comm = pynccl.Communicator.from_mpi(world)  # at the second try all is well
x = comm.asarray(numpy.ones(5))
assert (comm.allreduce(x).get() == comm.nranks).all()
comm.destroy()
"""
    done = mpirun(nranks, "-c", program, env={VARIABLE: "fail rank=0 function=ncclGetUniqueId"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 could not make a unique id: NCCLSystemError" in done.stdout
    assert "rehearsed fault: this call was told to fail" in done.stdout


JOIN = START.partition("comm =")[0] + """
config = pynccl.Config(blocking=False)
try:
    comm = pynccl.Communicator.from_mpi(world, config=config)
except pynccl.NCCLInternalError:
    print("cannot join")
else:
    start = time.monotonic()
    try:
        comm.wait_ready(timeout=timeouts[world.rank])
    except (pynccl.NCCLTimeout, pynccl.NCCLRemoteError) as error:
        comm.abort()
        soon = time.monotonic() - start < 20
        print(f"rank {world.rank} soon {soon} {type(error).__name__} {error}".splitlines()[0])
"""


def rank_1_cannot_join(nranks, timeouts):
    """What each rank says, sorted, where the others wait for it so many seconds."""
    wanted = "fail rank=1 function=ncclCommInitRankConfig result=ncclInternalError"
    program = f"timeouts = {timeouts}\n{JOIN}"
    done = mpirun(nranks, "-c", program, env={VARIABLE: wanted})
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def test_a_rank_that_waits_in_vain_for_one_that_cannot_join_can_give_up():
    first, second = rank_1_cannot_join(2, [1, None])
    assert first == "cannot join"
    assert second.startswith("rank 0 soon True NCCLTimeout wait_ready: timeout: still in progress")


def test_a_rank_that_waits_for_others_to_join_is_told_that_one_gave_up():
    told = rank_1_cannot_join(3, [1, None, 50])
    assert told[0] == "cannot join"
    assert told[1].startswith("rank 0 soon True NCCLTimeout")
    assert re.search(
        r"^rank 2 soon True NCCLRemoteError .*: rank 0 \(process \d+\) has aborted the "
        r"communicator before its first operation, and rank 2 waits for it in the creation of the "
        r"communicator",
        told[2],
    ), told


def test_ranks_that_give_up_together_end_by_the_time_or_by_each_other():
    told = rank_1_cannot_join(4, [0.5, None, 0.5, 0.5])
    assert len(told) == 4
    for line in told[1:]:
        assert " soon True NCCLTimeout " in line or " soon True NCCLRemoteError " in line, line


def test_who_gives_up_is_not_said_to_wait_for_itself():
    # The wait that is given up may notice it, at moments that differ from one look to the next.
    program = """
import time
import pynccl
config = pynccl.Config(blocking=False)
for turn in range(20):
    unique_id = pynccl.get_unique_id()
    first, second = (
        pynccl.Communicator.init(3, rank, unique_id, config, device=rank) for rank in (0, 1)
    )
    time.sleep(0.09 + 0.004 * turn)
    first.abort()
    try:
        second.wait_ready(timeout=20)
    except pynccl.NCCLRemoteError as error:
        print(str(error).splitlines()[0])
    second.abort()
"""
    told = python(program).stdout.splitlines()
    assert len(told) == 20
    for line in told:
        assert re.search(r": rank 0 .* has aborted .*, and rank 1 waits for it in", line), line


@pytest.mark.parametrize(
    ("result", "exception"),
    [
        ("ncclUnhandledCudaError", "NCCLCudaError"),
        ("ncclSystemError", "NCCLSystemError"),
        ("ncclInvalidUsage", "NCCLInvalidUsage"),
        ("ncclTimeout", "NCCLTimeout"),
    ],
)
def test_the_call_that_was_named_fails_and_no_other(result, exception):
    program = ALONE + f"""
x = comm.asarray(numpy.ones(10))
with faults.fail(function="ncclAllReduce", call=3, result="{result}") as failing:
    for call in (1, 2, 3, 4):
        try:
            comm.allreduce(x)
            comm.broadcast(x)
        except pynccl.{exception} as error:
            print(call, error)
print(failing.fired)
assert (x.get() == 1).all()
comm.destroy()
"""
    told = python(program).stdout.splitlines()
    assert told[0].startswith("3 ncclAllReduce: "), told
    assert told[-1] == "1"  # the account of the error may have more lines


def test_every_function_that_can_fail_fails():
    names = [name for name in faults.FUNCTIONS if name not in faults.CANNOT_FAIL]
    program = f"""
import ctypes
from pynccl import bindings, library
from pynccl.emulator import faults
from pynccl.functions import FUNCTIONS
library.load()
for name in {names}:
    with faults.fail(function=name, result="ncclInternalError") as failing:
        arguments = FUNCTIONS[name].arguments.values()
        empty = [kind() if issubclass(kind, (ctypes.Structure, ctypes._SimpleCData)) else None
                 for kind in arguments]
        code = getattr(bindings, name)(*empty)
        assert (code, failing.fired) == (3, 1), (name, code, failing.fired)
print("all")
"""
    assert python(program).stdout == "all\n"


def test_a_failure_inside_a_group_fails_the_group():
    program = ALONE + """
x = comm.asarray(numpy.ones(10))
with faults.fail(function="ncclBroadcast"):
    try:
        with pynccl.group():
            comm.allreduce(x)
            comm.broadcast(x)
    except pynccl.NCCLSystemError as error:
        print(error.function)
with faults.fail(function="ncclGroupEnd"):
    try:
        with pynccl.group():
            comm.allreduce(x)
    except pynccl.NCCLSystemError as error:
        print(error.function)
comm.allreduce(x)
comm.synchronize()
comm.destroy()
"""
    assert python(program).stdout.split() == ["ncclBroadcast", "ncclGroupEnd"]


@pytest.mark.parametrize("nranks", [2, 3])
def test_an_asynchronous_error_reaches_all_ranks(nranks):
    program = """
comm.allreduce(x)
comm.synchronize()
comm.allreduce(x)
try:
    comm.synchronize(timeout=20)
except pynccl.NCCLInternalError as error:
    assert "rehearsed fault in an operation of rank 1" in str(error), error
    assert comm.get_async_error() == pynccl.Result.INTERNAL_ERROR
    comm.revoke()
    time.sleep(0.4 * comm.rank)  # who waits must not take the others for lost
    again = comm.split(0)
    ones = again.asarray(numpy.ones(3))
    assert (again.allreduce(ones).get() == comm.nranks).all()
    again.destroy()
    comm.abort()
    print("told")
"""
    done = rehearse(nranks, program, "error rank=1 operation=2 result=ncclInternalError")
    assert done.stdout.count("told") == nranks


@pytest.mark.parametrize("nranks", [2, 4])
def test_a_full_gpu_raises_on_its_rank_and_leaves_all_usable(nranks):
    program = """
try:
    kept = comm.empty(1 << 20, "float64")
except pynccl.NCCLCudaError as error:
    print(f"rank {comm.rank} has no memory")
comm.allreduce(x)
assert (x.get() == total).all()
small = comm.asarray(numpy.ones(100))
assert (comm.allreduce(small).get() == comm.nranks).all()
comm.destroy()
"""
    done = rehearse(nranks, program, "out_of_memory device=1 free=4M")
    assert done.stdout == "rank 1 has no memory\n"
    assert done.stderr.count("rehearsed fault on GPU 1") == 1


def test_memory_runs_out_from_the_allocation_that_was_named():
    program = ALONE + """
from cuda.bindings import driver
kept = [comm.empty(10)]
with faults.out_of_memory(allocation=3):
    kept += [comm.empty(10), comm.empty(10)]
    for _ in range(2):
        try:
            kept.append(comm.empty(10))
        except pynccl.NCCLCudaError:
            print("full")
kept.append(comm.empty(10))
with faults.out_of_memory(device=0, free="1M"):
    _, free, total = driver.cuMemGetInfo()
    print(free < 1 << 20 < total)
    try:
        pynccl.mem_alloc(1 << 21)
    except pynccl.NCCLCudaError:
        print("full")
comm.destroy()
"""
    assert python(program).stdout.split() == ["full", "full", "True", "full"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kil rank=1", "'kil' is none of kill, delay"),
        ("kill rank=one", "rank=one is no number from 0"),
        ("kill operation=0", "operation=0 is no number from 1"),
        ("kill rnk=1", "kill has no 'rnk', only rank, operation"),
        ("kill rank", "'rank' is not one field=value"),
        ("kill rank=1 rank=2", "'rank=2' is not one field=value"),
        ("delay rank=1", "delay needs milliseconds="),
        ("fail function=ncclAllReduc", "ncclAllReduc is no function"),
        ("fail function=ncclGetVersion", "ncclGetVersion is no function"),
        ("fail function=ncclSend result=ncclSuccess", "result=ncclSuccess is none of"),
        ("out_of_memory device=1", "either allocation= or free="),
        ("out_of_memory free=1T", "free=1T is no number"),
    ],
)
def test_a_mistake_in_the_text_shows_the_grammar(text, problem):
    with pytest.raises(ValueError, match=re.escape(problem)) as raised:
        faults.parse(f"delay milliseconds=1; {text}")
    assert f"{VARIABLE}: {text!r}" in str(raised.value)
    assert faults.GRAMMAR.splitlines()[0] in str(raised.value)


def test_a_mistake_in_the_environment_is_an_error_at_load():
    program = "import pynccl; pynccl.get_unique_id()"
    done = python(program, check=False, **{VARIABLE: "kill rank=2 operations=10"})
    assert done.returncode != 0
    assert "ValueError: PYNCCL_EMULATOR_FAULTS: 'kill rank=2 operations=10'" in done.stderr


def test_the_text_is_read_as_the_functions_take_it():
    text = """
        kill rank=2 operation=10; delay rank=1 milliseconds=200;
        fail function=ncclSend result=ncclTimeout call=2
        out_of_memory device=1 free=1M;
    """
    found = faults.parse(text)
    assert [kind for kind, _ in found] == ["kill", "delay", "fail", "out_of_memory"]
    assert found[1][1] == {"rank": 1, "operation": 1, "milliseconds": 200}
    assert found[3][1] == {"device": 1, "allocation": None, "free": 1 << 20}
    assert faults.parse("") == faults.parse(" ; \n") == []


def test_the_real_library_is_told_from_the_emulator(monkeypatch):
    library.load()
    real = library.Library(library.load().cdll, "/usr/lib/libnccl.so.2", 22800, "nccl", "")
    monkeypatch.setattr(library, "_loaded", real)
    with pytest.raises(RuntimeError, match="on the emulator only, .*loaded /usr"):
        faults.kill(rank=0)


def test_faults_end_when_they_are_cleared():
    program = ALONE + """
for _ in range(2):
    faults.fail(function="ncclAllReduce")
    faults.clear()
    comm.allreduce(comm.asarray(numpy.ones(10)))
comm.destroy()
print("none")
"""
    done = python(program, **{VARIABLE: "kill operation=2"})
    assert done.stdout == "none\n"
    assert done.stderr == ""
