"""Send and receive, alone and in groups."""

import numpy
import pytest
from helpers.values import DTYPES, SIZES, as_numbers, pattern

import pynccl
from pynccl.arrays import numpy_dtype


def equal(array, expected):
    numpy.testing.assert_array_equal(as_numbers(array.get()), as_numbers(expected))


@pytest.mark.parametrize("count", [*SIZES, 3_000_000])
def test_a_ring_passes_every_ranks_elements_on(comm, count):
    after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    send = comm.asarray(pattern(comm.rank, count, "float32"))
    recv = comm.empty(count)
    assert comm.sendrecv(send, after, recv, before) is recv
    equal(recv, pattern(before, count, "float32"))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_type_travels_from_rank_to_rank(comm, dtype):
    if comm.nranks == 1:
        return
    buffer = comm.asarray(pattern(comm.rank, 777, dtype))
    if comm.rank == 0:
        assert comm.send(buffer, 1) is buffer
    elif comm.rank == 1:
        assert comm.recv(buffer, 0) is buffer
        equal(buffer, pattern(0, 777, dtype))
    comm.synchronize()


@pytest.mark.parametrize(("sent", "received"), [("float64", "uint8"), ("int8", "bfloat16")])
def test_elements_may_be_sent_or_received_as_bytes(comm, sent, received):
    after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    content = numpy.random.default_rng(comm.rank).bytes(4000)
    send, recv = comm.empty(4000, "uint8"), comm.empty(4000, "uint8")
    send.set(numpy.frombuffer(content, "uint8"))
    as_sent = send.ptr, 4000 // numpy_dtype(sent).itemsize, sent
    as_received = recv.ptr, 4000 // numpy_dtype(received).itemsize, received
    comm.sendrecv(as_sent, after, as_received, before)
    assert recv.get().tobytes() == numpy.random.default_rng(before).bytes(4000)


def test_messages_between_two_ranks_keep_their_order(comm):
    last = comm.nranks - 1
    if last == 0:
        return
    if comm.rank == 0:
        for i in range(20):
            comm.send(comm.asarray(numpy.full(10, i)), last)
    elif comm.rank == last:
        for i in range(20):
            assert (comm.recv(comm.empty(10, "int64"), 0).get() == i).all()
    comm.synchronize()


def test_a_group_exchanges_with_everybody_many_times_over(comm):
    sent = [
        [comm.asarray(numpy.full(100 + i, 10 * comm.rank + peer)) for i in range(20)]
        for peer in range(comm.nranks)
    ]
    received = [[comm.empty(100 + i, "int64") for i in range(20)] for _ in range(comm.nranks)]
    with pynccl.group():
        for peer in range(comm.nranks):
            for i in range(20):
                comm.recv(received[peer][i], peer)
                comm.send(sent[peer][i], peer)
    for peer in range(comm.nranks):
        for i in range(20):
            assert (received[peer][i].get() == 10 * peer + comm.rank).all()


def test_a_group_may_mix_messages_and_collectives(comm):
    after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    total = comm.asarray(numpy.ones(5000))
    token = comm.asarray(numpy.full(5000, comm.rank))
    got = comm.empty(5000, token.dtype)
    with pynccl.group():
        comm.send(token, after)
        comm.allreduce(total)
        comm.recv(got, before)
    assert (total.get() == comm.nranks).all()
    assert (got.get() == before).all()


def test_a_message_to_itself_arrives(comm):
    recv = comm.empty(9)
    comm.sendrecv(comm.asarray(pattern(1, 9, "float32")), comm.rank, recv, comm.rank)
    equal(recv, pattern(1, 9, "float32"))


@pytest.mark.parametrize("peer", [-1, 99, "0", 1.0])
def test_a_peer_that_does_not_exist_is_refused(comm, peer):
    with pytest.raises(ValueError, match="peer"):
        comm.send(comm.empty(3), peer)
