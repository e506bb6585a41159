"""Rows sent to where their expert is, and back.

Lepikhin et al. 2020, "GShard"; Fedus et al. 2021, "Switch Transformers".
"""

from __future__ import annotations

from typing import Any

import numpy
import numpy.typing

from pynccl.communicator import Communicator
from pynccl.parallel.functional import staged

__all__ = ["Dispatch", "places_in_order"]


def places_in_order(choices: Any, nexperts: int, xp: Any) -> Any:
    """Return of each choice how many before it are of the same expert."""
    chosen = choices[:, None] == xp.arange(nexperts)
    before = xp.cumsum(chosen, axis=0) - 1
    return (before * chosen).sum(axis=1)


class Dispatch:
    """The exchange that belongs to one choice of experts. Collective; waits for the GPU once.

    The ranks tell each other how many rows come, which takes an all-to-all of one number for each
    expert. R rows of S bytes then take an uneven all-to-all of R S (n-1)/n bytes from each of n
    ranks in each direction, where the experts are chosen equally often. ``back`` is the transpose
    of ``forth``: the gradient of one goes through the other.

    Args:
        choices: of each row the number of its expert, in host memory
        nexperts: of all ranks, each having as many

    Attributes:
        arrived: how many rows each of this rank's experts gets
    Raises:
        ValueError: the experts cannot be shared evenly
    """

    def __init__(
        self, comm: Communicator, choices: numpy.typing.NDArray[Any], nexperts: int
    ) -> None:
        if nexperts % comm.nranks:
            raise ValueError(f"{nexperts} experts cannot be shared by {comm.nranks} ranks evenly")
        self.comm = comm
        each = nexperts // comm.nranks
        leaving = numpy.bincount(choices, minlength=nexperts).astype(numpy.int32)
        sent = comm.asarray(leaving)
        coming = comm.alltoall(sent, comm.empty(nexperts, numpy.int32)).get()
        coming = coming.reshape(comm.nranks, each)
        self._out: list[int] = leaving.reshape(comm.nranks, each).sum(axis=1).tolist()
        self._in: list[int] = coming.sum(axis=1).tolist()
        self.arrived = coming.sum(axis=0).tolist()
        self._leave_in = numpy.argsort(choices, kind="stable")
        # Rows come by rank and then expert; the experts want them by expert.
        experts = numpy.repeat(numpy.tile(numpy.arange(each), comm.nranks), coming.reshape(-1))
        self._arrive_in = numpy.argsort(experts, kind="stable")

    def forth(self, rows: Any) -> Any:
        """Send each row to its expert; return this rank's experts' rows, expert by expert."""
        with self.comm.compute() as xp:
            leaving = rows[xp.asarray(self._leave_in)]
        came = self._exchanged(leaving, self._out, self._in)
        with self.comm.compute() as xp:
            return came[xp.asarray(self._arrive_in)]

    def back(self, rows: Any) -> Any:
        """Send what the experts made of their rows to where the rows came from, in their order."""
        with self.comm.compute() as xp:
            leaving = xp.empty_like(rows)
            leaving[xp.asarray(self._arrive_in)] = rows
        came = self._exchanged(leaving, self._in, self._out)
        with self.comm.compute() as xp:
            returned = xp.empty_like(came)
            returned[xp.asarray(self._leave_in)] = came
            return returned

    def rows_elsewhere(self) -> int:
        """Return how many rows leave this rank in one ``forth`` and one ``back`` together."""
        rank: int = self.comm.rank
        return sum(self._out) - self._out[rank] + sum(self._in) - self._in[rank]

    def _exchanged(self, rows: Any, out: list[int], into: list[int]) -> Any:
        width = rows.shape[1]
        received = self.comm.empty((sum(into), width), rows.dtype)
        self.comm.alltoallv(
            staged(self.comm, rows),
            [count * width for count in out],
            received,
            [count * width for count in into],
        )
        with self.comm.compute() as xp:
            return xp.asarray(received)
