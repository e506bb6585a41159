"""Ranks on two hosts: each has the GPU of its place, and the emulator refuses on all of them."""

import re
import subprocess
import sys

import pytest
from helpers import cluster
from helpers.launch import REPOSITORY, launcher

PROGRAM = """
from mpi4py import MPI
import pynccl
from pynccl import bootstrap
world = MPI.COMM_WORLD
place, size = bootstrap.local_place(world)
facts = bootstrap._prepare(world, None, None, None, None, None)
problem = ""
try:
    pynccl.Communicator.from_mpi(world)
except RuntimeError as error:
    problem = str(error)
told = world.gather((world.rank, facts["host"], place, size, facts["device"], problem))
for one in told or ():
    print("RANK", *one)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    from mpi4py import MPI

    if "Open MPI v5" not in MPI.Get_library_version():
        pytest.skip("needs Open MPI 5, whose launcher takes another program in the place of ssh")
    with cluster.hosts(tmp_path_factory.mktemp("hosts")) as state:
        yield state


@pytest.mark.parametrize(
    ("mapping", "layout"),
    [
        ("slot", ["n0 0 2 0", "n0 1 2 1", "n1 0 2 0", "n1 1 2 1"]),
        ("node", ["n0 0 2 0", "n1 0 2 0", "n0 1 2 1", "n1 1 2 1"]),
    ],
)
def test_ranks_have_the_gpus_of_their_places_and_one_refusal(hosts, mapping, layout):
    command = [launcher(), "--host", "n0:2,n1:2", "--map-by", mapping, "-n", "4"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "mpi4py", "-c", PROGRAM],
        env=cluster.environment(
            PRTE_MCA_plm_ssh_agent=str(cluster.SCRIPTS / "agent.sh"),
            PYNCCL_TEST_HOSTS=str(hosts),
            PYTHONPATH=str(REPOSITORY),
            MPIEXEC_TIMEOUT="60",
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=80,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    refusal = (
        "the emulator connects ranks of one host only, and these are on n0, n1: "
        r"start all ranks on one host, or use GPUs \(PYNCCL_BACKEND=nccl\)"
    )
    told = re.findall(rf"RANK \d (n\d \d \d \d) {refusal}", done.stdout)
    assert told == layout, done.stdout + done.stderr
