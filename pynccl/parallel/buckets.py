"""Gradients summed over the ranks in a few large all-reduces, while others are still being made.

Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pynccl.communicator import Communicator

__all__ = ["GradientBuckets"]


class GradientBuckets:
    """Arrays of known shapes that are summed over the ranks as soon as a bucket of them is full.

    For S bytes of arrays, n ranks each send 2 (n-1)/n S bytes, in one all-reduce a bucket.

    Args:
        shapes: of the arrays, in the order in which they will be added
        dtype: of all arrays
        bucket_bytes: after how many bytes a bucket is full
        stream: where the sums are made, beside the arithmetic; None for one of its own
    """

    def __init__(
        self,
        comm: Communicator,
        shapes: Sequence[Sequence[int]],
        dtype: Any = "float32",
        bucket_bytes: int = 1 << 22,
        stream: Any = None,
    ) -> None:
        self.comm = comm
        self.shapes = [tuple(shape) for shape in shapes]
        self._stream = comm.device.create_stream() if stream is None else stream
        self._flat = comm.empty(sum(math.prod(shape) for shape in self.shapes), dtype)
        self._next = 0
        self._starts = [0]
        self._buckets: dict[int, slice] = {}
        begun = 0
        for number, shape in enumerate(self.shapes):
            end = self._starts[-1] + math.prod(shape)
            self._starts.append(end)
            full = (end - begun) * self._flat.dtype.itemsize >= bucket_bytes
            if full or number == len(self.shapes) - 1:
                self._buckets[number] = slice(begun, end)
                begun = end

    @property
    def calls(self) -> int:
        """Number of all-reduces."""
        return len(self._buckets)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._flat.nbytes

    def add(self, array: Any) -> None:
        """Take the next array. Collective where it fills a bucket.

        Raises:
            ValueError: it is not of the shape that was said, or none is expected
        """
        number = self._next
        if number == len(self.shapes) or tuple(array.shape) != self.shapes[number]:
            expected = self.shapes[number] if number < len(self.shapes) else "no more"
            raise ValueError(f"array {number} has shape {array.shape}; expected was {expected}")
        with self.comm.compute() as xp:
            place = slice(self._starts[number], self._starts[number + 1])
            xp.asarray(self._flat)[place] = array.reshape(-1)
        self._next += 1
        if number in self._buckets:
            # The stream waits first for what is queued on the communicator's.
            self.comm.allreduce(self._flat[self._buckets[number]], stream=self._stream)

    def sums(self) -> list[Any]:
        """Return the sums, in the order added; they are overwritten by what is added next.

        Raises:
            ValueError: arrays are missing
        """
        if self._next != len(self.shapes):
            raise ValueError(f"{self._next} arrays were added; {len(self.shapes)} were expected")
        self._next = 0
        self.comm.stream.wait(self._stream)
        with self.comm.compute() as xp:
            flat = xp.asarray(self._flat)
            bounds = zip(self._starts, self._starts[1:])
            return [flat[a:b].reshape(shape) for (a, b), shape in zip(bounds, self.shapes)]
