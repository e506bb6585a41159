"""Orders in which the stages of a pipeline work on micro-batches.

A model's layers are cut into ``nstages * nchunks`` pieces; piece i belongs to stage i % nstages.
A schedule is a table: row t says what each stage does in slot t, which is one thing at most. All
ranks have the same table, and after each slot every rank exchanges with its neighbours, in one
group, what the table says was made in that slot. So the order of messages is the same on both
sides, and no stage can wait for another that waits for it.

A border between pieces passes the activations once forward and, as gradients, once back.
With m micro-batches and p stages, the pipeline is idle for (p-1) / (m + p-1) of the time, GPipe's
and 1F1B's alike, and for (p-1) / (m c + p-1) where each stage has c pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy
import numpy.typing

from pynccl.communicator import Communicator
from pynccl.device_array import DeviceArray
from pynccl.groups import group
from pynccl.parallel.functional import staged

__all__ = ["Action", "Schedule", "exchange", "gpipe", "interleaved", "one_forward_one_backward"]


class Action(NamedTuple):
    """One stage's work in one slot."""

    forward: bool
    piece: int
    micro: int


class Schedule:
    """What each stage does in each slot.

    Args:
        orders: of each stage's actions
        nchunks: pieces of each stage

    Attributes:
        slots: rows of the table; an entry is None where a stage is idle
    """

    def __init__(self, orders: Sequence[Sequence[Action]], nchunks: int = 1) -> None:
        self.nstages = len(orders)
        self.npieces = self.nstages * nchunks
        self.slots = _in_slots(orders, self.npieces)

    def stage_of(self, piece: int) -> int:
        """Return the stage that a piece belongs to."""
        return piece % self.nstages

    def sends(self, slot: int) -> Iterator[tuple[Action, int, int]]:
        """Yield what is sent after a slot: the action that made it, its stage and the receiver's.

        A stage with neighbouring pieces sends to itself.
        """
        for stage, action in enumerate(self.slots[slot]):
            if action is None:
                continue
            to = action.piece + (1 if action.forward else -1)
            if 0 <= to < self.npieces:
                yield action, stage, self.stage_of(to)

    def most_kept(self, stage: int) -> int:
        """Return for how many forward passes a stage keeps what their backward passes need."""
        kept = most = 0
        for row in self.slots:
            action = row[stage]
            if action is not None:
                kept += 1 if action.forward else -1
                most = max(most, kept)
        return most

    def times(self, forward: float, backward: float) -> numpy.typing.NDArray[numpy.float64]:
        """Return when each action begins and ends, where exchanges take no time.

        Args:
            forward, backward: how long a pass takes
        Returns:
            An array of (stages, slots, 2); NaN where a stage is idle.
        """
        times = numpy.full((self.nstages, len(self.slots), 2), numpy.nan)
        free = [0.0] * self.nstages
        made: dict[Action, float] = {}
        for slot, row in enumerate(self.slots):
            for stage, action in enumerate(row):
                if action is None:
                    continue
                ready = [made[need] for need in _needs(action, self.npieces)]
                start = max([free[stage], *ready])
                end = start + (forward if action.forward else backward)
                times[stage, slot] = start, end
                free[stage] = made[action] = end
        return times

    def idle(self, backward: float = 1.0) -> float:
        """Return the part of the time that stages are idle, where exchanges take none.

        Args:
            backward: how long a backward pass takes, in forward passes
        """
        times = self.times(1.0, backward)
        busy = numpy.nansum(times[..., 1] - times[..., 0])
        return float(1 - busy / self.nstages / numpy.nanmax(times))


def _needs(action: Action, npieces: int) -> list[Action]:
    """Return the actions whose results an action takes."""
    forward, piece, micro = action
    if forward:
        return [Action(True, piece - 1, micro)] if piece else []
    needs = [Action(True, piece, micro)]
    if piece + 1 < npieces:
        needs.append(Action(False, piece + 1, micro))
    return needs


