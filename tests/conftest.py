"""Every test: on the emulator unless PYNCCL_BACKEND says otherwise, and never without an end."""

import os
import shutil
import tempfile

import pytest

os.environ.setdefault("PYNCCL_BACKEND", "emulator")

TIMEOUT_SECONDS = 120
SM_FOLDER = "OMPI_MCA_btl_sm_backing_directory"


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; run with PYNCCL_BACKEND=nccl")
    # Ranks that are killed leave Open MPI's shared memory behind: it goes with this folder. Ranks
    # have it from who launched them, or none: their abort would leave it.
    config.shared_memory = None
    if SM_FOLDER not in os.environ and not config.getoption("--with-mpi", False):
        place = "/dev/shm" if os.path.isdir("/dev/shm") else None
        config.shared_memory = tempfile.mkdtemp(prefix="pynccl-tests-", dir=place)
        os.environ[SM_FOLDER] = config.shared_memory


def pytest_unconfigure(config):
    if config.shared_memory is not None:
        shutil.rmtree(config.shared_memory, ignore_errors=True)


def pytest_collection_modifyitems(config, items):
    seconds = config.getoption("timeout") or TIMEOUT_SECONDS
    for item in items:
        # A thread ends even a test that hangs in C code; a signal would not.
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(seconds, method="thread"))


def pytest_runtest_setup(item):
    backend = os.environ["PYNCCL_BACKEND"]
    if item.get_closest_marker("gpu") and backend == "emulator":
        pytest.skip("needs an NVIDIA GPU, and PYNCCL_BACKEND=nccl in the environment")
