"""Collectives that take and return arrays of ``comm.compute()``: numpy's or cupy's.

Each copies what it sends into memory of the GPU, and is ordered after the arithmetic before it and
before the arithmetic after it. The bytes in the docstrings are those that a rank sends in a ring of
n ranks (Patarasu and Yuan 2009), for an array of S bytes.
"""

from __future__ import annotations

from typing import Any

from pynccl.communicator import Communicator
from pynccl.device_array import DeviceArray
from pynccl.types import RedOp

__all__ = ["all_gathered", "all_reduced", "reduce_scattered", "staged"]


def staged(comm: Communicator, x: Any) -> DeviceArray:
    """Return a contiguous copy of an array in the GPU's memory, to be sent."""
    array = comm.empty(x.shape, x.dtype)
    with comm.compute() as xp:
        xp.asarray(array)[...] = x
    return array


def _result(comm: Communicator, array: DeviceArray) -> Any:
    with comm.compute() as xp:
        return xp.asarray(array)


def all_reduced(comm: Communicator, x: Any, op: RedOp = RedOp.SUM) -> Any:
    """Return the reduction of all ranks' arrays. Sends 2 (n-1)/n S bytes in one all-reduce."""
    if comm.nranks == 1:
        return x
    return _result(comm, comm.allreduce(staged(comm, x), op=op))


def all_gathered(comm: Communicator, x: Any, axis: int = 0) -> Any:
    """Return all ranks' arrays, one after another along an axis.

    Sends (n-1) S bytes in one all-gather.
    """
    if comm.nranks == 1:
        return x
    with comm.compute() as xp:
        part = staged(comm, xp.moveaxis(x, axis, 0))
    whole = comm.empty((comm.nranks * part.shape[0], *part.shape[1:]), part.dtype)
    comm.allgather(part, whole)
    with comm.compute() as xp:
        return xp.moveaxis(xp.asarray(whole), 0, axis)


def reduce_scattered(comm: Communicator, x: Any, axis: int = 0, op: RedOp = RedOp.SUM) -> Any:
    """Return this rank's part, along an axis, of the reduction of all ranks' arrays.

    Sends (n-1)/n S bytes in one reduce-scatter.

    Raises:
        ValueError: the axis cannot be divided among the ranks evenly
    """
    if comm.nranks == 1:
        return x
    if x.shape[axis] % comm.nranks:
        raise ValueError(
            f"axis {axis} of shape {x.shape} cannot be divided among {comm.nranks} ranks evenly"
        )
    with comm.compute() as xp:
        whole = staged(comm, xp.moveaxis(x, axis, 0))
    part = comm.empty((whole.shape[0] // comm.nranks, *whole.shape[1:]), whole.dtype)
    comm.reduce_scatter(whole, part, op=op)
    with comm.compute() as xp:
        return xp.moveaxis(xp.asarray(part), 0, axis)
