"""mpi4py's buffer specifications, for arrays on a GPU."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from pynccl.arrays import resolve
from pynccl.mpi.elements import Element, element_of_array, element_of_datatype
from pynccl.mpi.layout import Layout, one_run

__all__ = [
    "Block",
    "Parts",
    "Place",
    "block",
    "go_to_nccl",
    "is_in_place",
    "is_on_gpu",
    "parts",
    "parts_by_type",
]

_InPlace = type(MPI.IN_PLACE)
_ON_HOST: set[type] = {numpy.ndarray, bytes, bytearray, memoryview, MPI.buffer, type(None)}
_CUDA, _CUDA_MANAGED = 2, 13


def is_on_gpu(spec: Any) -> bool:
    """Tell whether a buffer specification speaks of an array on a GPU."""
    buffer = spec[0] if type(spec) in (list, tuple) and spec else spec
    if type(buffer) in _ON_HOST:
        return False
    if hasattr(buffer, "__cuda_array_interface__"):
        return True
    device = getattr(buffer, "__dlpack_device__", None)
    return device is not None and device()[0] in (_CUDA, _CUDA_MANAGED)


def go_to_nccl(**buffers: Any) -> bool:
    """Tell whether buffers are on a GPU; those that are None or in place follow the others.

    Raises:
        TypeError: one is and another is not
    """
    places = {name: is_on_gpu(spec) for name, spec in buffers.items() if not is_in_place(spec)}
    found = set(places.values())
    if len(found) == 2:
        there = next(name for name, on_gpu in places.items() if on_gpu)
        here = next(name for name, on_gpu in places.items() if not on_gpu)
        raise TypeError(f"{there} is on a GPU and {here} is not; both must be on the same side")
    return True in found


def is_in_place(spec: Any) -> bool:
    """Tell whether a buffer is ``MPI.IN_PLACE``, or None, which mpi4py takes for the same."""
    return spec is None or isinstance(spec, _InPlace)


class Array(NamedTuple):
    """An array on a GPU: its address, bytes, elements, and the stream that makes its contents."""

    ptr: int
    nbytes: int
    element: Element
    stream: int | None


class Place(NamedTuple):
    """Items of a datatype, ``offset`` bytes from an array's address."""

    layout: Layout
    items: int
    offset: int


class Block(NamedTuple):
    """Elements that follow one another.

    Attributes:
        ptr: address of the first
        items: how many; for each rank, where a collective has a block for each
        element: what they are
        stream: of the array; None where it names none
        array: kept until the operation is done
        blocks: how many blocks of ``items`` follow one another
    """

    ptr: int
    items: int
    element: Element
    stream: int | None
    array: Any
    blocks: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of data in ``items`` elements."""
        return self.items * self.element.itemsize

    @property
    def total(self) -> int:
        """Bytes of data in all blocks."""
        return self.items * self.element.itemsize * self.blocks

    @property
    def span(self) -> int:
        """Bytes that NCCL is told of, where there are no gaps."""
        return self.items * self.element.itemsize * self.blocks

    @property
    def places(self) -> tuple[Place, ...]:
        """Where the data of all blocks lies, if it has gaps; else empty."""
        layout = self.element.layout
        return () if layout is None else (Place(layout, self.items * self.blocks, 0),)

    def packed(self, ptr: int) -> Block:
        """Return as much data at another address, without gaps."""
        return self._replace(ptr=ptr, element=self.element._replace(layout=None))


class Parts(NamedTuple):
    """A part of an array for each rank, by counts and displacements in bytes.

    Attributes:
        places: of the parts' data, if one of them has gaps; else empty
    """

    ptr: int
    nbytes: int
    counts: list[int]
    displs: list[int]
    element: Element
    stream: int | None
    array: Any
    places: tuple[Place, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of data in all parts."""
        return sum(self.counts)

    @property
    def span(self) -> int:
        """Bytes that NCCL is told of, where there are no gaps: the whole array."""
        return self.nbytes

    def packed(self, ptr: int) -> Parts:
        """Return as much data at another address, without gaps, one part after the other."""
        ends = list(accumulate(self.counts))
        return self._replace(
            ptr=ptr,
            nbytes=ends[-1],
            displs=[0, *ends[:-1]],
            element=self.element._replace(layout=None),
            places=(),
        )


