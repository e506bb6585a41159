"""Random correct programs whose ranks are threads of one process raise no alarm."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import random_programs

import pynccl

NRANKS = 3


@pytest.fixture(scope="module")
def comms():
    made = pynccl.Communicator.init_all(NRANKS)
    yield made
    for comm in made:
        comm.destroy()


def exchange():
    """Give the ranks one unique id for each number."""
    lock, ids = threading.Lock(), {}

    def meet(number, members, rank):
        with lock:
            return ids.setdefault(number, pynccl.get_unique_id())

    return meet


@pytest.mark.parametrize("seed", range(8))
def test_threads_that_run_a_random_program_raise_no_alarm(comms, seed):
    program, meet = random_programs.generate(seed, NRANKS), exchange()
    with ThreadPoolExecutor(NRANKS) as pool:
        parts = [pool.submit(random_programs.run, program, comm, meet) for comm in comms]
        for one in parts:
            one.result(timeout=60)
