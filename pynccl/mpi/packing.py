"""Copies on the GPU between data with gaps and data that lies together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy

from pynccl.mpi.buffers import Block, Parts
from pynccl.mpi.layout import Layout
from pynccl.streams import check_driver

__all__ = ["copy", "gather", "pack", "scatter", "unpack"]

# The largest distance between rows that the driver takes (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
MAX_PITCH = 2**31 - 1


def gather(data: Block | Parts, ptr: int, queue: int) -> None:
    """Queue copies of data, without the gaps in it, to contiguous memory at ``ptr``."""
    if not data.places:
        copy(ptr, data.ptr, data.total, queue)
    for place in data.places:
        pack(place.layout, place.items, data.ptr + place.offset, ptr, queue)
        ptr += place.items * place.layout.size


def scatter(data: Block | Parts, ptr: int, nbytes: int, queue: int) -> None:
    """Queue copies of so many bytes at ``ptr`` to where data with gaps belongs."""
    for place in data.places:
        some = min(place.items * place.layout.size, nbytes)
        unpack(place.layout, some, data.ptr + place.offset, ptr, queue)
        ptr, nbytes = ptr + some, nbytes - some


class Rows(NamedTuple):
    """Rows of ``width`` bytes: where the first is, and how far from each to the next.

    ``at`` and ``pitch`` are in the array, ``packed`` and ``packed_pitch`` in the packed data.
    """

    width: int
    number: int
    at: int
    pitch: int
    packed: int
    packed_pitch: int

    @property
    def is_one_copy(self) -> bool:
        """Whether the driver copies all of it at once."""
        return self.number == 1 or (
            self.width <= self.pitch <= MAX_PITCH and self.packed_pitch <= MAX_PITCH
        )


def copy(target: int, source: int, nbytes: int, queue: int) -> None:
    """Queue a copy on the GPU."""
    if nbytes and target != source:
        from cuda.bindings import driver

        check_driver(driver.cuMemcpyDtoDAsync(target, source, nbytes, queue), "cuMemcpyDtoDAsync")


def pack(layout: Layout, items: int, array: int, packed: int, queue: int) -> None:
    """Queue copies that gather the data of items at ``array`` in ``packed``.

    Args:
        array, packed: addresses on the GPU, of the first item and of ``items * layout.size`` bytes
        queue: stream
    Raises:
        NCCLCudaError: the driver refused one
    """
    _copy_rows(_rows(layout, items), array, packed, True, queue)


def unpack(layout: Layout, nbytes: int, array: int, packed: int, queue: int) -> None:
    """Queue copies of ``nbytes`` at ``packed`` to where items at ``array`` have their data.

    What lies between the data stays as it is. The last item need not be whole.

    Args, raises:
        as of ``pack``
    """
    items, rest = divmod(nbytes, layout.size) if layout.size else (0, 0)
    _copy_rows(_rows(layout, items), array, packed, False, queue)
    if rest:
        array, packed = array + items * layout.extent, packed + items * layout.size
        _copy_rows(_rows(layout.head(rest), 1), array, packed, False, queue)


def _rows(layout: Layout, items: int) -> list[Rows]:
    """Return what to copy: run by run over all items, or item by item, what takes fewer copies."""
    extent, size = layout.extent, layout.size
    item = [
        Rows(length, runs, at, stride, before, length)
        for at, before, length, runs, stride in layout.segments
    ]
    if items == 1:
        return item
    offsets, lengths = layout.runs
    one = Rows(int(lengths.max(initial=0)), items, 0, extent, 0, size)
    if one.is_one_copy and len(lengths) < items * sum(_copies(rows) for rows in item):
        before = numpy.cumsum(lengths) - lengths
        runs = zip(lengths.tolist(), offsets.tolist(), before.tolist())
        return [Rows(length, items, at, extent, packed, size) for length, at, packed in runs]
    return [
        rows._replace(at=rows.at + index * extent, packed=rows.packed + index * size)
        for index in range(items)
        for rows in item
    ]


def _copies(rows: Rows) -> int:
    return 1 if rows.is_one_copy else rows.number


def _copy_rows(copied: Iterable[Rows], array: int, packed: int, packing: bool, queue: int) -> None:
    """Queue copies from the array, where it is packed, or to it."""
    from cuda.bindings import driver

    area = driver.CUDA_MEMCPY2D()
    area.srcMemoryType = area.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    for rows in copied:
        at, beside = array + rows.at, packed + rows.packed
        if rows.number > 1 and rows.is_one_copy:
            area.WidthInBytes, area.Height = rows.width, rows.number
            if packing:
                area.srcDevice, area.srcPitch = at, rows.pitch
                area.dstDevice, area.dstPitch = beside, rows.packed_pitch
            else:
                area.srcDevice, area.srcPitch = beside, rows.packed_pitch
                area.dstDevice, area.dstPitch = at, rows.pitch
            check_driver(driver.cuMemcpy2DAsync(area, queue), "cuMemcpy2DAsync")
            continue
        for row in range(rows.number):
            source, target = at + row * rows.pitch, beside + row * rows.packed_pitch
            if not packing:
                source, target = target, source
            copy(target, source, rows.width, queue)
