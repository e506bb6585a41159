"""python -m pynccl trace: jobs that went wrong, told in words from the records of their ranks."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import time

import pytest
from helpers.launch import OPEN_MPI, REPOSITORY, launcher, mpirun

from pynccl.cli import main

START = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import pynccl

world = MPI.COMM_WORLD
comm = pynccl.Communicator.from_mpi(world, timeout=1)
x = comm.asarray(np.ones(1000, "float32"))
comm.allreduce(x)
comm.synchronize()
"""


def job(folder, nranks, source, **options):
    """Run a job that leaves its records in the folder; return what it printed and its status."""
    program = folder / "train.py"
    program.write_text(START + source)
    done = mpirun(nranks, program, env={"PYNCCL_TRACE": str(folder / "trace"), **options})
    return done.returncode, done.stdout + done.stderr


def line_of(source, words):
    """Return ``train.py:NUMBER`` of the line that has the words."""
    lines = (START + source).splitlines()
    return f"train.py:{next(n for n, line in enumerate(lines, 1) if words in line)}"


def told(folder, capsys):
    """Run the command; return its status and what it printed, without the folder's name."""
    capsys.readouterr()
    status = main(["trace", str(folder / "trace")])
    return status, capsys.readouterr().out.replace(f"{folder}/", "")


HANG = """
if comm.rank != 2:
    comm.broadcast(x, root=1)
comm.synchronize()
world.Barrier()
"""


@pytest.fixture(scope="module")
def hang(tmp_path_factory):
    """A job of 4 ranks of which one skips the last operation and waits in MPI."""
    folder = tmp_path_factory.mktemp("hang")
    return folder, *job(folder, 4, HANG)


def test_job_in_which_a_rank_skips_an_operation_ends_with_the_report(hang):
    _, status, printed = hang
    assert status != 0
    assert "NCCLTimeout: synchronize: timeout: the stream's work was not done after 1 s" in printed
    assert re.search(r"last operations of rank [013] of 4, communicator \w+ \(2 in all\):", printed)
    site = line_of(HANG, "broadcast(x")
    assert f"{site}  not completed" in printed
    assert re.search(rf"  #2 ncclBroadcast\(1000 float32, root 1\)  \S*{site}", printed)


def test_every_rank_leaves_a_private_file(hang):
    folder, *_ = hang
    paths = sorted((folder / "trace").glob("rank*.json"))
    assert [path.name[:9] for path in paths] == [f"rank0000{rank}" for rank in range(4)]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
    assert not list((folder / "trace").glob(".*"))  # nothing half written


def test_rank_that_did_not_come_is_named(hang, capsys):
    folder, *_ = hang
    status, printed = told(folder, capsys)
    assert status == 1
    assert "(4 ranks): rank 2 has not come to operation 2:" in printed
    site, before = line_of(HANG, "broadcast(x"), line_of("", "comm.allreduce(x)")
    call = "ncclBroadcast(1000 float32, root 1)"
    assert f"ranks 0-1, 3: {call} at {site}, not completed" in printed
    last = f"operation 1, ncclAllReduce(1000 float32, sum) at {before}, completed"
    assert f"rank 2 stopped after {last}" in printed
    assert "\nrank 0, rank 1, rank 3: timeout after 1 s\n" in printed
    assert "\nrank 2: SIGTERM\n" in printed


