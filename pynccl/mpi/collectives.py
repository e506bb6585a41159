"""MPI's collective buffer methods: through NCCL where the arrays are on a GPU, else as before."""
# ruff: noqa: N802 - the names are MPI's

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from mpi4py import MPI

from pynccl.communicator import Communicator
from pynccl.device_array import Allocation
from pynccl.mpi.buffers import Block, Parts, block, is_on_gpu, parts
from pynccl.mpi.elements import reduction
from pynccl.mpi.requests import Launched, request_for
from pynccl.mpi.shared import Event, Shared
from pynccl.streams import check_driver
from pynccl.types import DataType

__all__ = [
    "CollectiveMethods",
    "all_bytes",
    "copied",
    "copy",
    "go_to_nccl",
    "is_in_place",
    "numbers",
]

Spec = tuple[int, int, DataType]
_InPlace = type(MPI.IN_PLACE)
if TYPE_CHECKING:
    Base = MPI.Intracomm
else:
    Base = object


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


class Launch(NamedTuple):
    """What a collective needs: NCCL's communicator, and the stream that it works on."""

    nccl: Communicator
    queue: int


class CollectiveMethods(Base):
    """Collectives. Arrays on a GPU are this rank's; their stream order is kept by itself.

    A blocking method returns when its buffers may be used again; a nonblocking one returns a
    ``pynccl.mpi.Request``. Every rank's buffers are on GPUs, or none is.

    Raises:
        TypeError: NCCL lacks the operation or datatype, or a buffer is not on the GPU, or is on one
            rank and not on another (told where ``Shared.compares``)
        ValueError: counts do not fit
        NCCLError: NCCL failed
    """

    _shared: Shared

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Send from one rank to all (``ncclBroadcast``)."""
        if not self._agreed(go_to_nccl(buf=buf)):
            return super().Bcast(buf, root)
        return self._wait(self._bcast(buf, root))

    def Ibcast(self, buf: Any, root: int = 0) -> MPI.Request:
        """Send from one rank to all, nonblocking."""
        if not go_to_nccl(buf=buf):
            return super().Ibcast(buf, root)
        return self._request(self._bcast(buf, root))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce to all ranks (``ncclAllReduce``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Allreduce(sendbuf, recvbuf, op)
        return self._wait(self._allreduce(sendbuf, recvbuf, op))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Reduce to all ranks, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Iallreduce(sendbuf, recvbuf, op)
        return self._request(self._allreduce(sendbuf, recvbuf, op))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        """Reduce to one rank (``ncclReduce``)."""
        if not self._agreed(self._to_root(sendbuf, recvbuf, root)):
            return super().Reduce(sendbuf, recvbuf, op, root)
        return self._wait(self._reduce(sendbuf, recvbuf, op, root))

    def Ireduce(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0
    ) -> MPI.Request:
        """Reduce to one rank, nonblocking."""
        if not self._to_root(sendbuf, recvbuf, root):
            return super().Ireduce(sendbuf, recvbuf, op, root)
        return self._request(self._reduce(sendbuf, recvbuf, op, root))

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce, and leave each rank an equal part (``ncclReduceScatter``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Reduce_scatter_block(sendbuf, recvbuf, op)
        return self._wait(self._reduce_scatter_block(sendbuf, recvbuf, op))

    def Ireduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM
    ) -> MPI.Request:
        """Reduce, and leave each rank an equal part, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ireduce_scatter_block(sendbuf, recvbuf, op)
        return self._request(self._reduce_scatter_block(sendbuf, recvbuf, op))

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
    ) -> None:
        """Reduce, and leave each rank its part (grouped ``ncclReduce``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)
        return self._wait(self._reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    def Ireduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
    ) -> MPI.Request:
        """Reduce, and leave each rank its part, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ireduce_scatter(sendbuf, recvbuf, recvcounts, op)
        return self._request(self._reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather equal parts on all ranks (``ncclAllGather``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Allgather(sendbuf, recvbuf)
        return self._wait(self._allgather(sendbuf, recvbuf))

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Gather equal parts on all ranks, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Iallgather(sendbuf, recvbuf)
        return self._request(self._allgather(sendbuf, recvbuf))

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather parts of any size on all ranks (grouped ``ncclBroadcast``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Allgatherv(sendbuf, recvbuf)
        return self._wait(self._allgatherv(sendbuf, recvbuf))

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Gather parts of any size on all ranks, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Iallgatherv(sendbuf, recvbuf)
        return self._request(self._allgatherv(sendbuf, recvbuf))

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather equal parts on one rank (``ncclGather``, or grouped messages)."""
        if not self._agreed(self._to_root(sendbuf, recvbuf, root)):
            return super().Gather(sendbuf, recvbuf, root)
        return self._wait(self._gather(sendbuf, recvbuf, root))

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Gather equal parts on one rank, nonblocking."""
        if not self._to_root(sendbuf, recvbuf, root):
            return super().Igather(sendbuf, recvbuf, root)
        return self._request(self._gather(sendbuf, recvbuf, root))

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather parts of any size on one rank (grouped messages)."""
        if not self._agreed(self._to_root(sendbuf, recvbuf, root)):
            return super().Gatherv(sendbuf, recvbuf, root)
        return self._wait(self._gatherv(sendbuf, recvbuf, root))

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Gather parts of any size on one rank, nonblocking."""
        if not self._to_root(sendbuf, recvbuf, root):
            return super().Igatherv(sendbuf, recvbuf, root)
        return self._request(self._gatherv(sendbuf, recvbuf, root))

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give each rank an equal part (``ncclScatter``, or grouped messages)."""
        if not self._agreed(self._to_root(recvbuf, sendbuf, root)):
            return super().Scatter(sendbuf, recvbuf, root)
        return self._wait(self._scatter(sendbuf, recvbuf, root))

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Give each rank an equal part, nonblocking."""
        if not self._to_root(recvbuf, sendbuf, root):
            return super().Iscatter(sendbuf, recvbuf, root)
        return self._request(self._scatter(sendbuf, recvbuf, root))

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give each rank a part of any size (grouped messages)."""
        if not self._agreed(self._to_root(recvbuf, sendbuf, root)):
            return super().Scatterv(sendbuf, recvbuf, root)
        return self._wait(self._scatterv(sendbuf, recvbuf, root))

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Give each rank a part of any size, nonblocking."""
        if not self._to_root(recvbuf, sendbuf, root):
            return super().Iscatterv(sendbuf, recvbuf, root)
        return self._request(self._scatterv(sendbuf, recvbuf, root))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange equal parts (``ncclAlltoAll``, or grouped messages)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Alltoall(sendbuf, recvbuf)
        return self._wait(self._alltoall(sendbuf, recvbuf))

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Exchange equal parts, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ialltoall(sendbuf, recvbuf)
        return self._request(self._alltoall(sendbuf, recvbuf))

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange parts of any size (grouped messages)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Alltoallv(sendbuf, recvbuf)
        return self._wait(self._alltoallv(sendbuf, recvbuf))

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Exchange parts of any size, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ialltoallv(sendbuf, recvbuf)
        return self._request(self._alltoallv(sendbuf, recvbuf))

    def _agreed(self, on_gpu: bool) -> bool:
        """Return it, after a comparison with the other ranks where that is switched on."""
        shared = self._shared
        if shared.compares:
            shared.compare(on_gpu)
        return on_gpu

    def _to_root(self, everywhere: Any, at_root: Any, root: int) -> bool:
        """Tell whether buffers are on a GPU, where one counts on the root only."""
        return go_to_nccl(sendbuf=everywhere, recvbuf=at_root if self.rank == root else None)

    def _launch(self, *blocks: Block | Parts) -> Launch:
        """Make ready to launch: after what makes the arrays' contents."""
        shared = self._shared
        nccl = shared.need(next((one for one in blocks if one.ptr), None), collective=True)
        shared.after(shared.queue, *blocks)
        return Launch(nccl, shared.queue)

    def _wait(self, keep: Any) -> None:
        self._shared.wait_for_collectives()

    def _request(self, keep: Any) -> MPI.Request:
        shared = self._shared
        return request_for(shared, Launched(Event(shared.queue), keep))

    # Each of these queues an operation, and returns what must be kept until it is done.

    def _bcast(self, buf: Any, root: int) -> Any:
        data = block(buf, "buf")
        nccl, queue = self._launch(data)
        nccl.broadcast(_bytes(data), root=root, stream=queue)
        return data

    def _reduced(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> tuple[Block, Block, Any]:
        recv = block(recvbuf, "recvbuf")
        send = recv if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        _check_equal(send, recv)
        return send, recv, reduction(op, send.element)

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> Any:
        send, recv, how = self._reduced(sendbuf, recvbuf, op)
        nccl, queue = self._launch(send, recv)
        nccl.allreduce(numbers(send), numbers(recv), how, stream=queue)
        return send, recv

    def _reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: int) -> Any:
        if self.rank == root:
            send, recv, how = self._reduced(sendbuf, recvbuf, op)
        else:
            send = recv = block(sendbuf, "sendbuf")
            how = reduction(op, send.element)
        nccl, queue = self._launch(send, recv)
        nccl.reduce(numbers(send), numbers(recv), how, root, stream=queue)
        return send, recv

    def _reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> Any:
        in_place = is_in_place(sendbuf)
        if in_place:
            send = recv = block(recvbuf, "recvbuf", self.size)
        else:
            send, recv = block(sendbuf, "sendbuf", self.size), block(recvbuf, "recvbuf")
            _check_equal(send, recv)
        how = reduction(op, send.element)
        nccl, queue = self._launch(send, recv)
        mine, spare = _beside(recv, nccl) if in_place else (recv, None)
        nccl.reduce_scatter(numbers(send, self.size), numbers(mine), how, stream=queue)
        copy(recv.ptr, mine.ptr, mine.nbytes, queue)
        return send, recv, spare

    def _reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: MPI.Op
    ) -> Any:
        in_place = is_in_place(sendbuf)
        recv = block(recvbuf, "recvbuf")
        send = recv if in_place else block(sendbuf, "sendbuf")
        counts = self._recvcounts(recv, recvcounts, in_place)
        if send.element != recv.element:
            raise ValueError(f"sendbuf has {send.element.name} and recvbuf {recv.element.name}")
        if sum(counts) > send.items:
            raise ValueError(f"sendbuf has {send.items} elements, recvcounts add to {sum(counts)}")
        how = reduction(op, send.element)
        nccl, queue = self._launch(send, recv)
        mine = recv._replace(items=counts[self.rank])
        mine, spare = _beside(mine, nccl) if in_place else (mine, None)
        each = send.element.parts
        nccl.reduce_scatterv(
            numbers(send._replace(items=sum(counts))),
            numbers(mine),
            [count * each for count in counts],
            how,
            stream=queue,
        )
        copy(recv.ptr, mine.ptr, mine.nbytes, queue)
        return send, recv, spare

    def _recvcounts(
        self, recv: Block, recvcounts: Sequence[int] | None, in_place: bool
    ) -> list[int]:
        if recvcounts is None:
            if in_place:
                raise ValueError("recvcounts is None, and MPI.IN_PLACE tells nothing of it")
            counts = numpy.empty(self.size, dtype=numpy.int64)
            self._shared.notes.Allgather(numpy.array([recv.items], dtype=numpy.int64), counts)
            return [int(count) for count in counts]
        given = [int(count) for count in recvcounts]
        if len(given) != self.size or min(given) < 0:
            raise ValueError(f"recvcounts {given}: must be {self.size} counts, none negative")
        if given[self.rank] > recv.items:
            raise ValueError(f"recvbuf has {recv.items} elements, recvcounts {given}")
        return given

    def _allgather(self, sendbuf: Any, recvbuf: Any) -> Any:
        recv = block(recvbuf, "recvbuf", self.size)
        send = _moved(recv, self.rank) if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        _check_bytes(send, recv)
        nccl, queue = self._launch(send, recv)
        nccl.allgather(_bytes(send), _bytes(recv, self.size), stream=queue)
        return send, recv

    def _allgatherv(self, sendbuf: Any, recvbuf: Any) -> Any:
        recv = parts(recvbuf, "recvbuf", self.size)
        send = _part(recv, self.rank) if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        nccl, queue = self._launch(send, recv)
        nccl.allgatherv(_bytes(send), all_bytes(recv), recv.counts, recv.displs, stream=queue)
        return send, recv

    def _gather(self, sendbuf: Any, recvbuf: Any, root: int) -> Any:
        if self.rank != root:
            send = block(sendbuf, "sendbuf")
            nccl, queue = self._launch(send)
            nccl.gather(_bytes(send), None, root, stream=queue)
            return send
        recv = block(recvbuf, "recvbuf", self.size)
        send = _moved(recv, root) if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        _check_bytes(send, recv)
        nccl, queue = self._launch(send, recv)
        nccl.gather(_bytes(send), _bytes(recv, self.size), root, stream=queue)
        return send, recv

    def _gatherv(self, sendbuf: Any, recvbuf: Any, root: int) -> Any:
        if self.rank != root:
            send = block(sendbuf, "sendbuf")
            nccl, queue = self._launch(send)
            nccl.gatherv(_bytes(send), None, None, None, root, stream=queue)
            return send
        recv = parts(recvbuf, "recvbuf", self.size)
        send = _part(recv, root) if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        nccl, queue = self._launch(send, recv)
        nccl.gatherv(_bytes(send), all_bytes(recv), recv.counts, recv.displs, root, stream=queue)
        return send, recv

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int) -> Any:
        if self.rank != root:
            recv = block(recvbuf, "recvbuf")
            nccl, queue = self._launch(recv)
            nccl.scatter(None, _bytes(recv), root, stream=queue)
            return recv
        send = block(sendbuf, "sendbuf", self.size)
        recv = _moved(send, root) if is_in_place(recvbuf) else block(recvbuf, "recvbuf")
        _check_bytes(send, recv)
        nccl, queue = self._launch(send, recv)
        nccl.scatter(_bytes(send, self.size), _bytes(recv), root, stream=queue)
        return send, recv

    def _scatterv(self, sendbuf: Any, recvbuf: Any, root: int) -> Any:
        if self.rank != root:
            recv = block(recvbuf, "recvbuf")
            nccl, queue = self._launch(recv)
            nccl.scatterv(None, _bytes(recv), None, None, root, stream=queue)
            return recv
        send = parts(sendbuf, "sendbuf", self.size)
        recv = _part(send, root) if is_in_place(recvbuf) else block(recvbuf, "recvbuf")
        nccl, queue = self._launch(send, recv)
        nccl.scatterv(all_bytes(send), _bytes(recv), send.counts, send.displs, root, stream=queue)
        return send, recv

    def _alltoall(self, sendbuf: Any, recvbuf: Any) -> Any:
        recv = block(recvbuf, "recvbuf", self.size)
        send = recv if is_in_place(sendbuf) else block(sendbuf, "sendbuf", self.size)
        _check_bytes(send, recv)
        nccl, queue = self._launch(send, recv)
        spare = None
        if is_in_place(sendbuf):
            spare = copied(recv.ptr, recv.nbytes * self.size, nccl, queue)
            send = send._replace(ptr=spare.ptr)
        nccl.alltoall(_bytes(send, self.size), _bytes(recv, self.size), stream=queue)
        return send, recv, spare

    def _alltoallv(self, sendbuf: Any, recvbuf: Any) -> Any:
        recv = parts(recvbuf, "recvbuf", self.size)
        send = recv if is_in_place(sendbuf) else parts(sendbuf, "sendbuf", self.size)
        nccl, queue = self._launch(send, recv)
        spare = None
        if is_in_place(sendbuf):
            spare = copied(recv.ptr, recv.nbytes, nccl, queue)
            send = send._replace(ptr=spare.ptr)
        nccl.alltoallv(
            all_bytes(send),
            send.counts,
            all_bytes(recv),
            recv.counts,
            send.displs,
            recv.displs,
            stream=queue,
        )
        return send, recv, spare


def _bytes(data: Block, blocks: int = 1) -> Spec:
    return data.ptr, data.nbytes * blocks, DataType.UINT8


def all_bytes(data: Parts) -> Spec:
    """Return an array of parts as NCCL takes it, as bytes."""
    return data.ptr, data.nbytes, DataType.UINT8


def numbers(data: Block, blocks: int = 1) -> Spec:
    """Return blocks that follow one another as NCCL takes them to a reduction."""
    datatype = data.element.datatype
    assert datatype is not None, "reduction() has seen to that"
    return data.ptr, data.items * data.element.parts * blocks, datatype


def _moved(data: Block, blocks: int) -> Block:
    return data._replace(ptr=data.ptr + blocks * data.nbytes)


def _part(data: Parts, rank: int) -> Block:
    size = data.element.itemsize
    ptr = data.ptr + data.displs[rank]
    return Block(ptr, data.counts[rank] // size, data.element, data.stream, data.array)


def _check_equal(send: Block, recv: Block) -> None:
    if send.element[1:] != recv.element[1:]:
        raise ValueError(
            f"sendbuf has {send.element.name} and recvbuf {recv.element.name}: they must be equal"
        )
    if send.items != recv.items:
        raise ValueError(f"sendbuf has {send.items} elements and recvbuf {recv.items}")


def _check_bytes(send: Block, recv: Block) -> None:
    if send.nbytes != recv.nbytes:
        raise ValueError(
            f"a rank's part has {send.nbytes} bytes in sendbuf and {recv.nbytes} in recvbuf"
        )


def copy(target: int, source: int, nbytes: int, queue: int) -> None:
    """Queue a copy on the GPU."""
    if nbytes and target != source:
        from cuda.bindings import driver

        check_driver(driver.cuMemcpyDtoDAsync(target, source, nbytes, queue), "cuMemcpyDtoDAsync")


def _beside(data: Block, nccl: Communicator) -> tuple[Block, Allocation]:
    """Return a place for as much: MPI leaves the rest of a buffer in place as it was."""
    spare = Allocation(data.nbytes, nccl.device.device_id)
    return data._replace(ptr=spare.ptr), spare


def copied(ptr: int, nbytes: int, nccl: Communicator, queue: int) -> Allocation:
    """Return memory for which a copy is queued."""
    spare = Allocation(nbytes, nccl.device.device_id)
    copy(spare.ptr, ptr, nbytes, queue)
    return spare
