"""What the ranks tell each other where the matrices of a layer are split over them.

A layer that is split computes ``leave(f(enter(x)))``, f with this rank's columns of the first
matrix and its rows of the second. n ranks; an activation has A bytes.
"""

from __future__ import annotations

import math
from typing import Any

from pynccl.communicator import Communicator
from pynccl.parallel.functional import all_gathered, all_reduced, reduce_scattered, staged
from pynccl.types import RedOp

__all__ = ["SequenceParallel", "TensorParallel", "joined", "part_of", "split_cross_entropy"]


def part_of(count: int, rank: int, nranks: int) -> slice:
    """Return which of ``count`` things a rank has; the first ranks may have one more."""
    share, more = divmod(count, nranks)
    start = rank * share + min(rank, more)
    return slice(start, start + share + (rank < more))


class TensorParallel:
    """Where a split layer begins and ends, the activations outside of it being on all ranks.

    Each direction of a layer takes one all-reduce, which sends 2 (n-1)/n A bytes. Shoeybi et al.
    2019, "Megatron-LM", whose f is ``enter`` and whose g is ``leave``.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.rank, self.nranks = comm.rank, comm.nranks

    def enter(self, x: Any) -> Any:
        """Give each rank's columns the whole input, which is there already."""
        return x

    def enter_backward(self, dx: Any) -> Any:
        """Sum what the ranks' columns say about the input."""
        return all_reduced(self.comm, dx)

    def leave(self, y: Any) -> Any:
        """Sum what the ranks' rows make of their parts."""
        return all_reduced(self.comm, y)

    def leave_backward(self, dy: Any) -> Any:
        """Give each rank's rows the whole gradient, which is there already."""
        return dy

    def places(self, length: int) -> slice:
        """Return which places of the sequence this rank has outside of split layers: all."""
        return slice(0, length)


class SequenceParallel(TensorParallel):
    """Where a split layer begins and ends, the activations outside of it being split by place.

    An all-reduce is a reduce-scatter and an all-gather: here they happen at the layer's two ends,
    so each direction sends 2 (n-1)/n A bytes, as in ``TensorParallel``, and what lies between
    layers takes 1/n of the memory. Korthikanti et al. 2022, "Reducing Activation Recomputation in
    Large Transformer Models".

    Args:
        axis: of the activations, along which the sequence lies
    """

    def __init__(self, comm: Communicator, axis: int = 1) -> None:
        super().__init__(comm)
        self.axis = axis

    def enter(self, x: Any) -> Any:
        """Gather all places."""
        return all_gathered(self.comm, x, self.axis)

    def enter_backward(self, dx: Any) -> Any:
        """Sum over the ranks, and keep this rank's places."""
        return reduce_scattered(self.comm, dx, self.axis)

    def leave(self, y: Any) -> Any:
        """Sum over the ranks, and keep this rank's places."""
        return reduce_scattered(self.comm, y, self.axis)

    def leave_backward(self, dy: Any) -> Any:
        """Gather all places."""
        return all_gathered(self.comm, dy, self.axis)

    def places(self, length: int) -> slice:
        """Return which places of the sequence this rank has outside of split layers.

        Raises:
            ValueError: the ranks cannot share the sequence evenly
        """
        if length % self.nranks:
            raise ValueError(f"a sequence of {length} cannot be split over {self.nranks} ranks")
        return part_of(length, self.rank, self.nranks)


def split_cross_entropy(
    comm: Communicator, logits: Any, first: int, targets: Any, scale: float
) -> tuple[Any, Any]:
    """Return the loss of scores that are split by class, and the gradient of this rank's scores.

    Three numbers a row are reduced, in two all-reduces (the largest score; the sum of exponentials
    and the target's score), where gathering the scores would take as many as there are classes.
    Shoeybi et al. 2019, section 3.

    Args:
        logits: this rank's classes along the last axis
        first: number of the first of them
        targets: the right class of each row
        scale: of the sum over all rows
    """
    with comm.compute() as xp:
        largest = all_reduced(comm, logits.max(axis=-1), RedOp.MAX)
    with comm.compute() as xp:
        logits = logits - largest[..., None]
        target = targets[..., None] == xp.arange(first, first + logits.shape[-1])
        exponentials = xp.exp(logits)
        parts = xp.stack([exponentials.sum(axis=-1), (logits * target).sum(axis=-1)])
        total, right = all_reduced(comm, parts)
    with comm.compute() as xp:
        loss = (xp.log(total) - right).sum() * scale
        return loss, (exponentials / total[..., None] - target) * xp.asarray(scale, total.dtype)


def joined(comm: Communicator, part: Any, axis: int, extent: int) -> Any:
    """Return a whole matrix from the parts that ``part_of`` gave the ranks.

    One grouped broadcast from each rank, since the parts may differ in size.

    Args:
        extent: of the whole matrix, along the axis
    """
    with comm.compute() as xp:
        rows = staged(comm, xp.moveaxis(part, axis, 0))
    inner = rows.shape[1:]
    size = math.prod(inner)
    slices = [part_of(extent, rank, comm.nranks) for rank in range(comm.nranks)]
    counts = [(one.stop - one.start) * size for one in slices]
    whole = comm.empty((extent, *inner), rows.dtype)
    comm.allgatherv(rows, whole, counts)
    with comm.compute() as xp:
        return xp.moveaxis(xp.asarray(whole), 0, axis)
