"""However a rank ends: no hang, no crash, nothing left behind.

Each ending is tried once here; PYNCCL_TEARDOWN_REPEATS=50 in the environment tries each so often,
and -s shows how long they took.
"""

import os
import pathlib
import re
import time
import uuid

import pytest
from helpers.launch import REPOSITORY, mpirun

PROGRAM = "tests/programs/teardown_endings.py"
REPEATS = int(os.environ.get("PYNCCL_TEARDOWN_REPEATS", "1"))
SECONDS = 30  # after which an ending is a hang

# Each ending, and whether the job ends well: with status 0.
ENDINGS = {
    "live_communicators": True,
    "mpi_finalized_first": True,
    "child_that_exits": True,
    "child_that_runs_exit_functions": True,
    "child_that_communicates": True,
    "exception_in_a_group": True,
    "collected_with_work_in_flight": True,
    "destroyed_twice": True,
    "destroyed_on_one_rank": True,
    "sys_exit_on_one_rank": True,
    "sys_exit_with_a_status": False,
    "os_exit_on_one_rank": False,
    "exception_on_one_rank": False,
    "sigterm_to_one_rank": False,
    "sigterm_handled_by_exit": False,
}
CRASHES = re.compile(r"Segmentation|Aborted|signal (?:4|6|7|8|11)\b|terminate called|core dumped")


def left_behind(run):
    """Shared memory and temporary files of the package, and processes of a run of this test."""
    files = [*pathlib.Path("/dev/shm").iterdir(), *pathlib.Path("/tmp").glob("*nccl*")]
    found = {str(path) for path in files if "nccl" in path.name}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"PYNCCL_TEARDOWN_RUN={run}".encode() in (folder / "environ").read_bytes():
                found.add(folder.name)
        except OSError:
            continue  # it has ended meanwhile
    return found


@pytest.mark.timeout(120 + REPEATS * SECONDS, method="thread")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_rank_may_end_in_any_way(ending):
    run, longest = str(uuid.uuid4()), 0.0
    before = left_behind(run)
    for _ in range(REPEATS):
        start = time.monotonic()
        done = mpirun(3, PROGRAM, ending, timeout=SECONDS, env={"PYNCCL_TEARDOWN_RUN": run})
        longest = max(longest, time.monotonic() - start)
        told = done.stdout + done.stderr
        assert "time limit" not in told, told
        assert (done.returncode == 0) == ENDINGS[ending], told
        assert not CRASHES.search(told), told
        if ending == "child_that_communicates":
            assert done.stdout.count("was forked from one that had communicators") == 3, told
    print(f"{ending}: {REPEATS} times, at most {longest:.1f} s")
    end = time.monotonic() + 5
    while left_behind(run) - before and time.monotonic() < end:
        time.sleep(0.1)  # mpirun does not wait for the ranks that it has ended
    assert not left_behind(run) - before


def test_every_ending_is_tried():
    text = (REPOSITORY / PROGRAM).read_text()
    assert set(re.findall(r"^def (\w+)\(comm, x\)", text, re.MULTILINE)) == set(ENDINGS)
