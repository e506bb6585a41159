"""Tests that run on every rank: mpirun -n N python -m mpi4py -m pytest --with-mpi tests/mpi"""

import pathlib

import pytest
from helpers.ranks import RankReporter

import pynccl

HERE = pathlib.Path(__file__).parent


# After pytest's own, which makes the terminal reporter.
@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if config.getoption("--with-mpi"):
        from mpi4py import MPI

        reporter = RankReporter(MPI.COMM_WORLD)
        config.pluginmanager.register(reporter)
        reporter.silence(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.mpi)


@pytest.fixture(scope="session")
def world():
    """MPI's communicator of all ranks."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture(scope="session")
def comm(world):
    """A communicator of all ranks, each with a GPU of its own."""
    with pynccl.Communicator.from_mpi(world) as communicator:
        yield communicator
