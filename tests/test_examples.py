"""Every example runs on several ranks, and what it claims at its end is there."""

import re

import numpy as np
import pytest
from helpers.launch import REPOSITORY, mpirun

# The files without a main program are parts that several examples share.
EXAMPLES = sorted(
    path.name
    for path in (REPOSITORY / "examples").glob("*.py")
    if "__main__" in path.read_text()
)


def output_of(nranks, name, *arguments, env=None):
    done = mpirun(nranks, f"examples/{name}", *arguments, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def found(pattern, output):
    match = re.search(pattern, output)
    assert match, output
    return match[1]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_says_how_it_is_run(name):
    text = (REPOSITORY / "examples" / name).read_text()
    others = {
        "single_process.py": "python",
        "fault_tolerance.py": "mpirun --with-ft ulfm -n 4 python -m mpi4py",
    }
    launcher = others.get(name, "mpirun -n 4 python -m mpi4py")
    assert f"Run: {launcher} examples/{name}" in text


@pytest.mark.parametrize("nranks", [2, 4])
def test_first_program_adds_the_ranks_numbers(nranks):
    output = output_of(nranks, "first_program.py")
    total = nranks * np.arange(4.0, dtype=np.float32) + sum(range(nranks))
    for rank in range(nranks):
        assert found(rf"rank {rank} of {nranks}: .* -> (.*)\n", output).strip() == str(total)


@pytest.mark.parametrize("nranks", [1, 2, 3, 4])
def test_tour_of_the_collectives_finds_all_as_expected(nranks):
    output = output_of(nranks, "collectives.py")
    assert found(r"(\d+) operations on", output) == "11"
    assert f"on {nranks} ranks: all as expected" in output


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_data_parallel_training_equals_training_alone(nranks):
    output = output_of(nranks, "data_parallel.py", "--epochs", "3", "--bucket-bytes", "1")
    assert float(found(r"ranks and of one alone differ by at most (\S+)", output)) <= 1e-4
    losses = re.findall(r"epoch +\d+ +loss (\S+)", output)
    assert len(losses) == 3
    assert float(losses[2]) < float(losses[0]) / 2


def test_data_parallel_training_runs_on_more_ranks_than_a_batch_has_samples():
    devices = {"PYNCCL_EMULATOR_DEVICES": "16"}
    output = output_of(16, "data_parallel.py", "--epochs", "1", "--batch", "10", env=devices)
    assert float(found(r"16 ranks and of one alone differ by at most (\S+)", output)) <= 1e-4


def test_data_parallel_training_learns_to_read_digits():
    output = output_of(3, "data_parallel.py")
    assert float(found(r"digits not trained on: (\S+)%", output)) > 95


def test_data_parallel_training_notices_unequal_weights():
    done = mpirun(2, "examples/data_parallel.py", "--epochs", "1", "--tolerance", "-1")
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
