"""Rows sent to their experts and back, and gradients summed in buckets."""

import numpy as np
import pytest

from pynccl.parallel import Dispatch, GradientBuckets, places_in_order, staged

EXPERTS, ROWS, WIDTH = 12, 20, 3


def choices_of(rank, rows=ROWS):
    """Each rank's choices, some experts never chosen."""
    return np.random.default_rng(rank).integers(0, EXPERTS, rows) // 2 * 2


def rows_of(rank):
    return 1000.0 * rank + np.arange(ROWS * WIDTH, dtype=np.float64).reshape(ROWS, WIDTH)


def host(comm, x):
    return staged(comm, x).get()


def test_each_expert_gets_the_rows_that_chose_it_by_rank_and_place(comm):
    dispatch = Dispatch(comm, choices_of(comm.rank), EXPERTS)
    with comm.compute() as xp:
        found = host(comm, dispatch.forth(xp.asarray(rows_of(comm.rank))))
    each = EXPERTS // comm.nranks
    mine = range(comm.rank * each, (comm.rank + 1) * each)
    expected = [[rows_of(r)[choices_of(r) == e] for r in range(comm.nranks)] for e in mine]
    assert np.array_equal(found, np.concatenate([rows for by_rank in expected for rows in by_rank]))
    assert dispatch.arrived == [sum(map(len, by_rank)) for by_rank in expected]


def test_rows_come_back_to_their_places(comm):
    dispatch = Dispatch(comm, choices_of(comm.rank), EXPERTS)
    with comm.compute() as xp:
        came = dispatch.forth(xp.asarray(rows_of(comm.rank)))
        numbers = xp.repeat(xp.arange(len(dispatch.arrived)), np.asarray(dispatch.arrived))
        expert = numbers + comm.rank * len(dispatch.arrived)
        found = host(comm, dispatch.back(came * (expert[:, None] + 1)))
    assert np.array_equal(found, rows_of(comm.rank) * (choices_of(comm.rank)[:, None] + 1))


def test_a_rank_may_send_no_row_and_an_expert_get_none(comm):
    choices = choices_of(0, 0 if comm.rank == comm.nranks - 1 else 4) * 0
    dispatch = Dispatch(comm, choices, EXPERTS)
    with comm.compute() as xp:
        came = dispatch.forth(xp.ones((len(choices), WIDTH)))
        assert came.shape == (sum(dispatch.arrived), WIDTH)
        assert host(comm, dispatch.back(came)).tolist() == [[1.0] * WIDTH] * len(choices)
    assert sum(dispatch.arrived) == (4 * (comm.nranks - 1) if comm.rank == 0 else 0)


def test_experts_that_cannot_be_shared_evenly_are_refused(comm):
    if comm.nranks == 1:
        return
    with pytest.raises(ValueError, match=f"by {comm.nranks} ranks evenly"):
        Dispatch(comm, choices_of(0), comm.nranks + 1)


def test_places_count_earlier_choices_of_the_same_expert():
    choices = np.array([2, 0, 2, 2, 1, 0])
    assert places_in_order(choices, 3, np).tolist() == [0, 0, 1, 2, 0, 1]


SHAPES = [(3, 4), (5,), (2, 2), (7,)]


@pytest.mark.parametrize(("bucket_bytes", "calls"), [(1, 4), (100, 2), (10_000, 1)])
def test_gradients_are_summed_in_buckets_of_the_size_asked_for(comm, bucket_bytes, calls):
    buckets = GradientBuckets(comm, SHAPES, np.float64, bucket_bytes)
    assert (buckets.calls, buckets.nbytes) == (calls, 8 * 28)
    for step in range(3):
        for number, shape in enumerate(SHAPES):
            with comm.compute() as xp:
                buckets.add(xp.full(shape, 10.0 * number + comm.rank + step))
        sums = buckets.sums()
        ranks = sum(range(comm.nranks))
        for number, (shape, total) in enumerate(zip(SHAPES, sums)):
            expected = np.full(shape, comm.nranks * (10.0 * number + step) + ranks)
            assert np.array_equal(host(comm, total), expected)


def test_buckets_refuse_another_order_and_missing_arrays(comm):
    buckets = GradientBuckets(comm, SHAPES, np.float64)
    with pytest.raises(ValueError, match=r"array 0 has shape \(5,\); expected was \(3, 4\)"):
        buckets.add(np.zeros(5))
    with pytest.raises(ValueError, match="0 arrays were added; 4 were expected"):
        buckets.sums()
