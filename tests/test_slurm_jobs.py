"""The batch scripts: all are sound shell, and Slurm's and PBS's run on a real Slurm."""

import re
import shutil
import subprocess

import pytest
from helpers import cluster
from helpers.launch import REPOSITORY

from pynccl import library

SCRIPTS = sorted(path.name for path in (REPOSITORY / "jobs").glob("*.sh"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    library.load()  # builds the emulator, which is no part of a job's time
    with cluster.slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_is_sound_shell(script):
    path = REPOSITORY / "jobs" / script
    subprocess.run(["bash", "-n", path], check=True)
    assert " python -m mpi4py " in path.read_text().replace("\\\n   ", "")
    assert path.stat().st_mode & 0o100


def test_every_scheduler_has_the_three_jobs():
    for scheduler in ("slurm", "pbs", "lsf", "flux"):
        assert {f"{scheduler}_{job}.sh" for job in ("doctor", "perf", "train")} <= set(SCRIPTS)


@pytest.mark.parametrize("script", [one for one in SCRIPTS if one.startswith("slurm_")])
def test_slurm_takes_the_directives(slurm, script):
    done = subprocess.run(
        ["sbatch", "--test-only", REPOSITORY / "jobs" / script],
        env=slurm.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"8 processors on nodes n\[0-1\]", done.stderr), done.stderr


def test_doctor_finds_a_node_right(slurm):
    status, output = slurm.run("sbatch", "slurm_doctor.sh", "--nodes=1")
    assert "0 problems, 0 warnings: emulator backend, 4 processes on 1 host" in output
    assert status == 0


def test_doctor_tells_that_the_emulator_does_not_reach_the_other_node(slurm):
    status, output = slurm.run("sbatch", "slurm_doctor.sh")
    assert status == 1
    assert "PROBLEM: hosts: the emulator connects ranks of one host only" in output
    assert "n0, n1" in output
    assert "8 processes on 2 hosts" in output


def test_measurement_runs_on_a_node(slurm):
    slurm.environment["options"] = "-b 8 -e 64K -f 8"
    status, output = slurm.run("sbatch", "slurm_perf.sh", "--nodes=1")
    assert status == 0, output
    assert re.search(r"^ +32768 ", output, re.MULTILINE), output


def test_training_runs_on_a_node(slurm):
    status, output = slurm.run("sbatch", "slurm_train.sh", "--nodes=1")
    assert status == 0, output
    assert "weights of 4 ranks and of one alone differ by at most" in output


def test_training_on_two_nodes_ends_with_the_emulators_refusal(slurm):
    status, output = slurm.run("sbatch", "slurm_train.sh", "--ntasks-per-node=2")
    assert status != 0
    assert "the emulator connects ranks of one host only, and these are on n0, n1" in output


def test_pbs_script_runs_through_slurms_qsub(slurm):
    if shutil.which("qsub") is None:
        pytest.skip("needs qsub: scripts/install_slurm, as root")
    slurm.environment["ranks"] = "2"
    options = ["-V", "-l", "nodes=1:ppn=2", "-e", "/dev/null"]
    status, output = slurm.run("qsub", "pbs_doctor.sh", *options)
    assert "0 problems, 0 warnings: emulator backend, 2 processes on 1 host" in output
    assert status == 0