def block(spec: Any, argument: str, blocks: int = 1) -> Block:
    """Read ``buf``, ``[buf, count]``, ``[buf, type]``, ``[buf, count, type]`` and the like.

    Args:
        argument: what to call it in an error
        blocks: the count that is not given is that of one of so many
    Raises:
        TypeError: it is no such specification, or of a datatype that NCCL cannot move
        ValueError: a count or displacement does not fit the array
    """
    buffer, count, displ, datatype = _unpack(spec, argument, (list, tuple))
    array = _array(buffer, argument)
    element = _element(array, datatype)
    layout = element.layout
    offset = _index(displ, f"{argument}: displacement") * element.extent if displ else 0
    room = array.nbytes - offset
    if room < 0 or offset < 0:
        raise ValueError(f"{argument}: displacement {displ} lies outside its {array.nbytes} bytes")
    if count is None:
        number = _inferred(element, room, blocks, argument)
    else:
        number = _index(count, f"{argument}: count")
        if layout is None and number * max(blocks, 1) * element.itemsize > room:
            raise ValueError(
                f"{argument} has {room} bytes from its displacement on, too few for "
                f"{blocks} x {number} {element.name} of {element.itemsize} bytes"
            )
    found = Block(array.ptr + offset, number, element, array.stream, buffer, blocks)
    return found if layout is None else _checked(found, layout, offset, array.nbytes, argument)


def _inferred(element: Element, room: int, blocks: int, argument: str) -> int:
    """Return how many elements each of the blocks has that fill the room."""
    if not room:
        return 0
    extent = element.itemsize if element.layout is None else element.layout.extent
    if extent <= 0:
        raise ValueError(f"{argument}: a count is needed, {element.name} has no positive extent")
    number, rest = divmod(room, extent * max(blocks, 1))
    if rest:
        raise ValueError(
            f"{argument} has {room} bytes, which are no {blocks} equal blocks of {element.name} "
            f"({extent} bytes each); give a count"
        )
    return number


def _checked(data: Block, layout: Layout, offset: int, nbytes: int, argument: str) -> Block:
    """Return a block whose data lies in the array; without gaps where it has none after all."""
    items = data.items * data.blocks
    _check_reach(Place(layout, items, offset), nbytes, data.element, argument)
    if len(layout.runs.lengths) == 1 and (items < 2 or layout.size == layout.extent):
        return data.packed(data.ptr + layout.start)
    return data


def _check_reach(place: Place, nbytes: int, element: Element, argument: str) -> None:
    first, last = (place.offset + end for end in place.layout.reach(place.items))
    if first < 0 or last > nbytes:
        raise ValueError(
            f"{argument} has {nbytes} bytes; the data of {place.items} {element.name} at byte "
            f"{place.offset} would be in bytes {first} to {last - 1} (size {element.itemsize}, "
            f"extent {element.extent})"
        )


