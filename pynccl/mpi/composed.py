"""MPI's collectives that NCCL has none for, composed of those that it has."""
# ruff: noqa: N802 - the names are MPI's

from __future__ import annotations

from typing import Any

import numpy
from mpi4py import MPI

from pynccl.arrays import numpy_dtype
from pynccl.communicator import Communicator
from pynccl.device_array import Allocation
from pynccl.mpi.buffers import Block, go_to_nccl, is_in_place, parts_by_type
from pynccl.mpi.collectives import CollectiveMethods
from pynccl.mpi.launches import Launch, numbers
from pynccl.mpi.packing import copy
from pynccl.streams import check_driver
from pynccl.types import DataType, RedOp

__all__ = ["ComposedMethods"]


class ComposedMethods(CollectiveMethods):
    """Prefix reductions, and the exchange with a datatype for each rank.

    A prefix reduction is a reduce-scatter in which a rank adds nothing to the parts of the ranks
    before it: each rank needs room for as many arrays as there are ranks, and sends as much.

    Raises:
        As the other collectives
    """

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce over the ranks up to this one (``ncclReduceScatter``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Scan(sendbuf, recvbuf, op)
        return self._block(self._scan(sendbuf, recvbuf, op, inclusive=True))

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Reduce over the ranks up to this one, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Iscan(sendbuf, recvbuf, op)
        return self._begin(self._scan(sendbuf, recvbuf, op, inclusive=True))

    def Scan_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Reduce over the ranks up to this one, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Scan_init(sendbuf, recvbuf, op, info)
        return self._persist(self._scan(sendbuf, recvbuf, op, inclusive=True))

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce over the ranks before this one; rank 0's ``recvbuf`` stays as it is."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Exscan(sendbuf, recvbuf, op)
        return self._block(self._scan(sendbuf, recvbuf, op, inclusive=False))

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Reduce over the ranks before this one, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Iexscan(sendbuf, recvbuf, op)
        return self._begin(self._scan(sendbuf, recvbuf, op, inclusive=False))

    def Exscan_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Reduce over the ranks before this one, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Exscan_init(sendbuf, recvbuf, op, info)
        return self._persist(self._scan(sendbuf, recvbuf, op, inclusive=False))

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange parts of any size, with a datatype for each rank (grouped messages)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Alltoallw(sendbuf, recvbuf)
        return self._block(self._alltoallw(sendbuf, recvbuf))

    def Ialltoallw(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Exchange parts of any size, with a datatype for each rank, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ialltoallw(sendbuf, recvbuf)
        return self._begin(self._alltoallw(sendbuf, recvbuf))

    def Alltoallw_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Exchange parts of any size, with a datatype for each rank, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Alltoallw_init(sendbuf, recvbuf, info)
        return self._persist(self._alltoallw(sendbuf, recvbuf))

    def _scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, inclusive: bool) -> Launch:
        send, recv, how = self._reduced(sendbuf, recvbuf, op)
        first = self.rank if inclusive else self.rank + 1

        def call(nccl: Communicator, queue: int) -> Any:
            room = Allocation(send.nbytes * self.size, nccl.device.device_id)
            nothing = _fill(room.ptr, send, how, min(first, self.size), queue)
            for rank in range(first, self.size):
                copy(room.ptr + rank * send.nbytes, send.ptr, send.nbytes, queue)
            target, spare = recv, None
            if first > self.rank == 0:
                spare = Allocation(recv.nbytes, nccl.device.device_id)
                target = recv._replace(ptr=spare.ptr)
            every = send._replace(ptr=room.ptr)
            nccl.reduce_scatter(numbers(every, self.size), numbers(target), how, stream=queue)
            return room, spare, nothing

        return self._launch(call, send, recv)

    def _alltoallw(self, sendbuf: Any, recvbuf: Any) -> Launch:
        recv = parts_by_type(recvbuf, "recvbuf", self.size)
        in_place = is_in_place(sendbuf)
        send = recv if in_place else parts_by_type(sendbuf, "sendbuf", self.size)
        return self._exchanged(send, recv)


def _fill(ptr: int, data: Block, how: RedOp, blocks: int, queue: int) -> Any:
    """Write what changes nothing in a reduction, as often; return what must be kept meanwhile."""
    from cuda.bindings import driver

    if not blocks * data.nbytes:
        return None
    assert data.element.datatype is not None, "reduction() has seen to that"
    number = blocks * data.items * data.element.parts
    nothing = numpy.full(number, _identity(data.element.datatype, how))
    check_driver(
        driver.cuMemcpyHtoDAsync(ptr, nothing.ctypes.data, nothing.nbytes, queue),
        "cuMemcpyHtoDAsync",
    )
    return nothing


def _identity(datatype: DataType, how: RedOp) -> Any:
    """Return the number, of the datatype, that changes nothing in a reduction."""
    dtype = numpy_dtype(datatype)
    if how in (RedOp.SUM, RedOp.PROD):
        return dtype.type(how == RedOp.PROD)
    if dtype.kind in "iu":
        limits = numpy.iinfo(dtype)
        return dtype.type(limits.max if how == RedOp.MIN else limits.min)
    import ml_dtypes

    number = dtype.type(numpy.inf if how == RedOp.MIN else -numpy.inf)
    if numpy.isinf(number):
        return number
    finite: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return finite.max if how == RedOp.MIN else finite.min  # an 8-bit type without infinities
