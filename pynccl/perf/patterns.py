"""What ranks send in a check, and what they must receive, reckoned with numpy on the host.

Contents repeat after a block of a prime number of elements, so that large buffers are quick to
fill while a part in the wrong place still shows. What is reduced is chosen so that the result is
exact in its type and in any order; only the average of floats is compared with a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from pynccl.arrays import numpy_dtype
from pynccl.perf import traffic
from pynccl.perf.operations import Shape
from pynccl.types import DataType

__all__ = ["Pattern", "scalar_of"]

Array = numpy.ndarray[Any, Any]

PERIOD = 65521
# The largest whole number up to which a type has all of them.
_EXACT = {
    DataType.INT8: 127,
    DataType.UINT8: 255,
    DataType.FLOAT16: 2048,
    DataType.BFLOAT16: 256,
    DataType.FLOAT8_E4M3: 16,
    DataType.FLOAT8_E5M2: 8,
}
_EPSILON = {
    DataType.FLOAT16: 2.0**-10,
    DataType.FLOAT32: 2.0**-23,
    DataType.FLOAT64: 2.0**-52,
    DataType.BFLOAT16: 2.0**-7,
    DataType.FLOAT8_E4M3: 2.0**-3,
    DataType.FLOAT8_E5M2: 2.0**-2,
}


def scalar_of(rank: int) -> int:
    """Return what a rank's elements are multiplied by in ``mulsum``."""
    return 1 + rank % 2


class Pattern:
    """Inputs and results of one operation.

    Args:
        operation: its name
        reduction: nccl-tests' name of the reduction
        datatype: NCCL's
        nranks: number of ranks
        root: the root, where there is one
        seed: another gives other contents
    """

    def __init__(
        self,
        operation: str,
        reduction: str,
        datatype: DataType,
        nranks: int,
        root: int,
        seed: int,
    ) -> None:
        self.operation = operation
        self.reduction = reduction
        self.datatype = datatype
        self.dtype = numpy_dtype(datatype)
        self.nranks = nranks
        self.root = root
        self.seed = seed
        self.reduces = operation in ("all_reduce", "reduce_scatter", "reduce")

    def sent(self, rank: int, count: int) -> Array:
        """Return what a rank has in its send buffer."""
        return _repeated(self._block(rank), 0, count)

    def received(self, rank: int, shape: Shape) -> Array | None:
        """Return what a rank must have in the end; None where nothing is received."""
        everyone = range(self.nranks)
        if self.operation in ("reduce", "gather") and rank != self.root:
            return None
        if self.reduces:
            offset = rank * shape.recv if self.operation == "reduce_scatter" else 0
            return _repeated(self._reduced(), offset, shape.recv)
        if self.operation == "broadcast":
            return self.sent(self.root, shape.recv)
        if self.operation == "scatter":
            return _repeated(self._block(self.root), rank * shape.recv, shape.recv)
        if self.operation == "sendrecv":
            return self.sent((rank - 1) % self.nranks, shape.recv)
        if self.operation == "alltoall":
            starts, counts = [rank * shape.count] * self.nranks, [shape.count] * self.nranks
        elif self.operation == "alltoallv":
            table = traffic.elements(shape.count, self.dtype.itemsize, self.nranks)
            starts = [sum(row[:rank]) for row in table]
            counts = [row[rank] for row in table]
        else:  # gathers
            starts, counts = [0] * self.nranks, [shape.count] * self.nranks
        return numpy.concatenate(
            [_repeated(self._block(peer), starts[peer], counts[peer]) for peer in everyone]
        )

    def wrong(self, result: Array, expected: Array) -> int:
        """Count the elements that are not what they must be."""
        if self.reduction == "avg" and self.reduces and self.datatype in _EPSILON:
            want = expected.astype(numpy.float64)
            tolerance = (self.nranks + 1) * _EPSILON[self.datatype] * numpy.abs(want)
            near = numpy.abs(result.astype(numpy.float64) - want) <= tolerance
            return int(near.size - numpy.count_nonzero(near))
        whole = numpy.dtype(f"u{self.dtype.itemsize}")
        return int(numpy.count_nonzero(result.view(whole) != expected.view(whole)))

    def _block(self, rank: int) -> Array:
        """Return a period of what a rank sends."""
        bits = _scrambled(self.seed, rank)
        if not self.reduces:
            width = self.dtype.itemsize
            whole: Array = numpy.resize(bits.view(numpy.uint8), PERIOD * width)
            return whole.view(self.dtype)
        return self._operand(rank, bits).astype(self.dtype)

    def _operand(self, rank: int, bits: Array) -> Array:
        limit = _EXACT.get(self.datatype, 1 << 20)
        if self.reduction == "prod":
            return self._factor(rank)
        if self.reduction in ("max", "min"):
            return (bits % (limit + 1)).astype(numpy.int64)
        largest = limit // (2 * self.nranks)  # ranks may be multiplied by two
        if largest:
            return (bits % (largest + 1)).astype(numpy.int64)
        # More ranks than the type can count: at each place only some of them add one.
        common = _scrambled(self.seed, self.nranks)
        one_in = -(-2 * self.nranks // limit) * (2 + common % 3)
        chosen: Array = (rank + common // 7) % one_in == 0
        return chosen.astype(numpy.int64)

    def _factor(self, rank: int) -> Array:
        """Two on up to three ranks in a place, and one on the others."""
        common = _scrambled(self.seed, self.nranks)
        twos = common % (min(self.nranks, 3) + 1)
        position = (rank + common // 7) % self.nranks
        return numpy.where(position < twos, 2, 1)

    def _reduced(self) -> Array:
        blocks = [self._operand(rank, _scrambled(self.seed, rank)) for rank in range(self.nranks)]
        if self.reduction == "mulsum":
            blocks = [block * scalar_of(rank) for rank, block in enumerate(blocks)]
        result: Array = blocks[0]
        for block in blocks[1:]:
            result = _REDUCE[self.reduction](result, block)
        if self.reduction == "avg":
            whole = self.datatype not in _EPSILON
            result = result // self.nranks if whole else result / self.nranks
        return result.astype(self.dtype)


_REDUCE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": numpy.add,
    "mulsum": numpy.add,
    "avg": numpy.add,
    "prod": numpy.multiply,
    "max": numpy.maximum,
    "min": numpy.minimum,
}


def _scrambled(seed: int, rank: int) -> Array:
    """Return PERIOD numbers of 32 bits without visible order."""
    first = (seed * 0x9E3779B1 + rank * 0x85EBCA77) & 0xFFFFFFFF
    bits = numpy.arange(PERIOD, dtype=numpy.uint32) * numpy.uint32(0xC2B2AE3D)
    bits += numpy.uint32(first)
    bits ^= bits >> numpy.uint32(15)
    bits *= numpy.uint32(0x27D4EB2F)
    bits ^= bits >> numpy.uint32(13)
    return bits


def _repeated(block: Array, offset: int, count: int) -> Array:
    """Return elements ``offset`` to ``offset + count`` of a block that repeats for ever."""
    start = offset % block.size
    return numpy.resize(numpy.concatenate([block[start:], block[:start]]), count)
