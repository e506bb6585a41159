"""Collectives on arrays, sharded layers, and the count of calls and bytes."""

import numpy as np
import pytest

from pynccl.parallel import (
    CountedCommunicator,
    FlatLayout,
    ShardedLayers,
    all_gathered,
    all_reduced,
    reduce_scattered,
    staged,
)


def numbers(shape, rank):
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape) + 100 * rank


def sent_by(comm, x):
    """An array that ``compute()`` knows."""
    array = comm.asarray(x)
    with comm.compute() as xp:
        return xp.asarray(array)


def host(comm, x):
    return staged(comm, x).get()


def everyones(comm, shape):
    return [numbers(shape, rank) for rank in range(comm.nranks)]


def test_all_reduced_sums_over_ranks_and_leaves_its_argument(comm):
    x = sent_by(comm, numbers((3, 2), comm.rank))
    assert np.array_equal(host(comm, all_reduced(comm, x)), sum(everyones(comm, (3, 2))))
    assert np.array_equal(host(comm, x), numbers((3, 2), comm.rank))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_all_gathered_joins_along_any_axis(comm, axis):
    x = sent_by(comm, numbers((2, 3, 4), comm.rank))
    expected = np.concatenate(everyones(comm, (2, 3, 4)), axis=axis)
    assert np.array_equal(host(comm, all_gathered(comm, x, axis)), expected)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_reduce_scattered_leaves_each_rank_its_part_along_any_axis(comm, axis):
    shape = [2, 3, 4]
    shape[axis] *= comm.nranks
    x = sent_by(comm, numbers(shape, comm.rank))
    expected = np.split(sum(everyones(comm, shape)), comm.nranks, axis=axis)[comm.rank]
    assert np.array_equal(host(comm, reduce_scattered(comm, x, axis)), expected)


def test_reduce_scattered_refuses_an_axis_that_does_not_divide(comm):
    if comm.nranks == 1:
        return
    x = sent_by(comm, numbers((comm.nranks + 1, 2), 0))
    with pytest.raises(ValueError, match=f"axis 0 of shape .* among {comm.nranks} ranks"):
        reduce_scattered(comm, x)


SHAPES = [{"a": (3, 5), "b": (7,)}, {"c": (2, 2, 2)}, {"d": (1,)}]


def layer(index, factor=1.0):
    return {
        name: factor * (np.arange(np.prod(shape)).reshape(shape) + 100.0 * index)
        for name, shape in SHAPES[index].items()
    }


def sharded(comm):
    layers = ShardedLayers(comm, SHAPES, np.float64)
    for index in range(len(SHAPES)):
        layers.load(index, layer(index))
    return layers


def test_layout_pads_to_equal_shares_and_finds_arrays_again():
    layout = FlatLayout({"a": (3, 5), "b": (7,)}, 4)
    assert (layout.share, layout.padded) == (6, 24)
    flat = np.zeros(24)
    layout.pack({"a": np.ones((3, 5)), "b": np.full(7, 2.0)}, flat)
    assert flat.tolist() == [1] * 15 + [2] * 7 + [0] * 2
    assert layout.views(flat)["a"].shape == (3, 5)


def test_each_rank_holds_its_share_only(comm):
    share = -(-22 // comm.nranks)
    assert sharded(comm).shards[0].shape == (share,)


def test_layers_come_whole_in_the_order_asked_for(comm):
    layers = sharded(comm)
    order = [0, 1, 2, 2, 1, 0]
    seen = []
    for index, flat in layers.in_turn(order):
        seen.append(index)
        with comm.compute() as xp:
            views = layers.layouts[index].views(xp.asarray(flat))
            for name, expected in layer(index).items():
                assert np.array_equal(host(comm, views[name]), expected)
    assert seen == order


def test_a_share_of_the_summed_gradients_steps_a_share_of_the_parameters(comm):
    layers = sharded(comm)
    for index in range(len(SHAPES)):
        layers.reduce(index, layer(index, comm.rank + 1.0))
    with comm.compute() as xp:
        for shard, gradient in zip(layers.shards, layers.gradients):
            x = xp.asarray(shard)
            x -= 0.5 * xp.asarray(gradient)
    factor = 1 - 0.5 * sum(range(1, comm.nranks + 1))
    for index, whole in enumerate(layers.whole()):
        for name, expected in layer(index, factor).items():
            assert np.array_equal(whole[name], expected)


def test_calls_and_bytes_are_counted_by_operation(comm):
    counted = CountedCommunicator(comm)
    n = comm.nranks
    x, y = comm.asarray(np.zeros(12 * n, np.float32)), comm.empty(12, np.float32)
    counted.allreduce(x)
    counted.reduce_scatter(x, y)
    counted.allgather(y, x)
    counted.allgather(sendbuf=y, recvbuf=x)
    assert counted.traffic.calls == {"allreduce": 1, "reduce_scatter": 1, "allgather": 2}
    once = 4 * 12 * (n - 1)
    assert counted.traffic.nbytes == {
        "allreduce": 2 * once,
        "reduce_scatter": once,
        "allgather": 2 * once,
    }
    assert counted.traffic.total == 5 * once
    counted.traffic.paused = True
    counted.allreduce(x)
    assert counted.traffic.calls["allreduce"] == 1


def test_calls_on_parts_of_a_communicator_are_counted_together(comm):
    counted = CountedCommunicator(comm)
    with counted.split(0, comm.rank) as part:
        part.allreduce(comm.asarray(np.zeros(4)))
        assert part.rank == comm.rank
    assert counted.traffic.calls == {"allreduce": 1}
