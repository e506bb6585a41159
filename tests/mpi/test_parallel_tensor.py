"""Layers whose matrices are split over the ranks, against the whole layer in numpy."""

import numpy as np
import pytest

from pynccl.parallel import (
    SequenceParallel,
    TensorParallel,
    joined,
    part_of,
    split_cross_entropy,
    staged,
)

WIDTH, HIDDEN, CLASSES = 5, 7, 11


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def host(comm, x):
    return staged(comm, x).get()


@pytest.mark.parametrize("count", [0, 1, 5, 12])
@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 7])
def test_parts_follow_one_another_and_differ_by_one_at_most(count, nranks):
    parts = [part_of(count, rank, nranks) for rank in range(nranks)]
    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("kind", [TensorParallel, SequenceParallel])
def test_split_layer_computes_the_whole_layers_output_and_gradients(comm, kind):
    places = 2 * comm.nranks
    x, dy = drawn(3, places, WIDTH, seed=1), drawn(3, places, WIDTH, seed=2)
    up, down = drawn(WIDTH, HIDDEN, seed=3), drawn(HIDDEN, WIDTH, seed=4)
    split = kind(comm)
    here = split.places(places)
    part = part_of(HIDDEN, comm.rank, comm.nranks)

    with comm.compute() as xp:
        mine, dmine = xp.asarray(x[:, here]), xp.asarray(dy[:, here])
        columns, rows = xp.asarray(up[:, part]), xp.asarray(down[part])
        inner = split.enter(mine)
        y = split.leave(inner @ columns @ rows)
        dwhole = split.leave_backward(dmine)
        dcolumns = xp.einsum("btd,bth->dh", inner, dwhole @ rows.T)
        dx = split.enter_backward(dwhole @ rows.T @ columns.T)

    np.testing.assert_allclose(host(comm, y), (x @ up @ down)[:, here], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        host(comm, dx), (dy @ down.T @ up.T)[:, here], rtol=1e-10, atol=1e-12
    )
    whole = np.einsum("btd,bth->dh", x, dy @ down.T)
    np.testing.assert_allclose(host(comm, dcolumns), whole[:, part], rtol=1e-10, atol=1e-12)


def test_sequence_that_does_not_divide_is_refused(comm):
    if comm.nranks == 1:
        return
    with pytest.raises(ValueError, match=f"over {comm.nranks} ranks"):
        SequenceParallel(comm).places(2 * comm.nranks + 1)


def test_cross_entropy_of_split_scores_equals_that_of_whole_ones(comm):
    logits, scale = 50 * drawn(4, 3, CLASSES), 0.25  # exponentials would overflow unshifted
    logits[0, 0, 0] = 900.0
    targets = np.random.default_rng(1).integers(0, CLASSES, (4, 3))
    part = part_of(CLASSES, comm.rank, comm.nranks)
    with comm.compute() as xp:
        loss, gradient = split_cross_entropy(
            comm, xp.asarray(logits[..., part]), part.start, xp.asarray(targets), scale
        )
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    target = np.eye(CLASSES)[targets]
    assert float(loss) == pytest.approx(-(logs * target).sum() * scale, rel=1e-10)
    expected = ((np.exp(logs) - target) * scale)[..., part]
    np.testing.assert_allclose(host(comm, gradient), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_are_joined_along_any_axis(comm, axis):
    shape = [2, 3, 4]
    shape[axis] = 7
    whole = drawn(*shape)
    mine = [slice(None)] * 3
    mine[axis] = part_of(7, comm.rank, comm.nranks)
    with comm.compute() as xp:
        found = joined(comm, xp.asarray(whole[tuple(mine)]), axis, 7)
    assert np.array_equal(host(comm, found), whole)
