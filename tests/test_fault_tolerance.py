"""Training goes on without the ranks that are killed, and comes to the same weights."""

import random
import re
import subprocess

import pytest
from helpers.launch import launcher, mpirun

STEPS = 46  # of two epochs


def train(nranks, *arguments, env=None):
    """Run the example under an MPI that lets survivors live; its output."""
    version = subprocess.run([launcher(), "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version or int(re.search(r"(\d+)\.\d", version)[1]) < 5:
        pytest.skip("needs Open MPI 5's mpirun --with-ft ulfm")
    program = ("examples/fault_tolerance.py", "--epochs", "2", *arguments)
    done = mpirun(nranks, *program, env=env, options=("--with-ft", "ulfm"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def check(output, survivors, lost):
    assert re.findall(r"lost of \d: rank (.*)", output) == lost, output
    assert f"weights of {survivors} ranks are the same, bit for bit" in output
    assert float(re.search(r"alone differ by at most (\S+)", output)[1]) <= 1e-4
    assert float(re.search(r"not trained on: (\S+)%", output)[1]) > 85


def random_step():
    step = random.randrange(STEPS)
    print("step", step)  # shown where the test fails
    return step


@pytest.mark.parametrize("victim", [0, 3])
def test_training_goes_on_without_a_rank_that_dies_at_any_step(victim):
    step = random_step()
    output = train(4, "--kill", f"{victim}@{step}")
    check(output, survivors=3, lost=[str(victim)])
    assert f"3 ranks go on after step {step}" in output


def test_training_goes_on_without_a_rank_that_dies_within_an_operation():
    victim, step = random.randrange(3), random_step()
    fault = {"PYNCCL_EMULATOR_FAULTS": f"kill rank={victim} operation={step + 1}"}
    check(train(3, "--kill", env=fault), survivors=2, lost=[str(victim)])


def test_training_ends_with_one_rank_when_all_others_have_died():
    first, second = sorted(random.sample(range(STEPS), 2))
    output = train(3, "--kill", f"0@{first}", f"2@{second}")
    check(output, survivors=1, lost=["0", "1"])  # rank 2 is the second of the two that are left


def test_spare_ranks_take_over_with_the_weights_of_the_others():
    first, second = sorted(random.sample(range(STEPS), 2))
    output = train(5, "--spares", "2", "--kill", f"1@{first}", f"0@{second}")
    check(output, survivors=3, lost=["1", "0"])
    assert output.count("3 ranks go on") == 2
