"""Random correct programs raise no alarm, and compute what numpy does."""

import pytest
from helpers import random_programs

import pynccl

PROGRAMS = 20


@pytest.fixture
def exchange(world):
    """Give some ranks a new unique id: from the first of them, by MPI."""

    def meet(number, members, rank):
        if rank == members[0]:
            unique_id = pynccl.get_unique_id()
            for other in members[1:]:
                world.send(bytes(unique_id), dest=other, tag=number)
            return unique_id
        return pynccl.UniqueId.from_bytes(world.recv(source=members[0], tag=number))

    return meet


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_random_program_raises_no_alarm_and_computes_what_numpy_does(comm, exchange, seed):
    random_programs.run(random_programs.generate(seed, comm.nranks), comm, exchange)