def test_findings_as_json(hang, capsys):
    folder, *_ = hang
    assert main(["trace", str(folder / "trace"), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["consistent"] is False
    (finding,) = content["findings"]
    assert finding["kind"] == "behind" and finding["ranks"] == [2] and finding["operation"] == 2
    assert len(content["processes"]) == 4


def test_events_have_the_structure_that_perfetto_reads(hang, capsys):
    folder, *_ = hang
    told(folder, capsys)
    content = json.loads((folder / "trace" / "trace.json").read_text())
    events = content["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "i"}
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 1
        if event["ph"] == "i":
            assert event["ts"] >= 0 and event["s"] == "p"
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.split(" (")[0] for name in names] == [f"rank {rank}" for rank in range(4)]
    hanging = [e for e in events if e["name"] == "ncclBroadcast"]
    assert len(hanging) == 3 and all(event["dur"] >= 0.9e6 for event in hanging)  # microseconds
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in hanging} <= threads


def test_timeline_is_drawn(hang, capsys):
    pytest.importorskip("matplotlib")
    folder, *_ = hang
    told(folder, capsys)
    assert (folder / "trace" / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_clocks_of_the_ranks_are_aligned(hang):
    folder, *_ = hang
    files = [json.loads(path.read_text()) for path in (folder / "trace").glob("rank*.json")]
    first = [
        one["communicators"][0]["operations"][0]["time"]
        + one["clock"]["epoch"]
        - one["clock"]["monotonic"]
        for one in files
    ]
    assert max(first) - min(first) < 1  # seconds; the ranks leave a barrier together


DIFFERS = """
if comm.rank == 1:
    comm.reduce(x, op=pynccl.MAX, root=0)
else:
    comm.allreduce(x, op=pynccl.MAX)
comm.synchronize()
world.Barrier()
"""


def test_first_operation_that_differs_is_named(tmp_path, capsys):
    status, _ = job(tmp_path, 3, DIFFERS)
    assert status != 0
    status, printed = told(tmp_path, capsys)
    assert status == 1
    assert "(3 ranks): operation 2 differs between the ranks:" in printed
    call = "ncclAllReduce(1000 float32, max)"
    assert f"ranks 0, 2: {call} at {line_of(DIFFERS, 'comm.allreduce(x, op')}" in printed
    call = "ncclReduce(1000 float32, max, root 0)"
    assert f"rank 1: {call} at {line_of(DIFFERS, 'comm.reduce')}" in printed


KILLED = """
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
comm.allreduce(x)
comm.synchronize()
"""


def test_rank_that_was_killed_leaves_no_record(tmp_path, capsys):
    status, _ = job(tmp_path, 2, KILLED)
    assert status != 0
    status, printed = told(tmp_path, capsys)
    assert status == 1
    assert "rank 1 leaves no record of this communicator" in printed


MESSAGE = """
if comm.rank == 0:
    comm.send(x, 1)
comm.synchronize()
world.Barrier()
"""


def test_send_without_a_receive_is_named(tmp_path, capsys):
    status, _ = job(tmp_path, 2, MESSAGE)
    assert status != 0
    status, printed = told(tmp_path, capsys)
    assert status == 1
    call = f"rank 0: ncclSend(1000 float32, to 1) at {line_of(MESSAGE, 'comm.send')}"
    assert f"{call} has no receive on rank 1" in printed


SPLIT = """
half = comm.split(comm.rank % 2)
half.allreduce(x)
half.synchronize()
half.destroy()
if comm.rank == 0:
    comm.allreduce(x)
comm.destroy()
"""


def test_end_of_a_communicator_is_one_of_its_operations(tmp_path, capsys):
    status, _ = job(tmp_path, 2, SPLIT)
    assert status != 0
    status, printed = told(tmp_path, capsys)
    assert status == 1 and "2 files, 3 communicators" in printed
    assert "(2 ranks): operation 3 differs between the ranks:" in printed
    assert f"rank 1: ncclCommFinalize() at {line_of(SPLIT, 'comm.destroy()')}" in printed


AGREES = """
for step in range(5):
    comm.allreduce(x)
right, left = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
comm.sendrecv(x, right, comm.empty(1000), left)
part = comm.split(0)
part.allreduce(x)
part.synchronize()
comm.synchronize()
part.destroy()
comm.destroy()
"""


@pytest.mark.parametrize(("nranks", "size"), [(1, "1024"), (3, "2")])
def test_job_without_a_mistake_agrees(tmp_path, capsys, nranks, size):
    status, printed = job(tmp_path, nranks, AGREES, PYNCCL_TRACE_SIZE=size)
    assert status == 0, printed
    status, printed = told(tmp_path, capsys)
    assert status == 0, printed
    assert "the ranks agree" in printed


SLEEPS = """
comm.allreduce(x) if comm.rank else None
print("waits", flush=True)
if comm.rank:
    comm.synchronize(timeout=60)
world.Barrier()
"""


def running(folder, nranks, source, number):
    """Start a job, send the launcher a signal once every rank waits; return its status."""
    program = folder / "train.py"
    program.write_text(START + source)
    command = [launcher(), "-n", str(nranks), sys.executable, "-m", "mpi4py", str(program)]
    environment = {**OPEN_MPI, **os.environ, "PYNCCL_TRACE": str(folder / "trace")}
    with subprocess.Popen(
        command,
        env=environment,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            for _ in range(nranks):
                assert process.stdout.readline() == "waits\n"
            time.sleep(0.2)
            process.send_signal(number)
            process.stdout.read()
            return process.wait(timeout=30)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_job_that_is_ended_from_outside_leaves_its_records(tmp_path, capsys, number):
    assert running(tmp_path, 2, SLEEPS, number) != 0
    status, printed = told(tmp_path, capsys)
    assert status == 1
    assert "rank 0 has not come to operation 2" in printed
    for path in (tmp_path / "trace").glob("rank*.json"):
        process = pathlib.Path("/proc", str(json.loads(path.read_text())["pid"]))
        end = time.monotonic() + 10
        while process.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert not process.exists()


PROGRAM = """
import sys
import numpy as np
import pynccl
comms = pynccl.Communicator.init_all(2)
arrays = [comm.asarray(np.ones(8, "float32")) for comm in comms]
{}
for comm in comms:
    comm.synchronize()
print(pynccl.recorder.dump(sys.argv[1]))
for comm in comms:
    comm.abort()
"""


def one_process(folder, source):
    """Let the two ranks of one process do something; return the file with both records."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(source), str(folder / "trace")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return pathlib.Path(done.stdout.strip())


TWICE = """
with pynccl.group():
    comms[0].allreduce(arrays[0])
    comms[1].allreduce(arrays[1])
with pynccl.group():
    comms[0].allreduce(arrays[0])
    comms[1].allreduce(arrays[1])
"""


def change(path, edit):
    """Let a function change the communicators in a record, the first rank's first."""
    content = json.loads(path.read_text())
    edit(sorted(content["communicators"], key=lambda one: one["rank"]))
    content["reasons"] = [{"reason": "timeout after 1 s", "time": content["clock"]["epoch"]}]
    path.write_text(json.dumps(content))


def test_ranks_of_one_process_agree(tmp_path, capsys):
    one_process(tmp_path, TWICE)
    status, printed = told(tmp_path, capsys)
    assert status == 0 and "1 file, 1 communicator" in printed


def test_operation_that_all_came_to_and_none_has_done_is_named(tmp_path, capsys):
    def undo(ranks):
        for rank in ranks:
            rank["operations"][1].update(state="not completed", known=None)

    change(one_process(tmp_path, TWICE), undo)
    status, printed = told(tmp_path, capsys)
    assert status == 1 and "all ranks are in operation 2, and it was not done:" in printed


def test_lines_tell_which_of_many_equal_operations_was_left_out(tmp_path, capsys):
    def leave_out_the_first(ranks):
        ranks[1]["collectives"] = ranks[1]["issued"] = 1
        kept = ranks[1]["operations"].pop(0)
        ranks[1]["operations"][0].update(number=1, ordinal=1)
        assert kept["site"] != ranks[1]["operations"][0]["site"]

    change(one_process(tmp_path, TWICE), leave_out_the_first)
    status, printed = told(tmp_path, capsys)
    assert status == 1 and "rank 1 has not come to operation 2:" in printed
    assert "the ranks call from different lines since operation 1: rank 0:" in printed


def test_message_of_another_size_is_named(tmp_path, capsys):
    source = """
with pynccl.group():
    comms[0].send(arrays[0], 1)
    comms[1].recv(arrays[1], 0)
"""

    def halve(ranks):
        ranks[1]["operations"][0].update(elements=4, nbytes=16)

    change(one_process(tmp_path, source), halve)
    status, printed = told(tmp_path, capsys)
    assert status == 1
    assert "rank 0: ncclSend(8 float32, to 1) at <string>:9 meets rank 1: ncclRecv(4" in printed
    assert "the sizes differ" in printed


def test_folder_without_records_is_an_error_of_usage(tmp_path, capsys):
    assert main(["trace", str(tmp_path)]) == 2
    assert f"run the job with PYNCCL_TRACE={tmp_path}" in capsys.readouterr().err
    assert main(["trace", str(tmp_path / "nothing")]) == 2
    (tmp_path / "rank0.json").write_text("{}")
    assert main(["trace", str(tmp_path)]) == 2
    assert "rank0.json is no flight record that can be read" in capsys.readouterr().err
