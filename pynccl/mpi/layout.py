"""Where the data of MPI's datatypes lies in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

__all__ = ["Layout", "Runs", "Segment", "layout_of", "one_run"]

Numbers = numpy.ndarray[Any, numpy.dtype[numpy.int64]]


class Runs(NamedTuple):
    """Runs of bytes, in the order of the type map, which need not be memory's.

    None begins where the one before it ends.
    """

    offsets: Numbers
    lengths: Numbers


class Segment(NamedTuple):
    """So many runs of one length, ``stride`` bytes from each to the next.

    ``before`` are the bytes of data before it.
    """

    offset: int
    before: int
    length: int
    runs: int
    stride: int


class Layout:
    """Where the data of one item of a datatype lies, in bytes from the item's address.

    Attributes:
        runs: of data; what lies between them is no part of the item
        size: bytes of data
        extent: from one item to the next
        start, end: of the bytes that the data lies in, MPI's true lower and upper bound
    """

    def __init__(self, runs: Runs, extent: int) -> None:
        offsets, lengths = runs
        self.runs = runs
        self.extent = extent
        self.size = int(lengths.sum())
        self.start = int(offsets.min()) if self.size else 0
        self.end = int((offsets + lengths).max()) if self.size else 0

    @property
    def is_dense(self) -> bool:
        """Whether the data of items that follow one another lies together, from the first on."""
        return self.start == 0 and self.end == self.size == self.extent and len(self.runs[0]) < 2

    def reach(self, items: int) -> tuple[int, int]:
        """Return where the data of so many items begins and ends, from the first's address."""
        if not items * self.size:
            return 0, 0
        last = (items - 1) * self.extent
        return self.start + min(0, last), self.end + max(0, last)

    def head(self, nbytes: int) -> Layout:
        """Return the layout of an item's first bytes of data."""
        offsets, lengths = self.runs
        before = numpy.cumsum(lengths) - lengths
        return Layout(_joined(offsets, numpy.clip(nbytes - before, 0, lengths)), self.extent)

    @cached_property
    def segments(self) -> list[Segment]:
        """The runs, together where they follow one another at equal distances."""
        offsets, lengths = self.runs
        strides, equal = numpy.diff(offsets), lengths[1:] == lengths[:-1]
        alike = equal[1:] & equal[:-1] & (strides[1:] == strides[:-1])
        before = numpy.cumsum(lengths) - lengths
        begins = [0, *(numpy.flatnonzero(~alike) + 1).tolist()] if len(strides) else []
        found: list[Segment] = []

        def add(first: int, runs: int) -> None:
            stride = int(strides[first]) if runs > 1 else 0
            where = int(offsets[first]), int(before[first])
            found.append(Segment(*where, int(lengths[first]), runs, stride))

        first = 0  # the run that comes next
        for begin, end in zip(begins, [*begins[1:], len(strides)]):
            # The runs begin to end lie at equal distances; the first may be in a segment already.
            if first < end:
                count = end + 1 - first if equal[begin] else 1
                add(first, count)
                first += count
        if first < len(offsets):
            add(first, 1)
        return found


def layout_of(datatype: Any) -> Layout:
    """Return the layout of one of MPI's datatypes.

    Raises:
        TypeError: it is made in a way that is not known here
    """
    if datatype.is_predefined:
        return Layout(_predefined(datatype), datatype.extent)
    base, combiner, values = datatype.decode()
    place = _COMBINERS.get(combiner)
    bases = values.get("datatypes", [base])
    try:
        if place is None:
            raise TypeError(f"a datatype that is made by MPI_COMBINER_{combiner} is not known")
        runs = place(values, *(layout_of(one) for one in bases))
    finally:
        for one in bases:  # decoding has made them anew
            if not one.is_predefined:
                one.Free()
    return Layout(runs, datatype.extent)


def one_run(nbytes: int) -> Layout:
    """Return the layout of bytes that lie together."""
    return Layout(_runs([0], [nbytes]), nbytes)


