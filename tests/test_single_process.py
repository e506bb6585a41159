"""Several ranks in one process: one thread for all GPUs, and a thread for each."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
from helpers.values import pattern

import pynccl
from pynccl import Communicator


@pytest.fixture(params=[1, 2, 4, 8])
def comms(request):
    made = Communicator.init_all(request.param)
    yield made
    for comm in made:
        comm.destroy()


def on_threads(nranks, work):
    """Run ``work(rank)`` on a thread for each rank; return the results, or raise an error."""
    with ThreadPoolExecutor(nranks) as pool:
        futures = [pool.submit(work, rank) for rank in range(nranks)]
        return [future.result(timeout=60) for future in futures]


def test_one_thread_drives_all_gpus_in_groups(comms):
    arrays = [comm.asarray(pattern(comm.rank, 20000, "float32")) for comm in comms]
    for _ in range(3):
        with pynccl.group():
            for comm, array in zip(comms, arrays):
                comm.allreduce(array, op=pynccl.MAX)
    expected = numpy.max([pattern(comm.rank, 20000, "float32") for comm in comms], axis=0)
    for array in arrays:
        numpy.testing.assert_array_equal(array.get(), expected)


def test_a_group_makes_windows_and_communicators_in_the_order_of_its_calls(comms):
    sizes = (8192, 4096)
    for _ in range(10):
        memory = [[pynccl.mem_alloc(size, comm.device) for size in sizes] for comm in comms]
        made = []
        with pynccl.group():
            for comm, parts in zip(comms, memory):
                large, small = ((int(m.handle), m.size // 4, "int32") for m in parts)
                made.append(
                    (comm.register_window(large), comm.split(0), comm.register_window(small))
                )
        sent = [comm.asarray(numpy.full(4, comm.rank, "int32")) for comm in comms]
        after = [(comm.rank + 1) % comm.nranks for comm in comms]
        with pynccl.group():
            for comm, array, peer, (large, _, _) in zip(comms, sent, after, made):
                comm.put_signal(array, peer, large, 8192 - 16)
        with pynccl.group():
            for comm in comms:
                comm.wait_signal(pynccl.WaitSignalDesc((comm.rank - 1) % comm.nranks))
        for comm, (large, _), (window, child, small) in zip(comms, memory, made):
            got = comm.empty(4, "int32")
            comm.sendrecv((int(large.handle) + 8192 - 16, 4, "int32"), comm.rank, got, comm.rank)
            assert (got.get() == (comm.rank - 1) % comm.nranks).all()
            with pytest.raises(pynccl.NCCLInvalidArgument, match="4096 bytes of rank 0's window"):
                comm.put_signal(got, 0, small, 4096)
            for resource in (window, small):
                resource.close()
            assert child.nranks == comm.nranks
            child.destroy()


def test_each_communicator_of_init_all_has_its_device_and_rank(comms):
    assert [comm.rank for comm in comms] == list(range(len(comms)))
    assert [comm.device.device_id for comm in comms] == list(range(len(comms)))
    assert {comm.nranks for comm in comms} == {len(comms)}


def test_init_all_takes_devices_by_number_and_refuses_what_cannot_be():
    comms = Communicator.init_all([3, 1])
    assert [comm.device.device_id for comm in comms] == [3, 1]
    for comm in comms:
        comm.destroy()
    with pytest.raises(ValueError, match="device 99 does not exist"):
        Communicator.init_all([0, 99])
    with pytest.raises(ValueError, match="one rank only"):
        Communicator.init_all([1, 1])
    assert Communicator.init_all([]) == []


def test_host_synchronisation_between_gpus_does_not_deadlock(comms):
    for comm in comms:
        array = comm.asarray(numpy.ones(10))
        array.get()
    arrays = [comm.asarray(numpy.ones(10)) for comm in comms]
    with pynccl.group():
        for comm, array in zip(comms, arrays):
            comm.allreduce(array)
    for comm in comms:
        comm.synchronize(timeout=30)


@pytest.mark.parametrize("nranks", [1, 2, 3, 8])
def test_ranks_may_be_threads(nranks):
    unique_id = pynccl.get_unique_id()

    def work(rank):
        with Communicator.init(nranks, rank, unique_id, device=rank) as comm:
            array = comm.asarray(pattern(rank, 30000, "int64"))
            comm.allreduce(array)
            peer = comm.empty(100)
            comm.sendrecv(
                comm.asarray(numpy.full(100, rank, "float32")),
                (rank + 1) % nranks,
                peer,
                (rank - 1) % nranks,
            )
            return array.get(), peer.get()

    expected = sum(pattern(rank, 30000, "int64") for rank in range(nranks))
    for rank, (total, received) in enumerate(on_threads(nranks, work)):
        numpy.testing.assert_array_equal(total, expected)
        assert (received == (rank - 1) % nranks).all()


def test_communicators_made_on_threads_at_once_do_not_block_each_other():
    nranks, many = 4, 6
    ids = [pynccl.get_unique_id() for _ in range(many)]

    def work(rank):
        comms = [Communicator.init(nranks, rank, one, device=rank) for one in ids]
        totals = [int(c.allreduce(c.asarray(numpy.int32([1]))).get()[0]) for c in comms]
        for comm in comms:
            comm.destroy()
        return totals

    assert on_threads(nranks, work) == [[nranks] * many] * nranks


def test_communicators_are_made_in_a_group():
    unique_id = pynccl.get_unique_id()
    with pynccl.group():
        comms = [Communicator.init(3, rank, unique_id, device=rank) for rank in range(3)]
    assert all(comm.is_valid for comm in comms)
    with pynccl.group():
        halves = [comm.split(comm.rank % 2, device_key) for device_key, comm in enumerate(comms)]
    assert [(half.rank, half.nranks) for half in halves] == [(0, 2), (0, 1), (1, 2)]
    for comm in (*halves, *comms):
        comm.destroy()


def test_two_ranks_on_one_gpu_are_refused_naming_both():
    unique_id = pynccl.get_unique_id()

    def work(rank):
        with pytest.raises(pynccl.NCCLInvalidUsage, match=r"ranks 0 .* and 1 .* on GPU 0"):
            Communicator.init(2, rank, unique_id, device=0)

    on_threads(2, work)


def test_a_rank_taken_twice_is_refused_on_both():
    unique_id = pynccl.get_unique_id()

    def work(place):
        with pytest.raises(pynccl.NCCLError, match="taken twice"):
            Communicator.init(3, 1, unique_id, device=place)

    on_threads(2, work)


def test_ranks_that_disagree_on_the_size_are_refused_on_both():
    unique_id = pynccl.get_unique_id()

    def work(rank):
        with pytest.raises(pynccl.NCCLInvalidArgument, match="disagree on the size"):
            Communicator.init(2 + rank, rank, unique_id, device=rank)

    on_threads(2, work)


def test_a_unique_id_serves_one_communicator_only():
    unique_id = pynccl.get_unique_id()
    with Communicator.init(1, 0, unique_id, device=0):
        with pytest.raises(pynccl.NCCLInvalidUsage, match="already served"):
            Communicator.init(1, 0, unique_id, device=0)


def test_ranks_whose_operations_differ_are_told_what_each_did():
    unique_id = pynccl.get_unique_id()

    def work(rank):
        comm = Communicator.init(2, rank, unique_id, device=rank)
        array = comm.asarray(numpy.ones(100, "float32"))
        if rank == 0:
            comm.allreduce(array)
        else:
            comm.broadcast(array, root=1)
        with pytest.raises(pynccl.NCCLInvalidUsage) as caught:
            comm.synchronize(timeout=10)
        comm.abort()
        return str(caught.value)

    for text in on_threads(2, work):
        assert "rank 0: all-reduce of 100 float32, sum" in text
        assert "rank 1: broadcast of 100 float32, root 1" in text
        assert "operation 1" in text


def test_a_message_of_another_size_than_expected_is_an_error_on_both():
    unique_id = pynccl.get_unique_id()

    def work(rank):
        comm = Communicator.init(2, rank, unique_id, device=rank)
        array = comm.empty(10 + rank, "int32")
        comm.send(array, 1) if rank == 0 else comm.recv(array, 0)
        with pytest.raises(pynccl.NCCLInvalidUsage, match=r"sends 10 int32 .* receives 11 int32"):
            comm.synchronize(timeout=10)
        comm.abort()

    on_threads(2, work)


def test_abort_on_one_thread_ends_the_wait_of_the_other():
    unique_id = pynccl.get_unique_id()
    waiting = threading.Event()

    def work(rank):
        comm = Communicator.init(2, rank, unique_id, device=rank)
        if rank == 0:
            waiting.wait(10)
            comm.abort()
            return
        comm.allreduce(comm.asarray(numpy.ones(5)))
        waiting.set()
        with pytest.raises(pynccl.NCCLRemoteError, match="rank 0 .* aborted the communicator"):
            comm.synchronize(timeout=10)
        comm.abort()

    on_threads(2, work)


def test_a_wait_ends_at_its_timeout_and_the_communicator_can_be_aborted():
    unique_id = pynccl.get_unique_id()
    done = threading.Barrier(2)

    def work(rank):
        comm = Communicator.init(2, rank, unique_id, device=rank, timeout=0.3)
        if rank == 0:
            comm.allreduce(comm.asarray(numpy.ones(5)))
            with pytest.raises(TimeoutError, match=r"0\.3 s"):
                comm.synchronize()
        done.wait(20)
        comm.abort()

    on_threads(2, work)


def test_a_used_id_never_touches_files_that_took_its_place(tmp_path):
    unique_id = pynccl.get_unique_id()
    pynccl.Communicator.init(1, 0, unique_id).destroy()
    paths = [tmp_path / str(number) for number in range(64)]
    files = [path.open("w+b") for path in paths]  # one of them has the number of the id's memory
    with pytest.raises(pynccl.NCCLInvalidUsage, match="already served"):
        Communicator.init(1, 0, unique_id)
    assert [path.stat().st_size for path in paths] == [0] * 64
    for file in files:
        file.close()
