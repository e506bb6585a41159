"""Registered memory, puts and signals."""

import numpy
import pytest

import pynccl
from pynccl import Communicator, WaitSignalDesc


@pytest.fixture
def window(comm):
    """A window of 1024 float32 on every rank, with this rank's part as an array for numpy."""
    memory = pynccl.mem_alloc(4096, comm.device)
    part = (int(memory.handle), 1024, "float32")
    registered = comm.register_window(part)
    yield registered, memory
    comm.synchronize()
    registered.close()


def contents(comm, memory, count):
    host = comm.empty(count)
    with pynccl.group():
        comm.send((int(memory.handle), count, "float32"), comm.rank)
        comm.recv(host, comm.rank)
    return host.get()


def test_a_put_lands_where_it_was_aimed_before_its_signal(comm, window):
    registered, memory = window
    after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    for turn in range(3):
        values = comm.asarray(numpy.arange(256, dtype="float32") + 1000 * comm.rank + turn)
        comm.put_signal(values, after, registered, peer_window_offset=0)
        comm.wait_signal(WaitSignalDesc(before))
        got = contents(comm, memory, 256)
        numpy.testing.assert_array_equal(got, numpy.arange(256) + 1000 * before + turn)
        comm.signal(before)  # the memory may be written again
        comm.wait_signal([WaitSignalDesc(op_count=1, peer=after)])


def test_everybody_puts_to_everybody(comm, window):
    registered, memory = window
    mine = comm.asarray(numpy.full(10, comm.rank, "float32"))
    with pynccl.group():
        for peer in range(comm.nranks):
            comm.put_signal(mine, peer, registered, peer_window_offset=40 * comm.rank)
    comm.wait_signal([WaitSignalDesc(peer) for peer in range(comm.nranks)])
    got = contents(comm, memory, 10 * comm.nranks).reshape(comm.nranks, 10)
    assert (got == numpy.arange(comm.nranks)[:, None]).all()


def test_signals_count_by_index_and_context(comm, world):
    content = bytes(pynccl.get_unique_id()) if comm.rank == 0 else None
    unique_id = pynccl.UniqueId.from_bytes(world.bcast(content))
    config = pynccl.Config(num_rma_ctx=2, num_rma_sig=3)
    with Communicator.init(comm.nranks, comm.rank, unique_id, config, device=comm.device) as made:
        peer = (comm.rank + 1) % comm.nranks
        for _ in range(4):
            made.signal(peer, signal_index=2, context=1)
        made.signal(peer, signal_index=0, context=0)
        source = (comm.rank - 1) % comm.nranks
        made.wait_signal([WaitSignalDesc(source, 4, 2, 1), WaitSignalDesc(source)])
        made.synchronize()
        with pytest.raises(pynccl.NCCLInvalidArgument, match="signal 3"):
            made.signal(peer, signal_index=3)


def test_a_put_past_the_window_is_refused(comm, window):
    registered, _ = window
    with pytest.raises(pynccl.NCCLInvalidArgument, match="runs past"):
        comm.put_signal(comm.empty(1000), 0, registered, peer_window_offset=1000)


def test_a_window_tells_its_pointer_and_refuses_use_when_closed(comm):
    memory = pynccl.mem_alloc(8192, comm.device)
    registered = comm.register_window((int(memory.handle), 8192, "uint8"))
    assert registered.user_ptr == int(memory.handle)
    assert int(memory.handle) % 4096 == 0
    registered.close()
    registered.close()
    assert not registered.is_valid
    with pytest.raises(ValueError, match="closed"):
        comm.put_signal(comm.empty(1), 0, registered)


def test_memory_that_no_window_can_have_is_refused(comm):
    array = comm.empty(4096)
    with pytest.raises(pynccl.NCCLInvalidArgument, match="ncclMemAlloc"):
        comm.register_window(array[1:])


def test_a_registered_buffer_is_kept_until_it_is_deregistered(comm):
    array = comm.asarray(numpy.ones(100))
    registered = comm.register_buffer(array)
    pointer = array.ptr
    del array
    comm.allreduce((pointer, 100, "float64"))
    comm.synchronize()
    registered.close()
    with pytest.raises(ValueError, match="closed"):
        _ = registered.handle


def test_resources_are_gone_with_their_communicator(comm):
    part = comm.split(0, comm.rank)
    op = part.create_pre_mul_sum(2.0, "float32")
    buffer = part.register_buffer(part.empty(10))
    part.destroy()
    assert not op.is_valid
    assert not buffer.is_valid
    op.close()
    buffer.close()
