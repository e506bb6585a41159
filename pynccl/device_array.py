"""Arrays in GPU memory, for programs that use no array library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy
import numpy.typing

from pynccl import arrays, library
from pynccl.emulator import races
from pynccl.streams import check_driver, on_device

if TYPE_CHECKING:
    from cuda.core import Device

__all__ = ["Allocation", "DeviceArray"]


class Allocation:
    """GPU memory, freed when nothing refers to it any more.

    Freeing waits for the work that is queued on the GPU, as ``cuMemFree`` does.

    Args:
        nbytes: bytes to allocate; none are for 0
        device: ordinal of the GPU
    Raises:
        NCCLCudaError: the GPU's memory does not suffice
    """

    __slots__ = ("__weakref__", "_context", "_driver", "nbytes", "ptr")

    def __init__(self, nbytes: int, device: int) -> None:
        from cuda.bindings import driver

        self.ptr = 0
        self.nbytes = nbytes
        self._driver = driver
        if nbytes == 0:
            return
        with on_device(device):
            self._context = check_driver(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
            self.ptr = int(check_driver(driver.cuMemAlloc(nbytes), f"cuMemAlloc({nbytes})"))

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            # The thread that drops the last reference may have another GPU current, or none.
            self._driver.cuCtxPushCurrent(self._context)
            self._driver.cuMemFree(self.ptr)
            self._driver.cuCtxPopCurrent()


class DeviceArray:
    """A contiguous array of any shape in the memory of one GPU.

    Made by ``comm.empty`` and ``comm.asarray``. Its contents are made, and read by ``get``, in the
    order of the communicator's stream. ``cupy.asarray`` and ``torch.as_tensor`` share its memory;
    on the emulator ``numpy.asarray`` does.

    Attributes:
        shape, dtype, size, nbytes: as of a numpy array
        ptr: address on the GPU
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_memory",
        "_resolved",
        "_stream",
        "_wait",
        "dtype",
        "nbytes",
        "ptr",
        "shape",
        "size",
    )

    def __init__(
        self,
        ptr: int,
        shape: tuple[int, ...],
        dtype: numpy.dtype[Any],
        device: int,
        stream: int,
        memory: Any,
        wait: Callable[[], None],
    ) -> None:
        self.ptr = ptr
        self.shape = shape
        self.dtype = dtype
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize
        self._device = device
        self._stream = stream
        self._memory = memory
        self._wait = wait
        datatype, parts = arrays.datatype_of(dtype)
        self._resolved = arrays.Resolved(
            ptr, self.size * parts, int(datatype), parts, stream, device
        )

    @classmethod
    def allocate(
        cls,
        shape: int | tuple[int, ...],
        dtype: numpy.typing.DTypeLike,
        device: int,
        stream: int,
        wait: Callable[[], None],
    ) -> DeviceArray:
        """Return an array whose contents are whatever the memory holds.

        Raises:
            TypeError: NCCL has no such dtype
            ValueError: an extent is negative
            NCCLCudaError: the GPU's memory does not suffice
        """
        extents = (shape,) if isinstance(shape, int) else tuple(int(extent) for extent in shape)
        if any(extent < 0 for extent in extents):
            raise ValueError(f"shape {extents}: extents must not be negative")
        known = arrays.numpy_dtype(dtype)
        arrays.datatype_of(known)
        memory = Allocation(math.prod(extents) * known.itemsize, device)
        return cls(memory.ptr, extents, known, device, stream, memory, wait)

    @property
    def device(self) -> Device:
        """The GPU that holds the array."""
        from cuda.core import Device

        return Device(self._device)

    def get(self) -> numpy.ndarray[Any, Any]:
        """Return a copy in host memory, after the work queued before this call. Blocks.

        Raises:
            NCCLRemoteError, NCCLTimeout: work that should have made the contents failed
        """
        self._wait()
        host = numpy.empty(self.shape, self.dtype)
        if self.nbytes:
            from cuda.bindings import driver

            with on_device(self._device):
                check_driver(
                    driver.cuMemcpyDtoHAsync(host.ctypes.data, self.ptr, self.nbytes, self._stream),
                    "cuMemcpyDtoHAsync",
                )
            self._wait()
        return host

    def set(self, values: numpy.typing.ArrayLike) -> None:
        """Fill with values from host memory, in the order of the stream.

        Returns when ``values`` may be changed.

        Args:
            values: anything that numpy broadcasts to the shape and casts to the dtype safely
        Raises:
            ValueError: the shape does not fit
        """
        host = numpy.asarray(values)
        if host.dtype != self.dtype or host.shape != self.shape or not host.flags.c_contiguous:
            fitting = numpy.empty(self.shape, self.dtype)
            fitting[...] = host
            host = fitting
        if not self.nbytes:
            return
        from cuda.bindings import driver

        with on_device(self._device):
            check_driver(
                driver.cuMemcpyHtoDAsync(self.ptr, host.ctypes.data, self.nbytes, self._stream),
                "cuMemcpyHtoDAsync",
            )

    def _view(self, offset: int, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> DeviceArray:
        return DeviceArray(
            self.ptr + offset, shape, dtype, self._device, self._stream, self._memory, self._wait
        )

    def __getitem__(self, key: int | slice) -> DeviceArray:
        """Return a view of a part along the first axis: ``a[3]``, ``a[lo:hi]``.

        Raises:
            TypeError: the key is neither an integer nor a slice
            IndexError: it lies outside
            ValueError: the slice has a step
        """
        if not self.shape:
            raise IndexError("an array without axes has no parts")
        extent = self.shape[0]
        row = self.nbytes // extent if extent else 0
        if isinstance(key, slice):
            start, stop, step = key.indices(extent)
            if step != 1:
                raise ValueError(f"step {step} would make a part that is not contiguous")
            stop = max(start, stop)
            return self._view(start * row, (stop - start, *self.shape[1:]), self.dtype)
        if isinstance(key, (int, numpy.integer)):
            index = int(key) + extent if key < 0 else int(key)
            if not 0 <= index < extent:
                raise IndexError(f"index {key} is outside the first axis, of extent {extent}")
            return self._view(index * row, self.shape[1:], self.dtype)
        raise TypeError(f"index {key!r}: only integers and slices of the first axis make views")

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view of another shape and the same size; one extent may be -1.

        Raises:
            ValueError: the sizes differ
        """
        extents = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        known = numpy.broadcast_to(numpy.int8(0), self.shape).reshape(extents).shape
        return self._view(0, known, self.dtype)

    def view(self, dtype: numpy.typing.DTypeLike) -> DeviceArray:
        """Return a flat view of the same bytes as another dtype.

        Raises:
            ValueError: the bytes are no whole number of its elements
        """
        known = arrays.numpy_dtype(dtype)
        if self.nbytes % known.itemsize:
            raise ValueError(f"{self.nbytes} bytes are no whole number of {known}")
        return self._view(0, (self.nbytes // known.itemsize,), known)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<DeviceArray {self.shape} {self.dtype} on GPU {self._device} at {self.ptr:#x}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.ptr, False),
            "strides": None,
            "version": 3,
            "stream": self._stream or 1,
        }

    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> numpy.ndarray[Any, Any]:
        if library.backend() != "emulator":
            raise TypeError("the array is in GPU memory; get() copies it to the host")
        races.host_reads(self.ptr, self.nbytes)
        shared = numpy.asarray(_Bytes(self.ptr, self.nbytes, self._memory)).view(self.dtype)
        shared = shared.reshape(self.shape)
        if dtype is not None and numpy.dtype(dtype) != self.dtype:
            return shared.astype(dtype)
        return shared.copy() if copy else shared

    def __dlpack_device__(self) -> tuple[int, int]:
        on_cuda = 2
        return on_cuda, self._device

    def __dlpack__(self, **arguments: Any) -> Any:
        """Hand the memory to another library, as a GPU's, by the DLPack protocol.

        Raises:
            BufferError: the dtype is bfloat16 or a float8; pass ``view("uint8")``
        """
        from cuda.core import Buffer
        from cuda.core.utils import StridedMemoryView

        buffer = Buffer.from_handle(self.ptr, self.nbytes, owner=self._memory)
        view = StridedMemoryView.from_buffer(buffer, self.shape, dtype=self.dtype)
        return view.__dlpack__(**arguments)


class _Bytes:
    """Gives numpy the memory as bytes: it knows no other way to the types of ml_dtypes."""

    def __init__(self, ptr: int, nbytes: int, owner: Any) -> None:
        self.owner = owner
        if nbytes == 0:  # numpy wants a pointer, and never follows it
            ptr = 1
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (ptr, False),
            "version": 3,
        }


def _resolve(array: Any, argument: str) -> arrays.Resolved:
    return array._resolved  # type: ignore[no-any-return]


arrays.register(DeviceArray, _resolve)
