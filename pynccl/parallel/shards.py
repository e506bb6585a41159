"""Parameters of which each rank holds a part, put together only while they are used.

Zhao et al. 2023, "PyTorch FSDP"; Rajbhandari et al. 2020, "ZeRO" (stage 3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy

from pynccl.communicator import Communicator
from pynccl.device_array import DeviceArray

__all__ = ["FlatLayout", "ShardedLayers"]


class FlatLayout:
    """Arrays one after another in a flat one, padded so that all ranks have as much of it.

    Args:
        shapes: of the arrays, by name
        nranks: number of ranks
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], nranks: int) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        size = sum(math.prod(shape) for shape in self.shapes.values())
        self.share = -(-size // nranks)
        self.padded = self.share * nranks

    def views(self, flat: Any) -> dict[str, Any]:
        """Return the arrays that lie in a flat array (numpy's or cupy's)."""
        views = {}
        start = 0
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            views[name] = flat[start:end].reshape(shape)
            start = end
        return views

    def pack(self, arrays: Mapping[str, Any], flat: Any) -> None:
        """Copy arrays to their places in a flat array."""
        for name, view in self.views(flat).items():
            view[...] = arrays[name]


class ShardedLayers:
    """The parameters and gradients of a model's layers, each rank holding its share of each layer.

    For layers of S bytes in total, a pass over them sends (n-1)/n S bytes from each rank, in one
    all-gather a layer; so does averaging their gradients, in one reduce-scatter a layer.

    Args:
        layers: the shapes of each layer's parameters, by name
        dtype: of parameters and gradients
        stream: where layers are gathered, beside the arithmetic; None for one of its own

    Attributes:
        shards: this rank's share of each layer's parameters
        gradients: this rank's share of each layer's gradients
    """

    def __init__(
        self,
        comm: Communicator,
        layers: Sequence[Mapping[str, Sequence[int]]],
        dtype: Any = "float32",
        stream: Any = None,
    ) -> None:
        self.comm = comm
        self.layouts = [FlatLayout(shapes, comm.nranks) for shapes in layers]
        self.shards = [comm.empty(layout.share, dtype) for layout in self.layouts]
        self.gradients = [comm.empty(layout.share, dtype) for layout in self.layouts]
        largest = max(layout.padded for layout in self.layouts)
        self._stream = comm.device.create_stream() if stream is None else stream
        self._room = [comm.empty(largest, dtype) for _ in range(2)]
        self._unreduced = comm.empty(largest, dtype)

    @property
    def nbytes(self) -> int:
        """Bytes that this rank holds: its shares, and the room for two layers and a gradient."""
        arrays = [*self.shards, *self.gradients, *self._room, self._unreduced]
        return sum(array.nbytes for array in arrays)

    def load(self, index: int, arrays: Mapping[str, numpy.typing.NDArray[Any]]) -> None:
        """Take this rank's share of a layer's parameters, given whole in host memory."""
        layout, shard = self.layouts[index], self.shards[index]
        flat = numpy.zeros(layout.padded, shard.dtype)
        layout.pack(arrays, flat)
        shard.set(flat[self.comm.rank * layout.share :][: layout.share])

    def in_turn(self, order: Sequence[int]) -> Iterator[tuple[int, DeviceArray]]:
        """Yield each layer's number and its whole parameters, the next being gathered meanwhile.

        Collective. There is room for two layers: an array is overwritten when the layer after the
        next is gathered, so views of it must not be kept.
        """
        gathered = self._gather(order[0], 0) if order else None
        for place, index in enumerate(order):
            whole = gathered
            self.comm.stream.wait(self._stream)
            if place + 1 < len(order):
                gathered = self._gather(order[place + 1], (place + 1) % 2)
            assert whole is not None
            yield index, whole

    def _gather(self, index: int, room: int) -> DeviceArray:
        whole = self._room[room][: self.layouts[index].padded]
        # The stream waits first for what is queued on the communicator's: the arithmetic with
        # what was there before.
        self.comm.allgather(self.shards[index], whole, stream=self._stream)
        return whole

    def reduce(self, index: int, gradients: Mapping[str, Any]) -> None:
        """Sum a layer's gradients over the ranks, and keep this rank's share. Collective."""
        layout = self.layouts[index]
        flat = self._unreduced[: layout.padded]
        with self.comm.compute() as xp:
            shared = xp.asarray(flat)
            layout.pack(gradients, shared)
            shared[sum(math.prod(shape) for shape in layout.shapes.values()) :] = 0
        self.comm.reduce_scatter(flat, self.gradients[index])

    def whole(self) -> list[dict[str, numpy.typing.NDArray[Any]]]:
        """Return all layers' parameters in host memory, on every rank. Collective; blocks."""
        return [
            self.layouts[index].views(flat.get())
            for index, flat in self.in_turn(range(len(self.layouts)))
        ]
