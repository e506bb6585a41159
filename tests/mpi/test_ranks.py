"""What tests on several ranks stand on."""

from helpers.ranks import outcomes


def test_outcomes_tell_every_rank_what_each_raised(world):
    def odd_ranks_fail():
        if world.rank % 2:
            raise ValueError(f"rank {world.rank}")

    told = outcomes(world, odd_ranks_fail)
    assert told == [("ValueError", f"rank {r}") if r % 2 else None for r in range(world.size)]


def test_communicator_spans_the_world(comm, world):
    assert (comm.rank, comm.nranks) == (world.rank, world.size)
