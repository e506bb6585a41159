"""The directives of PBS, LSF and Flux in jobs/ are such as the schedulers' manuals allow."""

import pytest
from helpers import directives
from helpers.launch import REPOSITORY

SCRIPTS = sorted(
    path.name
    for path in (REPOSITORY / "jobs").glob("*.sh")
    if path.name.split("_")[0] in directives.MARKS
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scheduler_would_take_the_script(script):
    scheduler = script.split("_")[0]
    text = (REPOSITORY / "jobs" / script).read_text()
    directives.check_script(scheduler, text)
    ranks, gpus = directives.ranks_and_gpus(scheduler, text)
    assert ranks == gpus == 8


WRONG = {
    "pbs: an unknown resource": ("pbs", "#PBS -l select=2:ncpus=4:gpus=4"),
    "pbs: Torque's nodes": ("pbs", "#PBS -l nodes=2:ppn=4"),
    "pbs: a time in words": ("pbs", "#PBS -l walltime=30m"),
    "pbs: another scheduler's option": ("pbs", "#PBS --time=00:30:00"),
    "pbs: a directive after a command": ("pbs", "#PBS -j oe\ncd /\n#PBS -N late"),
    "lsf: GPUs without num": ("lsf", '#BSUB -gpu "4/host"'),
    "lsf: GPUs of a node": ("lsf", '#BSUB -gpu "num=4/node"'),
    "lsf: seconds in the time": ("lsf", "#BSUB -W 00:30:00"),
    "lsf: a span without brackets": ("lsf", "#BSUB -R span=4"),
    "flux: a time as of Slurm": ("flux", "#flux: --time-limit=00:30:00"),
    "flux: Slurm's option": ("flux", "#flux: --ntasks-per-node=4"),
    "flux: a flag with a value": ("flux", "#flux: --exclusive=yes"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_scheduler_refuses_is_found(wrong):
    scheduler, text = WRONG[wrong]
    with pytest.raises(AssertionError):
        directives.check_script(scheduler, text + "\nflux run --ntasks=1 python\n")


def test_flux_run_by_task_and_by_resource_at_once_is_found():
    with pytest.raises(AssertionError, match="exclude each other"):
        directives.check_flux_run("flux run --nodes=2 --tasks-per-node=4 --gpus-per-task=1 python")
