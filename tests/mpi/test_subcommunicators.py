"""Communicators made from a communicator."""

import time

import numpy
import pytest

import pynccl
from pynccl import CommShrinkFlag, Communicator


def total(comm, value):
    return int(comm.allreduce(comm.asarray(numpy.int64([value]))).get()[0])


def test_a_rank_may_come_late_to_the_creation(comm, world):
    unique_id = world.bcast(pynccl.get_unique_id() if world.rank == 0 else None)
    if comm.rank == comm.nranks - 1:
        time.sleep(1.2)
    with Communicator.init(comm.nranks, comm.rank, unique_id, device=comm.rank) as made:
        assert total(made, 1) == comm.nranks


def test_split_by_color_orders_by_key(comm):
    with comm.split(color=comm.rank % 2, key=-comm.rank) as half:
        members = [rank for rank in range(comm.nranks) if rank % 2 == comm.rank % 2]
        assert half.nranks == half.size == len(members)
        assert members[::-1].index(comm.rank) == half.rank
        assert total(half, comm.rank) == sum(members)


def test_split_without_a_color_gives_none(comm):
    part = comm.split(color=None if comm.rank == 0 else 7)
    if comm.rank == 0:
        assert part is None
        return
    assert part.nranks == comm.nranks - 1
    part.destroy()


def test_splits_of_splits_and_many_splits_work_side_by_side(comm):
    parts = [comm.split(0, comm.rank) for _ in range(5)]
    inner = parts[0].split(comm.rank % 2)
    assert [total(part, 1) for part in parts] == [comm.nranks] * 5
    assert total(inner, 1) == inner.nranks
    for made in (inner, *parts[::-1]):
        made.destroy()


def test_shrink_leaves_ranks_out(comm):
    if comm.nranks == 1:
        return
    if comm.rank == 0:
        return
    with comm.shrink([0]) as rest:
        assert (rest.rank, rest.nranks) == (comm.rank - 1, comm.nranks - 1)
        assert total(rest, comm.rank) == sum(range(1, comm.nranks))


@pytest.mark.parametrize("blocking", [True, False])
def test_shrinks_that_leave_out_other_ranks_follow_each_other(comm, blocking):
    if comm.nranks < 3:
        return
    with comm.split(0, comm.rank, pynccl.Config(blocking=blocking)) as parent:
        parent.wait_ready()
        for left_out in range(comm.nranks):
            if comm.rank != left_out:
                with parent.shrink([left_out]) as rest:
                    rest.wait_ready()
                    assert total(rest, comm.rank) == sum(range(comm.nranks)) - left_out


def test_shrink_with_abort_works_on_a_communicator_whose_work_hangs(comm):
    if comm.nranks == 1:
        return
    with comm.split(0, comm.rank) as parent:
        if comm.rank == 0:
            parent.abort()
            return
        parent.allreduce(parent.asarray(numpy.ones(10)))  # rank 0 never comes
        with parent.shrink([0], flag=CommShrinkFlag.ABORT) as rest:
            assert total(rest, 1) == comm.nranks - 1
        parent.abort()


def test_shrink_refuses_the_rank_that_calls_and_ranks_that_do_not_exist(comm):
    with pytest.raises(ValueError, match="must not call shrink"):
        comm.shrink([comm.rank])
    with pytest.raises(ValueError, match="exclude"):
        comm.shrink([comm.nranks])


def test_grow_takes_in_new_ranks(comm, world):
    if comm.nranks == 1:
        return
    newcomer = comm.nranks - 1
    some = comm.split(None if comm.rank == newcomer else 0, comm.rank)
    made = bytes(some.get_unique_id()) if comm.rank == 0 else None
    content = pynccl.UniqueId.from_bytes(world.bcast(made))
    if comm.rank == newcomer:
        grown = Communicator.join(comm.nranks, newcomer, content, device=comm.device)
    else:
        grown = some.grow(comm.nranks, content if comm.rank == 0 else None)
        some.destroy()
    assert (grown.rank, grown.nranks) == (comm.rank, comm.nranks)
    assert total(grown, 1) == comm.nranks
    grown.destroy()


def test_a_growth_id_serves_once(comm, world):
    if comm.rank == 0:
        with comm.split(0) as parent:
            parent.get_unique_id()
            with pytest.raises(pynccl.NCCLInvalidUsage, match="not used yet"):
                parent.get_unique_id()
    else:
        comm.split(0).destroy()


