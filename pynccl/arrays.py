"""Any array on a GPU, as NCCL takes it: a pointer, a count and a data type."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy

from pynccl.streams import LEGACY
from pynccl.types import ELEMENT_TYPES, DataType

__all__ = ["Resolved", "datatype_of", "numpy_dtype", "resolve"]

# numpy's type codes: NCCL's data type, and how many of its elements make one of the array's.
_CODES: dict[str, tuple[DataType, int]] = {
    "|b1": (DataType.UINT8, 1),
    "<c8": (DataType.FLOAT32, 2),
    "<c16": (DataType.FLOAT64, 2),
}
for _datatype, _element in ELEMENT_TYPES.items():
    if _datatype not in (DataType.BFLOAT16, DataType.FLOAT8_E4M3, DataType.FLOAT8_E5M2):
        _CODES[numpy.dtype(_element.dtype).str] = (_datatype, 1)
# numpy knows these only by ml_dtypes, and by their names.
_NAMES: dict[str, tuple[DataType, int]] = {
    element.dtype: (datatype, 1) for datatype, element in ELEMENT_TYPES.items()
}


class Resolved:
    """A buffer as NCCL takes it.

    Attributes:
        ptr: address on the GPU
        count: number of elements of ``datatype``; two for each complex number
        datatype: the value of ``ncclDataType_t``
        parts: elements of ``datatype`` in one of the array's: 2 for complex types, else 1
        stream: handle of the array's own current stream, if it names one
        device: ordinal of its GPU, -1 where it is not known
        made_on: handle of a stream on which the contents are there; None where they are on all
    """

    __slots__ = ("count", "datatype", "device", "made_on", "parts", "ptr", "stream")

    def __init__(
        self,
        ptr: int,
        count: int,
        datatype: int,
        parts: int,
        stream: int | None,
        device: int,
        made_on: int | None = None,
    ) -> None:
        self.ptr = ptr
        self.count = count
        self.datatype = datatype
        self.parts = parts
        self.stream = stream
        self.device = device
        self.made_on = stream if made_on is None else made_on


def datatype_of(dtype: Any) -> tuple[DataType, int]:
    """Return NCCL's data type for a dtype, and how many of its elements make one of the dtype's.

    Args:
        dtype: a numpy or ml_dtypes dtype, its name, or a ``DataType``
    Raises:
        TypeError: NCCL has no such type
    """
    if isinstance(dtype, DataType):
        return dtype, 1
    if isinstance(dtype, str) and dtype in _NAMES:
        return _NAMES[dtype]
    try:
        known = numpy.dtype(dtype)
    except TypeError:
        known = None
    if known is not None:
        found = _CODES.get(known.str) or _NAMES.get(known.name)
        if found is not None:
            return found
    names = ", ".join(element.dtype for element in ELEMENT_TYPES.values())
    raise TypeError(f"dtype {dtype!r} has no NCCL type; these have: {names}, bool, complex64/128")


def numpy_dtype(dtype: Any) -> numpy.dtype[Any]:
    """Return the numpy dtype for a dtype, its name (also those of ml_dtypes), or a ``DataType``."""
    name = ELEMENT_TYPES[dtype].dtype if isinstance(dtype, DataType) else dtype
    if isinstance(name, str) and ("bfloat16" in name or "float8" in name):
        import ml_dtypes

        name = getattr(ml_dtypes, name)
    known: numpy.dtype[Any] = numpy.dtype(name)
    return known


def resolve(buffer: Any, argument: str = "buffer") -> Resolved:
    """Return what NCCL needs to know of a buffer.

    Args:
        buffer: an object with ``__cuda_array_interface__`` or ``__dlpack__``, a ``DeviceArray``,
            or ``(pointer, count, dtype)``
        argument: what to call it in an error
    Raises:
        TypeError: it lies in host memory, has no dtype, or one that NCCL lacks
        ValueError: it is not contiguous
    """
    try:
        resolver = _resolvers[type(buffer)]
    except KeyError:
        resolver = _resolver_for(buffer)
    return resolver(buffer, argument)


def register(kind: type, resolver: Callable[[Any, str], Resolved]) -> None:
    """Make ``resolve`` use a function for objects of exactly this type."""
    _resolvers[kind] = resolver


def _resolver_for(buffer: Any) -> Callable[[Any, str], Resolved]:
    """Return what resolves a buffer, and remember it where the type alone decides."""
    kind = type(buffer)
    if kind.__module__.partition(".")[0] == "torch" and hasattr(buffer, "data_ptr"):
        found = _from_torch
    elif hasattr(kind, "__cuda_array_interface__"):
        found = _from_interface
    elif hasattr(kind, "__dlpack__") and not isinstance(buffer, numpy.ndarray):
        found = _from_dlpack
    else:
        return _from_interface if hasattr(buffer, "__cuda_array_interface__") else _refuse
    _resolvers[kind] = found
    return found


def _from_spec(buffer: Any, argument: str) -> Resolved:
    if len(buffer) != 3 or not all(isinstance(n, (int, numpy.integer)) for n in buffer[:2]):
        raise TypeError(f"{argument} must be an array or (pointer, count, dtype), not {buffer!r}")
    pointer, count, dtype = int(buffer[0]), int(buffer[1]), buffer[2]
    datatype, parts = datatype_of(dtype)
    if pointer < 0 or count < 0:
        raise ValueError(f"{argument}: pointer {pointer} and count {count} must not be negative")
    if pointer == 0 and count > 0:
        raise ValueError(f"{argument}: the pointer is null and the count {count}")
    return Resolved(pointer, count * parts, datatype, parts, None, -1)


def _from_interface(buffer: Any, argument: str) -> Resolved:
    try:
        interface = buffer.__cuda_array_interface__
    except AttributeError:  # of an array that lies elsewhere, or has a type that it cannot tell
        return (_from_dlpack if hasattr(buffer, "__dlpack__") else _refuse)(buffer, argument)
    code = interface["typestr"]
    found = _CODES.get(code)
    if found is None:
        found = datatype_of(getattr(buffer, "dtype", code))
    datatype, parts = found
    shape = interface["shape"]
    count = 1
    for extent in shape:
        count *= extent
    strides = interface.get("strides")
    if strides is not None and count > 1:
        size = parts * ELEMENT_TYPES[datatype].itemsize
        _check_contiguous(shape, strides, size, argument, "strides in bytes")
    stream = interface.get("stream")
    return Resolved(interface["data"][0], count * parts, datatype, parts, stream, -1)


def _from_torch(buffer: Any, argument: str) -> Resolved:
    if not buffer.is_cuda:
        return _refuse(buffer, argument)
    if not buffer.is_contiguous():
        raise ValueError(f"{argument} is not contiguous; pass {argument}.contiguous()")
    datatype, parts = datatype_of(str(buffer.dtype).removeprefix("torch."))
    stream = sys.modules["torch"].cuda.current_stream(buffer.device).cuda_stream
    return Resolved(
        buffer.data_ptr(),
        buffer.numel() * parts,
        datatype,
        parts,
        stream,
        buffer.device.index,
    )


def _from_dlpack(buffer: Any, argument: str) -> Resolved:
    from cuda.core.utils import StridedMemoryView

    on_cuda, managed = 2, 13
    if buffer.__dlpack_device__()[0] not in (on_cuda, managed):
        return _refuse(buffer, argument)
    if type(buffer).__module__.startswith("cuda.core") and not hasattr(buffer, "dtype"):
        raise TypeError(
            f"{argument} is bytes without a dtype; pass (int(buffer.handle), count, dtype)"
        )
    # The producer makes this stream wait for what it has queued for the array.
    try:
        view = StridedMemoryView.from_dlpack(buffer, stream_ptr=LEGACY)
    except TypeError as error:  # cuda.core does not know float8
        raise TypeError(f"{argument}: {error}; pass (pointer, count, dtype)") from error
    datatype, parts = datatype_of(view.dtype)
    count = 1
    for extent in view.shape:
        count *= extent
    if view.strides is not None and count > 1:
        _check_contiguous(view.shape, view.strides, 1, argument, "strides in elements")
    return Resolved(view.ptr, count * parts, datatype, parts, None, view.device_id, LEGACY)


def _check_contiguous(
    shape: tuple[int, ...], strides: tuple[int, ...], step: int, argument: str, unit: str
) -> None:
    expected = step
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            raise ValueError(
                f"{argument} is not contiguous (shape {tuple(shape)}, {unit} {tuple(strides)}); "
                f"pass a contiguous copy, such as {argument}.copy()"
            )
        expected *= extent


def _refuse(buffer: Any, argument: str) -> Resolved:
    kind = type(buffer)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(buffer, numpy.ndarray) or hasattr(buffer, "__array_interface__"):
        reason = "is in host memory"
    elif hasattr(buffer, "__dlpack_device__"):
        reason = "is not on a GPU"
    else:
        raise TypeError(
            f"{argument} is a {name}; it must be an array on a GPU (with __cuda_array_interface__ "
            "or __dlpack__), or (pointer, count, dtype)"
        )
    raise TypeError(
        f"{argument} is a {name}, which {reason}; NCCL needs it on the GPU: "
        f"comm.asarray({argument}) copies it there"
    )


_resolvers: dict[type, Callable[[Any, str], Resolved]] = {tuple: _from_spec, list: _from_spec}