def parts(spec: Any, argument: str, nranks: int, whose: str = "rank") -> Parts:
    """Read ``[buf, counts]``, ``[buf, (counts, displs), type]`` and the like.

    Args:
        argument, whose: what to call the array, and who has a part each, in an error
    Raises:
        TypeError, ValueError: as of ``block``
    """
    buffer, counts, displs, datatype = _unpack(spec, argument, (tuple,))
    array = _array(buffer, argument)
    element = _element(array, datatype)
    if counts is None:
        have = _inferred(element, array.nbytes, 1, argument)
        sizes = [have // nranks + (have % nranks > rank) for rank in range(nranks)]
    else:
        sizes = _counts(counts, argument, nranks, whose)
    if displs is None:
        starts = [0, *accumulate(sizes)][:-1]
    elif isinstance(displs, (int, numpy.integer)):
        starts = [int(displs) * rank for rank in range(nranks)]
    else:
        starts = _list(displs, f"{argument}: displacements", nranks, whose)
    starts = [start * element.extent for start in starts]
    return _parts(buffer, array, [element] * nranks, sizes, starts, argument, whose)


def parts_by_type(spec: Any, argument: str, nranks: int, whose: str = "rank") -> Parts:
    """Read ``(buf, (counts, displs), types)`` and the like, with a datatype for each rank.

    Displacements are in bytes, as MPI has them there.

    Raises:
        TypeError, ValueError: as of ``block``
    """
    buffer, counts, displs, types = _unpack(spec, argument, (tuple,))
    if types is None:
        counts, types = None, counts
    if not isinstance(types, (list, tuple)) or len(types) != nranks:
        raise ValueError(f"{argument}: datatypes must be a list of {nranks}, one for each {whose}")
    array = _array(buffer, argument)
    numbers, starts = [1] * nranks, [0] * nranks
    if counts is not None:
        numbers = _list(counts, f"{argument}: counts", nranks, whose)
    if displs is not None:
        starts = _list(displs, f"{argument}: displacements", nranks, whose)
    elements = [_element(array, one) for one in types]
    return _parts(buffer, array, elements, numbers, starts, argument, whose)


def _parts(
    buffer: Any,
    array: Array,
    elements: list[Element],
    numbers: list[int],
    starts: list[int],
    argument: str,
    whose: str,
) -> Parts:
    """Return so many elements for each rank, that begin at so many bytes, once they are checked."""
    counts = [element.itemsize * number for element, number in zip(elements, numbers)]
    # A displacement where there is nothing may lie anywhere.
    displs = [start if count else 0 for count, start in zip(counts, starts)]
    places: tuple[Place, ...] = ()
    if any(element.layout is not None for element in elements):
        places = tuple(
            Place(one_run(count), 1, displ)
            if element.layout is None
            else Place(element.layout, number, displ)
            for element, number, count, displ in zip(elements, numbers, counts, displs)
        )
    for rank, (count, displ) in enumerate(zip(counts, displs)):
        if places:
            what = f"{argument}, part of {whose} {rank}:"
            _check_reach(places[rank], array.nbytes, elements[rank], what)
        elif displ + count > array.nbytes:
            raise ValueError(
                f"{argument} has {array.nbytes} bytes; the part of {whose} {rank} reaches to "
                f"{displ + count}"
            )
    element, stream = elements[0] if elements else array.element, array.stream
    return Parts(array.ptr, array.nbytes, counts, displs, element, stream, buffer, places)


def _unpack(spec: Any, argument: str, pairs: tuple[type, ...]) -> tuple[Any, Any, Any, Any]:
    """Return buffer, count, displacement and datatype, None for what is left out."""
    if type(spec) not in (list, tuple):
        return spec, None, None, None
    count = displ = datatype = None
    if len(spec) == 2:
        buffer, count = spec
        if isinstance(count, (MPI.Datatype, str)):
            count, datatype = None, count
    elif len(spec) == 3:
        buffer, count, datatype = spec
    elif len(spec) == 4:
        buffer, count, displ, datatype = spec
    else:
        raise ValueError(f"{argument}: a specification has 2 to 4 items, this one {len(spec)}")
    if isinstance(count, pairs) and len(spec) < 4:
        count, displ = count  # type: ignore[misc]
    return buffer, count, displ, datatype


def _array(buffer: Any, argument: str) -> Array:
    if buffer is None:
        return Array(0, 0, element_of_array("uint8", 1), None)
    if not is_on_gpu(buffer):
        resolve(buffer, argument)  # says what is wrong with it
    interface = None
    if not hasattr(buffer, "data_ptr") and not hasattr(buffer, "_resolved"):
        interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is None:
        found = resolve(buffer, argument)
        dtype = str(buffer.dtype).removeprefix("torch.") if hasattr(buffer, "dtype") else None
        element = element_of_array(found.datatype if dtype is None else dtype, 0)
        nbytes = found.count // found.parts * element.itemsize
        return Array(found.ptr, nbytes, element, found.stream)
    return _from_interface(interface, argument)


def _from_interface(interface: dict[str, Any], argument: str) -> Array:
    """Read an array of any type: what NCCL cannot add it can still move."""
    code = interface["typestr"]
    itemsize = int(code[2:]) * (4 if code[1] == "U" else 1)
    nbytes = itemsize
    for extent in interface["shape"]:
        nbytes *= extent
    strides = interface.get("strides")
    if strides is not None and nbytes:
        expected = itemsize
        for extent, stride in zip(reversed(interface["shape"]), reversed(strides)):
            if extent != 1 and stride != expected:
                raise ValueError(
                    f"{argument} is not contiguous (shape {tuple(interface['shape'])}, strides in "
                    f"bytes {tuple(strides)}); pass a contiguous copy"
                )
            expected *= extent
    return Array(
        interface["data"][0], nbytes, element_of_array(code, itemsize), interface.get("stream")
    )


def _element(array: Array, datatype: Any) -> Element:
    if datatype is None:
        return array.element
    if isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    return element_of_datatype(datatype)


def _counts(counts: Any, argument: str, nranks: int, whose: str) -> list[int]:
    if isinstance(counts, (int, numpy.integer)):
        return [_index(counts, f"{argument}: count")] * nranks
    return _list(counts, f"{argument}: counts", nranks, whose)


def _list(values: Sequence[Any], what: str, nranks: int, whose: str) -> list[int]:
    numbers = [_index(value, what) for value in values]
    if len(numbers) != nranks:
        raise ValueError(f"{what}: {len(numbers)} for {nranks} {whose}s")
    return numbers


def _index(value: Any, what: str) -> int:
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{what} {number} must not be negative")
    return number