def _predefined(datatype: Any) -> Runs:
    """Return the runs of a number, or of one of MPI's pairs of a number and an int."""
    size = datatype.size
    if size == datatype.extent:
        return _runs([0], [size])
    second = MPI.INT.size
    first = size - second
    return _joined(*_runs([0, -(-first // second) * second], [first, second]))


def _place(base: Runs, pitch: int, firsts: Any, counts: Any) -> Runs:
    """Place blocks of items, at ``firsts`` in bytes; in a block they lie ``pitch`` bytes apart."""
    starts = numpy.asarray(firsts, numpy.int64)
    numbers = numpy.broadcast_to(numpy.asarray(counts, numpy.int64), starts.shape)
    if len(base.lengths) == 1 and base.lengths[0] == pitch:
        return _joined(starts + base.offsets, numbers * pitch)
    within = numpy.arange(numbers.sum()) - numpy.repeat(numpy.cumsum(numbers) - numbers, numbers)
    places = numpy.repeat(starts, numbers) + within * pitch
    offsets = places[:, None] + base.offsets
    return _joined(offsets.ravel(), numpy.tile(base.lengths, len(places)))


def _joined(offsets: Numbers, lengths: Numbers) -> Runs:
    """Return runs of which none is empty, nor begins where the one before it ends."""
    filled = lengths > 0
    offsets, lengths = offsets[filled], lengths[filled]
    if len(offsets) < 2:
        return Runs(offsets, lengths)
    begins = offsets[1:] != offsets[:-1] + lengths[:-1]
    starts = numpy.concatenate([[0], numpy.flatnonzero(begins) + 1])
    return Runs(offsets[starts], numpy.add.reduceat(lengths, starts))


def _runs(offsets: Any, lengths: Any) -> Runs:
    return Runs(numpy.asarray(offsets, numpy.int64), numpy.asarray(lengths, numpy.int64))


# How the combiners of MPI place items: each takes what it was made with, and the layouts of what
# it was made of.


def _same(values: dict[str, Any], base: Layout) -> Runs:
    return base.runs


def _contiguous(values: dict[str, Any], base: Layout) -> Runs:
    return _place(base.runs, base.extent, [0], values["count"])


def _vector(unit: Callable[[Layout], int]) -> Callable[..., Runs]:
    def place(values: dict[str, Any], base: Layout) -> Runs:
        firsts = numpy.arange(values["count"]) * (values["stride"] * unit(base))
        return _place(base.runs, base.extent, firsts, values["blocklength"])

    return place


def _indexed(unit: Callable[[Layout], int], blocks: str) -> Callable[..., Runs]:
    def place(values: dict[str, Any], base: Layout) -> Runs:
        firsts = numpy.asarray(values["displacements"], numpy.int64) * unit(base)
        return _place(base.runs, base.extent, firsts, values[blocks])

    return place


def _struct(values: dict[str, Any], *members: Layout) -> Runs:
    placed = [
        _place(member.runs, member.extent, [first], count)
        for member, first, count in zip(members, values["displacements"], values["blocklengths"])
    ]
    return _joined(*(numpy.concatenate(one) for one in zip(_runs([], []), *placed)))


def _subarray(values: dict[str, Any], base: Layout) -> Runs:
    sizes = zip(values["sizes"], values["starts"], values["subsizes"])
    axes = [Axis(size, [start], [part]) for size, start, part in sizes]
    return _grid(base, axes, values["order"])


def _darray(values: dict[str, Any], base: Layout) -> Runs:
    places = numpy.unravel_index(values["rank"], values["psizes"])
    axes = [
        _distributed(size, how, argument, parts, int(place))
        for size, how, argument, parts, place in zip(
            *(values["gsizes"], values["distribs"], values["dargs"], values["psizes"], places)
        )
    ]
    return _grid(base, axes, values["order"])


class Axis(NamedTuple):
    """Blocks of indices along one axis of an array of ``size``."""

    size: int
    firsts: Any
    counts: Any


def _distributed(size: int, how: int, argument: int, parts: int, place: int) -> Axis:
    """Return the indices that one of the parts has, of an axis that is distributed as HPF does."""
    if how == MPI.DISTRIBUTE_NONE:
        return Axis(size, [0], [size])
    length = argument
    if argument == MPI.DISTRIBUTE_DFLT_DARG:
        length = 1 if how == MPI.DISTRIBUTE_CYCLIC else -(-size // parts)
    firsts = numpy.arange(place * length, size, parts * length)
    return Axis(size, firsts, numpy.minimum(length, size - firsts))


def _grid(base: Layout, axes: Iterable[Axis], order: int) -> Runs:
    """Place blocks along each axis, the fastest first."""
    runs, pitch = base.runs, base.extent
    for axis in reversed(list(axes)) if order == MPI.ORDER_C else axes:
        runs = _place(runs, pitch, numpy.asarray(axis.firsts) * pitch, axis.counts)
        pitch *= axis.size
    return runs


def _extent(base: Layout) -> int:
    return base.extent


def _byte(base: Layout) -> int:
    return 1


_COMBINERS: dict[str, Callable[..., Runs]] = {
    "DUP": _same,
    "RESIZED": _same,
    "CONTIGUOUS": _contiguous,
    "VECTOR": _vector(_extent),
    "HVECTOR": _vector(_byte),
    "INDEXED": _indexed(_extent, "blocklengths"),
    "HINDEXED": _indexed(_byte, "blocklengths"),
    "INDEXED_BLOCK": _indexed(_extent, "blocklength"),
    "HINDEXED_BLOCK": _indexed(_byte, "blocklength"),
    "STRUCT": _struct,
    "SUBARRAY": _subarray,
    "DARRAY": _darray,
}
