"""Collectives in several streams: what races is told by both operations, what is ordered runs."""

import numpy
import pytest
from helpers.ranks import outcomes

import pynccl


def new_stream(comm):
    """A stream that the default stream does not wait for."""
    from cuda.core import StreamOptions

    return comm.device.create_stream(options=StreamOptions(nonblocking=True))


@pytest.fixture
def one(comm):
    return new_stream(comm)


@pytest.fixture
def other(comm):
    return new_stream(comm)


@pytest.fixture(scope="module")
def second(comm):
    """Another communicator of the same ranks."""
    with comm.split(0, comm.rank) as made:
        yield made


def ones(comm, count):
    made = comm.asarray(numpy.ones(count, numpy.float32))
    comm.synchronize()
    return made


def finish(comm, *streams):
    for stream in (*streams, comm.stream):
        stream.sync()


def test_two_communicators_on_one_array_race_and_both_operations_are_named(
    world, comm, second, one, other
):
    array = ones(comm, 6)
    comm.allreduce(array, stream=one)
    for kind, text in outcomes(world, lambda: second.broadcast(array, root=0, stream=other)):
        assert kind == "NCCLInvalidUsage"
        assert text.startswith("ncclBroadcast: invalid usage: a race: ")
        assert "the broadcast of 6 float32, root 0" in text
        assert "the all-reduce of 6 float32, sum" in text
    finish(comm, one, other)
    # Nothing of the operation that was refused has been left behind.
    assert (second.allreduce(ones(comm, 2)).get() == comm.nranks).all()


def test_a_group_comes_after_what_the_default_stream_puts_before_each_of_its_streams(comm, one):
    from cuda.core import StreamOptions

    blocking = comm.device.create_stream(options=StreamOptions(nonblocking=False))
    first, second = ones(comm, 5), ones(comm, 300_000)
    # In the default stream, which the blocking one comes after.
    second.set(numpy.full(300_000, 2.0))
    with pynccl.group():
        comm.allreduce(first, stream=one)
        comm.allreduce(second, stream=blocking)
    finish(comm, one, blocking)
    assert (second.get() == 2 * comm.nranks).all()


@pytest.mark.parametrize("how", ["event", "synchronize"])
def test_two_communicators_on_one_array_run_when_ordered(comm, second, one, other, how):
    array = ones(comm, 6)
    comm.allreduce(array, stream=one)
    if how == "event":
        other.wait(one.record())
    else:
        one.sync()
    second.allreduce(array, stream=other)
    finish(comm, one, other)
    assert (array.get() == comm.nranks**2).all()


def test_operations_of_one_communicator_are_ordered_in_all_streams(comm, one, other):
    array = ones(comm, 6)
    comm.allreduce(array, stream=one)
    comm.allreduce(array, stream=other)
    finish(comm, one, other)
    assert (array.get() == comm.nranks**2).all()


def test_reading_a_result_in_another_stream_races(world, comm, one):
    array, total = ones(comm, 6), comm.empty(6)
    comm.allreduce(array, total, stream=one)
    for _, text in outcomes(world, total.get):
        assert "a race: the copy of 24 bytes in the default stream reads 24 bytes" in text
        assert "the all-reduce of 6 float32, sum" in text
    comm.stream.wait(one)
    assert (total.get() == comm.nranks).all()


def test_messages_race_as_collectives_do(world, comm, second, one, other):
    right, left = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    sent, received = ones(comm, 3), ones(comm, 3)
    with pynccl.group():
        comm.send(sent, right, stream=one)
        comm.recv(received, left, stream=one)
    second.allgather(sent, comm.empty(3 * comm.nranks), stream=other)  # two that read
    for _, text in outcomes(world, lambda: second.allreduce(received, stream=other)):
        assert "the receive of 3 float32 from rank" in text
    for _, text in outcomes(world, lambda: second.allreduce(sent, stream=other)):
        assert "the send of 3 float32 to rank" in text
    finish(comm, one, other)


def test_an_allgather_in_place_leaves_its_own_part_to_be_read(world, comm, second, one, other):
    whole = ones(comm, 4 * comm.nranks)
    mine = whole[4 * comm.rank : 4 * (comm.rank + 1)]
    comm.allgather(mine, whole, stream=one)
    total = comm.empty(4)
    second.allreduce(mine, total, stream=other)
    if comm.nranks > 1:
        reading = outcomes(world, lambda: second.broadcast(whole, root=0, stream=other))
        assert all("the all-gather of 4 float32" in text for _, text in reading)
    finish(comm, one, other)
    assert (total.get() == comm.nranks).all()


def test_a_group_over_two_streams_is_ordered_with_both(comm, one, other):
    first, second = ones(comm, 2), ones(comm, 2)
    with pynccl.group():
        comm.allreduce(first, stream=one)
        comm.allreduce(second, stream=other)
    comm.stream.wait(one)
    assert (first.get() == comm.nranks).all()
    assert (second.get() == comm.nranks).all()

