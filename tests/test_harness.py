"""A failure on one rank ends an mpirun of tests, and is told."""

import pathlib
import shutil

import pytest
from helpers.launch import REPOSITORY, mpirun

SM_FOLDER = "OMPI_MCA_btl_sm_backing_directory"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--with-mpi")


@pytest.fixture
def run(tmp_path):
    """Runs one test's body on each of some ranks, under the conftest of tests/mpi."""
    tests = tmp_path / "tests"
    (tests / "mpi").mkdir(parents=True)
    for name in ("conftest.py", "mpi/conftest.py", "helpers"):
        source = REPOSITORY / "tests" / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tests / name)

    def run(nranks, body, *options, timeout=60):
        source = f"import os, time\n\ndef test_it(world):\n    {body}\n"
        (tests / "mpi" / "test_it.py").write_text(source)
        command = (*PYTEST, "--rootdir", tests, *options, tests / "mpi")
        return mpirun(nranks, *command, timeout=timeout)

    return run


def test_passing_ranks_are_reported_once(run):
    done = run(3, "world.Barrier()")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 passed") == 1


@pytest.mark.parametrize("failing", [0, 2])
def test_failure_of_one_rank_ends_the_others_and_names_it(run, failing):
    done = run(3, f"assert [world.rank == {failing}] == [False]; world.Barrier()")
    assert done.returncode != 0
    assert f"[rank {failing} of 3] E       assert [True] == [False]" in done.stderr


def test_failures_of_all_ranks_are_told(run):
    done = run(2, "raise ValueError(f'rank {world.rank} raised')")
    assert done.returncode != 0
    assert "[rank 0 of 2] E       ValueError: rank 0 raised" in done.stderr
    assert "[rank 1 of 2] E       ValueError: rank 1 raised" in done.stderr


def test_file_that_one_rank_cannot_import_ends_the_job(run):
    done = run(2, "world.Barrier()\n\nassert os.environ.get('OMPI_COMM_WORLD_RANK') != '1'")
    assert done.returncode != 0
    assert "[rank 1 of 2] mpi/test_it.py could not be collected" in done.stderr


def test_ranks_that_are_aborted_leave_no_folder_behind(run, monkeypatch):
    monkeypatch.delenv(SM_FOLDER)  # as where a person runs them
    before = set(pathlib.Path("/dev/shm").glob("pynccl-tests-*"))
    done = run(2, "raise ValueError")
    assert done.returncode != 0
    assert set(pathlib.Path("/dev/shm").glob("pynccl-tests-*")) <= before


def test_rank_that_dies_ends_the_job(run):
    done = run(2, "world.rank == 1 and os._exit(7); world.Barrier()")
    assert done.returncode != 0


def test_hang_inside_mpi_ends_at_the_tests_timeout_with_its_place(run):
    done = run(2, "world.rank == 1 and world.Recv(bytearray(1))", "--timeout=2")
    assert done.returncode != 0
    assert "[rank 1 of 2] mpi/test_it.py::test_it has not ended after 2 s" in done.stderr
    assert "world.Recv(bytearray(1))" in done.stderr


def test_launcher_ends_what_nothing_else_ends():
    body = "from mpi4py import MPI; MPI.COMM_WORLD.rank == 1 and MPI.COMM_WORLD.Recv(bytearray(1))"
    done = mpirun(2, "-c", body, timeout=3)
    assert done.returncode != 0
    assert "time limit" in done.stderr
