"""A failure on one rank ends an mpirun of tests, and is told."""

import shutil

import pytest
from helpers.launch import REPOSITORY, mpirun

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

    def run(nranks, body, timeout=60):
        source = f"import os, time\n\ndef test_it(world):\n    {body}\n"
        (tests / "mpi" / "test_it.py").write_text(source)
        return mpirun(nranks, *PYTEST, "--rootdir", tests, tests / "mpi", timeout=timeout)

    return run


def test_passing_ranks_are_reported_once(run):
    done = run(3, "world.Barrier()")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 passed") == 1


@pytest.mark.parametrize("failing", [0, 2])
def test_failure_of_one_rank_ends_the_others_and_names_it(run, failing):
    done = run(3, f"assert world.rank != {failing}, 'on purpose'; world.Barrier()")
    assert done.returncode != 0
    assert f"[rank {failing} of 3] E       AssertionError: on purpose" in done.stderr


def test_failures_of_all_ranks_are_told(run):
    done = run(2, "raise ValueError(f'rank {world.rank} raised')")
    assert done.returncode != 0
    assert "[rank 0 of 2] E       ValueError: rank 0 raised" in done.stderr
    assert "[rank 1 of 2] E       ValueError: rank 1 raised" in done.stderr


def test_file_that_one_rank_cannot_import_ends_the_job(run):
    done = run(2, "world.Barrier()\n\nassert os.environ.get('OMPI_COMM_WORLD_RANK') != '1'")
    assert done.returncode != 0
    assert "[rank 1 of 2] mpi/test_it.py could not be collected" in done.stderr


def test_rank_that_dies_ends_the_job(run):
    done = run(2, "world.rank == 1 and os._exit(7); world.Barrier()")
    assert done.returncode != 0


def test_hang_ends_at_its_timeout(run):
    done = run(2, "world.rank == 1 and time.sleep(1000); world.Barrier()", timeout=5)
    assert done.returncode != 0
