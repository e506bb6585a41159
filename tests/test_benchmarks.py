"""The benchmarks run, and say what they did not measure. Their figures are not looked at."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parent.parent
BENCHMARKS = REPOSITORY / "benchmarks"


def run(*arguments, timeout=100):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{BENCHMARKS}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_collectives_are_timed_by_every_library_in_one_run(tmp_path):
    pytest.importorskip("matplotlib")
    options = ["--ranks", "2", "--rounds", "1", "--largest", "8192", "--markdown"]
    options += ["--json", tmp_path / "times.json", "--plot", tmp_path]
    done = run(BENCHMARKS / "collectives.py", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "times.json").read_text())
    rows = found["results"]
    assert len(rows) == 6 * 2 * 2  # operations, types, sizes
    for row in rows:
        assert {"pynccl", "unchecked", "copy"} <= set(row["seconds"])
        assert all(value > 0 for value in row["seconds"].values())
        assert f"| 2 | {row['operation']} | {row['type']} | {row['bytes']:,} |" in done.stdout
    for name in ("Open MPI", "MPICH", "gloo"):
        assert (name in found["compared"]) != (f"{name} is not compared" in done.stdout)
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == ["collectives-2-bfloat16.png", "collectives-2-float32.png"]


def test_ranks_that_do_not_come_up_are_told():
    program = "import sys, rank_jobs; rank_jobs.Job('two', 2, sys.executable, ['-c', 'pass'], {})"
    done = run("-c", program)
    assert done.returncode != 0
    assert "0 of 2 ranks came up" in done.stderr


def test_the_job_whose_rank_ends_early_is_named():
    rank = (
        "import sys, rank_jobs; from mpi4py import MPI; "
        "rank_jobs.serve(sys.argv[-1], MPI.COMM_WORLD.rank, lambda request: sys.exit())"
    )
    program = (
        f"import sys, rank_jobs; job = rank_jobs.Job('two', 2, sys.executable, ['-c', {rank!r}], "
        "{}); job.ask('anything')"
    )
    done = run("-c", program)
    assert done.returncode != 0
    assert "two: no answer to anything" in done.stderr
