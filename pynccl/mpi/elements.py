"""What MPI's datatypes and operations are to NCCL."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from pynccl.arrays import datatype_of
from pynccl.mpi.layout import Layout, layout_of
from pynccl.types import DataType, RedOp

__all__ = ["REDUCTIONS", "Element", "element_of_array", "element_of_datatype", "reduction"]

REDUCTIONS: dict[str, RedOp] = {
    "SUM": RedOp.SUM,
    "PROD": RedOp.PROD,
    "MIN": RedOp.MIN,
    "MAX": RedOp.MAX,
}
"""MPI's operations that are NCCL's, by name, with NCCL's."""

LOGICAL: dict[str, RedOp] = {"LAND": RedOp.MIN, "LOR": RedOp.MAX}
"""MPI's operations on truth values, which are bytes of 0 and 1."""

_NAMES: dict[str, str] = {
    "LXOR": "exclusive or of truth values",
    "BAND": "bitwise and",
    "BOR": "bitwise or",
    "BXOR": "bitwise exclusive or",
    "MINLOC": "minimum and its place",
    "MAXLOC": "maximum and its place",
    "REPLACE": "replacement",
    "NO_OP": "no operation",
}


class Element(NamedTuple):
    """The elements of a buffer.

    Attributes:
        name: for errors
        itemsize: bytes of data in one
        datatype: NCCL's, where it has one; else they are only moved, as bytes
        parts: elements of ``datatype`` in one: 2 for complex numbers
        logical: whether they are truth values
        layout: where the data of one lies, if there are gaps in it or to the next one; else None
    """

    name: str
    itemsize: int
    datatype: DataType | None
    parts: int = 1
    logical: bool = False
    layout: Layout | None = None

    @property
    def extent(self) -> int:
        """Bytes from one to the next."""
        return self.itemsize if self.layout is None else self.layout.extent


def _element(code: str, name: str, itemsize: int) -> Element:
    """Return the element for a numpy type code."""
    if code in ("b1", "|b1"):
        return Element(name, 1, DataType.UINT8, 1, logical=True)
    try:
        datatype, parts = datatype_of(numpy.dtype(code))
    except TypeError:
        return Element(name, itemsize, None)
    return Element(name, itemsize, datatype, parts)


def element_of_array(dtype: Any, itemsize: int) -> Element:
    """Return the element for an array's dtype, or its type code."""
    try:
        datatype, parts = datatype_of(dtype)
    except TypeError:
        return Element(str(dtype), itemsize, None)
    logical = str(dtype) in ("bool", "|b1", "torch.bool")
    return Element(str(dtype), datatype.itemsize * parts, datatype, parts, logical)


_predefined: dict[int, Element] = {}
_keyval = MPI.KEYVAL_INVALID


def element_of_datatype(datatype: Any) -> Element:
    """Return the element for one of MPI's datatypes. One that is derived is moved as bytes.

    Raises:
        TypeError: it is null, or made in a way that is not known here
    """
    global _keyval
    known = _predefined.get(datatype.handle)
    if known is not None:
        return known
    if datatype == MPI.DATATYPE_NULL:
        raise TypeError("the datatype is MPI.DATATYPE_NULL")
    if datatype.is_predefined:
        found = _predefined[datatype.handle] = _of_predefined(datatype)
        return found
    if _keyval == MPI.KEYVAL_INVALID:
        _keyval = MPI.Datatype.Create_keyval()
    kept: Element | None = datatype.Get_attr(_keyval)  # goes with the datatype
    if kept is None:
        kept = _of_layout(layout_of(datatype), datatype.name or "a derived datatype")
        datatype.Set_attr(_keyval, kept)
    return kept


def _of_predefined(datatype: Any) -> Element:
    name = datatype.name.removeprefix("MPI_")
    if datatype.size != datatype.extent:
        return _of_layout(layout_of(datatype), name)
    no_numbers = datatype in (MPI.BYTE, MPI.PACKED, MPI.CHAR, MPI.WCHAR, MPI.LOGICAL)
    return _element("V" if no_numbers else datatype.typestr, name, datatype.extent)


def _of_layout(layout: Layout, name: str) -> Element:
    return Element(name, layout.size, None, layout=None if layout.is_dense else layout)


def reduction(op: Any, element: Element) -> RedOp:
    """Return NCCL's reduction for one of MPI's on elements.

    Raises:
        TypeError: NCCL has no such reduction, or cannot add such elements
    """
    name = next((name for name in _OPS if _OPS[name] == op), None)
    if name is None:
        raise TypeError("op is a user's own function; NCCL has only SUM, PROD, MIN and MAX")
    if element.logical:
        if name in LOGICAL:
            return LOGICAL[name]
        raise TypeError(f"op MPI.{name}: truth values are reduced with LAND and LOR only")
    if name not in REDUCTIONS:
        meaning = _NAMES.get(name, "truth values other than bool")
        raise TypeError(f"op MPI.{name} ({meaning}): NCCL has only SUM, PROD, MIN and MAX")
    if element.datatype is None:
        raise TypeError(
            f"{element.name}: NCCL has no arithmetic for it; it has for integers of 8, 32 and 64 "
            "bits, and floating-point and complex numbers"
        )
    if element.parts != 1 and name != "SUM":
        raise TypeError(f"op MPI.{name}: complex numbers are reduced with SUM only")
    return REDUCTIONS[name]


_OPS = {name: getattr(MPI, name) for name in (*REDUCTIONS, *LOGICAL, *_NAMES)}
