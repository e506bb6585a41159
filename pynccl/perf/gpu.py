"""One rank's GPU in a measurement: its buffers, its stream, and what is issued there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy

import pynccl
from pynccl import bindings, errors
from pynccl.perf.operations import Call, Operation, Shape
from pynccl.streams import check_driver
from pynccl.types import DataType

__all__ = ["Gpu", "Issue", "issue"]

Issue = Callable[[], int]


class Gpu:
    """Buffers of one rank, as large as the largest size asks for.

    Args:
        comm: the rank's communicator
        nbytes: size of the send and of the receive buffer
    """

    def __init__(self, comm: pynccl.Communicator, nbytes: int) -> None:
        self.comm = comm
        self.stream = comm._queue
        self.nbytes = nbytes
        self.device = comm.device
        self._buffers = [pynccl.mem_alloc(nbytes, self.device) for _ in range(2)]
        self.send, self.recv = (int(buffer.handle) for buffer in self._buffers)
        self._registered: list[Any] = []

    def register(self, how: int) -> None:
        """Register both buffers. All ranks do, in a group where a process has several.

        Args:
            how: 1 for ``ncclCommRegister``, 2 for symmetric windows
        """
        for pointer in (self.send, self.recv):
            buffer = (pointer, self.nbytes, "uint8")
            if how == 1:
                self._registered.append(self.comm.register_buffer(buffer))
            elif how == 2:
                self._registered.append(
                    self.comm.register_window(buffer, pynccl.WindowFlag.COLL_SYMMETRIC)
                )

    def close(self) -> None:
        """Deregister and free the buffers."""
        for registered in self._registered:
            registered.close()
        for buffer in self._buffers:
            pynccl.mem_free(buffer)

    def issues(
        self,
        operation: Operation,
        shape: Shape,
        datatype: DataType,
        op: Any,
        root: int,
        in_place: bool,
        shift: int,
    ) -> list[list[Issue]]:
        """Return the calls of one operation; those in one list belong in one group.

        Args:
            shift: bytes into both buffers at which it works
        """
        send, recv = self.pointers(shape, datatype.itemsize, in_place)
        rank, nranks = self.comm.rank, self.comm.nranks
        call = Call(
            send + shift, recv + shift, shape.count, datatype.itemsize, datatype, op, root, rank,
            nranks,
        )
        return [
            [self._bound(name, arguments) for name, arguments in step]
            for step in operation.steps(call)
        ]

    def pointers(self, shape: Shape, itemsize: int, in_place: bool) -> tuple[int, int]:
        """Return the addresses of a rank's input and output."""
        if not in_place:
            return self.send, self.recv
        rank = self.comm.rank
        return (
            self.recv + shape.send_in_place * itemsize * rank,
            self.recv + shape.recv_in_place * itemsize * rank,
        )

    def _bound(self, name: str, arguments: tuple[int, ...]) -> Issue:
        if name == "copy":
            return partial(self._copy, *arguments)
        return partial(getattr(bindings, name), *arguments, self.comm.ptr, self.stream)

    def _copy(self, target: int, source: int, nbytes: int) -> int:
        from cuda.bindings import driver

        self.device.set_current()
        check_driver(driver.cuMemcpyDtoDAsync(target, source, nbytes, self.stream), "copy")
        return 0

    def write(self, pointer: int, values: numpy.ndarray[Any, Any]) -> None:
        """Copy from the host, and wait."""
        from cuda.bindings import driver

        self.device.set_current()
        if values.nbytes:
            check_driver(driver.cuMemcpyHtoD(pointer, values.ctypes.data, values.nbytes), "write")

    def clear(self, pointer: int, nbytes: int) -> None:
        """Set bytes to zero, and wait."""
        from cuda.bindings import driver

        self.device.set_current()
        if nbytes:
            check_driver(driver.cuMemsetD8(pointer, 0, nbytes), "clear")
            check_driver(driver.cuCtxSynchronize(), "clear")

    def read(self, pointer: int, count: int, dtype: Any) -> numpy.ndarray[Any, Any]:
        """Copy to the host."""
        from cuda.bindings import driver

        host = numpy.empty(count, dtype)
        self.device.set_current()
        if host.nbytes:
            check_driver(driver.cuMemcpyDtoH(host.ctypes.data, pointer, host.nbytes), "read")
        return host


def issue(ranks: list[list[list[Issue]]]) -> None:
    """Issue one operation on all GPUs of the process.

    Args:
        ranks: what ``Gpu.issues`` returned, for each GPU
    """
    for steps in zip(*ranks):
        calls = [call for step in steps for call in step]
        if len(calls) == 1:
            code = calls[0]()
            if code:
                errors.check(code, "the operation")
            continue
        with pynccl.group():
            for call in calls:
                code = call()
                if code:
                    errors.check(code, "the operation")