def _in_slots(orders: Sequence[Sequence[Action]], npieces: int) -> list[list[Action | None]]:
    """Start each action in the first slot after its stage's last one and what it needs."""
    done: set[Action] = set()
    places = [0] * len(orders)
    slots: list[list[Action | None]] = []
    while any(place < len(order) for place, order in zip(places, orders)):
        row: list[Action | None] = []
        for stage, order in enumerate(orders):
            action = order[places[stage]] if places[stage] < len(order) else None
            if action is not None and not done.issuperset(_needs(action, npieces)):
                action = None
            places[stage] += action is not None
            row.append(action)
        if not any(row):
            raise ValueError("the stages' orders wait for one another")
        done.update(action for action in row if action is not None)
        slots.append(row)
    return slots


def gpipe(nstages: int, nmicro: int) -> Schedule:
    """All forward passes, then all backward passes; keeps ``nmicro`` activations.

    Huang et al. 2019, "GPipe".
    """
    return Schedule(
        [
            [Action(True, stage, micro) for micro in range(nmicro)]
            + [Action(False, stage, micro) for micro in range(nmicro)]
            for stage in range(nstages)
        ]
    )


def one_forward_one_backward(nstages: int, nmicro: int) -> Schedule:
    """A backward pass as soon as there is one; keeps ``nstages`` activations at most.

    Narayanan et al. 2019, "PipeDream"; 2021, "Memory-Efficient Pipeline-Parallel DNN Training".
    """
    return Schedule([_alternating(nstages - stage - 1, nmicro, stage) for stage in range(nstages)])


def _alternating(ahead: int, nmicro: int, piece: int) -> list[Action]:
    ahead = min(ahead, nmicro)
    forward = [Action(True, piece, micro) for micro in range(nmicro)]
    backward = [Action(False, piece, micro) for micro in range(nmicro)]
    pairs = [action for pair in zip(forward[ahead:], backward) for action in pair]
    return forward[:ahead] + pairs + backward[nmicro - ahead :]


def interleaved(nstages: int, nmicro: int, nchunks: int) -> Schedule:
    """1F1B with several pieces on each stage: less idle time, and more messages.

    Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters".

    Raises:
        ValueError: the micro-batches do not come in whole rounds of the stages
    """
    if nmicro % nstages:
        raise ValueError(f"{nmicro} micro-batches are no multiple of {nstages} stages")
    total = nmicro * nchunks

    def action(forward: bool, place: int, stage: int) -> Action:
        around, within = divmod(place, nstages * nchunks)
        chunk = within // nstages if forward else nchunks - 1 - within // nstages
        return Action(forward, chunk * nstages + stage, around * nstages + within % nstages)

    orders = []
    for stage in range(nstages):
        ahead = min(total, 2 * (nstages - stage - 1) + (nchunks - 1) * nstages)
        forward = [action(True, place, stage) for place in range(total)]
        backward = [action(False, place, stage) for place in range(total)]
        pairs = [one for pair in zip(forward[ahead:], backward) for one in pair]
        orders.append(forward[:ahead] + pairs + backward[total - ahead :])
    return Schedule(orders, nchunks)


def exchange(
    comm: Communicator,
    schedule: Schedule,
    slot: int,
    made: Any,
    room: Callable[[Action], DeviceArray],
) -> dict[Action, Any]:
    """Send on what this rank made in a slot, and receive what was made for it, in one group.

    Collective over the ranks, which are the stages; only those that the slot concerns communicate.

    Args:
        made: what this rank's action made (numpy's or cupy's array), where another takes it
        room: returns an array for what the given action takes
    Returns:
        What was received, by the action that takes it.
    """
    received: dict[Action, Any] = {}
    arriving: dict[Action, DeviceArray] = {}
    messages = list(schedule.sends(slot))
    out = staged(comm, made) if any(source == comm.rank for _, source, _ in messages) else None
    with group():
        for action, source, receiver in messages:
            taker = action._replace(piece=action.piece + (1 if action.forward else -1))
            if source == receiver == comm.rank:
                received[taker] = made
            elif source == comm.rank:
                comm.send(out, receiver)
            elif receiver == comm.rank:
                arriving[taker] = comm.recv(room(taker), source)
    if arriving:
        with comm.compute() as xp:
            received.update((taker, xp.asarray(array)) for taker, array in arriving.items())
    return received
