"""Every test: on the emulator unless PYNCCL_BACKEND says otherwise, and never without an end."""

import os

import pytest

os.environ.setdefault("PYNCCL_BACKEND", "emulator")

TIMEOUT_SECONDS = 120


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; run with PYNCCL_BACKEND=nccl")


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
