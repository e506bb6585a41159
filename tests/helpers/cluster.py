"""Two hosts on this machine, and Slurm on them; all is gone again afterwards."""

import contextlib
import os
import shutil
import subprocess
import sys
import time

import pytest

from helpers.launch import OPEN_MPI, REPOSITORY

SCRIPTS = REPOSITORY / "tests" / "cluster"


def _command(*words, check=True, **more):
    return subprocess.run(
        list(map(str, words)),
        check=check,
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        **more,
    )


@contextlib.contextmanager
def hosts(folder):
    """Bring up the hosts n0 and n1, and yield the folder that ``agent.sh`` needs."""
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (iproute2, util-linux)")
    if os.geteuid() != 0 or _command("unshare", "--net", "--uts", "true", check=False).returncode:
        pytest.skip("needs root, and the right to make network namespaces")
    try:
        up = _command(SCRIPTS / "hosts.sh", "up", folder, check=False)
        assert up.returncode == 0, up.stderr
        yield folder
    finally:
        _command(SCRIPTS / "hosts.sh", "down", folder, check=False)


def environment(**more):
    """Return what Open MPI needs to start on the hosts, each taking as many ranks as it is told."""
    kept = {k: v for k, v in os.environ.items() if "mapping_policy" not in k}
    started = {k: v for k, v in OPEN_MPI.items() if "mapping_policy" not in k}
    return {**started, **kept, "PRTE_MCA_hwloc_default_binding_policy": "none", **more}


class Slurm:
    """Slurm's commands, with two nodes of four pretend GPUs."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = environment(
            SLURM_CONF=str(folder / "slurm.conf"), environment=sys.prefix
        )

    def run(self, submit, script, *options, seconds=60):
        """Submit a script of jobs/, wait for the job's end; return its exit status and output."""
        output = self.folder / f"{submit}-{script}-{time.monotonic_ns()}.out"
        command = [submit, *options, "-o", output, REPOSITORY / "jobs" / script]
        done = _command(*command, env=self.environment, cwd=REPOSITORY, check=False)
        assert done.returncode == 0, done.stderr
        number = done.stdout.split()[-1].partition(".")[0]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            told = _command("scontrol", "-o", "show", "job", number, env=self.environment).stdout
            fields = dict(field.split("=", 1) for field in told.split() if "=" in field)
            if fields["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
                return int(fields["ExitCode"].split(":")[0]), output.read_text(errors="replace")
            time.sleep(0.2)
        _command("scancel", number, env=self.environment)
        raise AssertionError(f"{script} has not ended within {seconds} s: {output.read_text()}")


@contextlib.contextmanager
def slurm(folder):
    """Bring up Slurm on two hosts."""
    for program in ("slurmctld", "slurmd", "sbatch", "scontrol"):
        if shutil.which(program) is None:
            pytest.skip(f"needs Slurm's {program}: by apt, as root: scripts/install_slurm")
    with hosts(folder / "hosts") as state:
        try:
            up = _command(SCRIPTS / "slurm.sh", "up", folder, state, check=False)
            assert up.returncode == 0, up.stdout + up.stderr
            yield Slurm(folder)
        finally:
            _command(SCRIPTS / "slurm.sh", "down", folder, check=False)