def test_revoke_stops_work_and_leaves_split_shrink_and_destroy(comm, world):
    parent = comm.split(0, comm.rank)
    if comm.nranks > 1 and comm.rank > 0:
        parent.allreduce(parent.asarray(numpy.ones(10)))  # rank 0 never comes
    parent.revoke()
    assert parent.get_async_error() == pynccl.Result.SUCCESS
    with pytest.raises(pynccl.NCCLInvalidUsage, match="revoked"):
        parent.allreduce(parent.asarray(numpy.ones(10)))
    world.Barrier()
    with parent.split(0, comm.rank) as again:
        assert total(again, 1) == comm.nranks
    parent.destroy()


def test_suspend_gives_memory_back_and_refuses_use_until_resume(comm):
    stat = pynccl.CommMemStat
    with comm.split(0, comm.rank) as part:
        held = part.get_mem_stat(stat.GPU_MEM_SUSPEND)
        assert held > 0
        assert part.get_mem_stat(stat.GPU_MEM_SUSPENDED) == 0
        assert part.get_mem_stat(stat.GPU_MEM_TOTAL) == held + part.get_mem_stat(
            stat.GPU_MEM_PERSIST
        )
        part.suspend()
        assert part.get_mem_stat(stat.GPU_MEM_SUSPENDED) == 1
        with pytest.raises(pynccl.NCCLInvalidUsage, match="suspended"):
            part.allreduce(part.asarray(numpy.ones(3)))
        part.resume()
        assert total(part, 1) == comm.nranks
        with pytest.raises(pynccl.NCCLInvalidUsage, match="not suspended"):
            part.resume()


def test_a_communicator_that_is_not_blocking_becomes_ready(comm, world):
    content = bytes(pynccl.get_unique_id()) if comm.rank == 0 else None
    unique_id = pynccl.UniqueId.from_bytes(world.bcast(content))
    config = pynccl.Config(blocking=False)
    made = Communicator.init(comm.nranks, comm.rank, unique_id, config, device=comm.device)
    made.wait_ready(timeout=30)
    assert total(made, 1) == comm.nranks
    part = made.split(0, comm.rank)
    part.wait_ready(timeout=30)
    made.wait_ready(timeout=30)
    assert (part.rank, part.nranks) == (comm.rank, comm.nranks)
    assert total(part, 1) == comm.nranks
    part.destroy()
    made.destroy()


def test_several_unique_ids_make_one_communicator(comm, world):
    mine = bytes(pynccl.get_unique_id())
    ids = [pynccl.UniqueId.from_bytes(content) for content in world.allgather(mine)]
    with Communicator.init(comm.nranks, comm.rank, ids, device=comm.device) as made:
        assert total(made, 1) == comm.nranks


def test_a_collective_may_have_a_config_of_its_own(comm):
    config = pynccl.CollConfig(min_ctas=1, max_ctas=8, user_profiler_tag=7)
    array = comm.asarray(numpy.ones(10))
    comm.allreduce(array, config=config)
    assert (array.get() == comm.nranks).all()
    n = comm.nranks
    parts, whole = comm.asarray(numpy.ones(4 * n)), comm.empty(4 * n, "float64")
    part = comm.empty(4, "float64")
    comm.broadcast(parts, config=config)
    comm.reduce(parts, whole, root=0, config=config)
    comm.reduce_scatter(parts, part, config=config)
    comm.allgather(part, whole, config=config)
    comm.alltoall(parts, whole, config=config)
    comm.gather(part, whole if comm.rank == 0 else None, config=config)
    comm.scatter(parts if comm.rank == 0 else None, part, config=config)
    assert (part.get() == 1).all()
    with pytest.raises(pynccl.NCCLInvalidArgument, match="minCTAs"):
        comm.allreduce(array, config=pynccl.CollConfig(min_ctas=9, max_ctas=2))


def test_a_collectives_event_is_recorded_behind_it(comm):
    event = comm.device.create_event()
    array = comm.asarray(numpy.ones(100000))
    comm.allreduce(array, config=pynccl.CollConfig(launch_completion_event=event))
    event.sync()
    comm.synchronize()
    assert event.is_done


def test_a_simulated_group_launches_nothing_and_tells_a_time(comm):
    array = comm.asarray(numpy.ones(1 << 20, "float32"))
    pynccl.group_start()
    comm.allreduce(array)
    info = pynccl.group_end(simulate=True)
    assert info.estimated_time > 0
    assert (array.get() == 1).all()
