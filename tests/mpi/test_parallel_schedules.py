"""Pipeline schedules: each does everything once and in order, and is as idle as theory says."""

import numpy as np
import pytest

from pynccl.parallel import (
    Action,
    Schedule,
    exchange,
    gpipe,
    interleaved,
    one_forward_one_backward,
    staged,
)

SHAPES = [(1, 1), (1, 4), (2, 4), (3, 6), (4, 8), (4, 4), (8, 16)]
UNEVEN = [(4, 1), (4, 2), (3, 4), (5, 7)]


def all_schedules():
    for stages, micro in SHAPES + UNEVEN:
        yield gpipe(stages, micro), micro
        yield one_forward_one_backward(stages, micro), micro
    for stages, micro in SHAPES:
        for chunks in (1, 2, 3):
            yield interleaved(stages, micro, chunks), micro


def test_every_micro_batch_passes_every_piece_forward_then_backward():
    for schedule, micro in all_schedules():
        slot_of = {a: t for t, row in enumerate(schedule.slots) for a in row if a}
        assert len(slot_of) == sum(a is not None for row in schedule.slots for a in row)
        assert slot_of.keys() == {
            Action(forward, piece, m)
            for forward in (True, False)
            for piece in range(schedule.npieces)
            for m in range(micro)
        }
        for (forward, piece, m), slot in slot_of.items():
            if forward and piece:
                assert slot_of[Action(True, piece - 1, m)] < slot
            if not forward:
                assert slot_of[Action(True, piece, m)] < slot
                if piece + 1 < schedule.npieces:
                    assert slot_of[Action(False, piece + 1, m)] < slot


def test_actions_are_on_the_stage_that_has_the_piece():
    for schedule, _ in all_schedules():
        for row in schedule.slots:
            for stage, action in enumerate(row):
                assert action is None or schedule.stage_of(action.piece) == stage


@pytest.mark.parametrize(("stages", "micro"), SHAPES)
@pytest.mark.parametrize("backward", [1.0, 2.0])
def test_idle_time_is_that_of_theory(stages, micro, backward):
    bubble = (stages - 1) / (micro + stages - 1)
    assert gpipe(stages, micro).idle(backward) == pytest.approx(bubble)
    assert one_forward_one_backward(stages, micro).idle(backward) == pytest.approx(bubble)
    for chunks in (2, 3):
        bubble = (stages - 1) / (chunks * micro + stages - 1)
        assert interleaved(stages, micro, chunks).idle() == pytest.approx(bubble)


@pytest.mark.parametrize(("stages", "micro"), SHAPES)
def test_one_forward_one_backward_keeps_no_more_than_the_stages_behind(stages, micro):
    for stage in range(stages):
        assert gpipe(stages, micro).most_kept(stage) == micro
        kept = one_forward_one_backward(stages, micro).most_kept(stage)
        assert kept == min(micro, stages - stage)


def test_interleaving_refuses_micro_batches_that_fill_no_round():
    with pytest.raises(ValueError, match="5 micro-batches are no multiple of 3 stages"):
        interleaved(3, 5, 2)


def test_orders_that_wait_for_one_another_are_refused():
    first = [Action(True, 0, 0), Action(False, 0, 0)]
    with pytest.raises(ValueError, match="wait for one another"):
        Schedule([first, [Action(False, 1, 0), Action(True, 1, 0)]])


@pytest.mark.parametrize("kind", [gpipe, one_forward_one_backward, interleaved])
def test_what_is_made_arrives_where_it_is_taken(comm, kind):
    """Each piece adds its number going forward, and a hundred times it going backward."""
    micro = 2 * comm.nranks
    extra = (2,) if kind is interleaved else ()
    schedule = kind(comm.nranks, micro, *extra)
    last = schedule.npieces - 1
    waiting, forward, backward = {}, {}, {}

    def room(action):
        return comm.empty((3,), np.float64)

    for slot, row in enumerate(schedule.slots):
        action, made = row[comm.rank], None
        if action:
            with comm.compute() as xp:
                taken = waiting.pop(action, None)
                if action.forward:
                    start = xp.full((3,), 1000.0 * action.micro)
                    made = (start if action.piece == 0 else taken) + action.piece
                    forward[action.piece, action.micro] = staged(comm, made).get()
                else:
                    start = xp.full((3,), 7.0 * action.micro)
                    made = (start if action.piece == last else taken) + 100 * action.piece
                    backward[action.piece, action.micro] = staged(comm, made).get()
        waiting |= exchange(comm, schedule, slot, made, room)

    assert not waiting
    for piece in range(comm.rank, schedule.npieces, comm.nranks):
        for m in range(micro):
            assert (forward[piece, m] == 1000 * m + sum(range(piece + 1))).all()
            assert (backward[piece, m] == 7 * m + 100 * sum(range(piece, last + 1))).all()
