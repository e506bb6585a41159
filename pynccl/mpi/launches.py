"""What MPI's collectives are to NCCL: the operations that each queues for arrays on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy
from mpi4py import MPI

from pynccl.communicator import Communicator
from pynccl.device_array import Allocation
from pynccl.mpi.buffers import Block, Parts, block, is_in_place, parts
from pynccl.mpi.elements import reduction
from pynccl.mpi.requests import Operation
from pynccl.mpi.shared import Shared
from pynccl.streams import check_driver
from pynccl.types import DataType

__all__ = [
    "CollectiveLaunches",
    "Launch",
    "Launched",
    "copy",
    "numbers",
]

Spec = tuple[int, int, DataType]
if TYPE_CHECKING:
    Base = MPI.Intracomm
else:
    Base = object


class Launch:
    """A collective whose arguments were read and checked; each call queues it once.

    Args:
        call: queues it, given NCCL's communicator and the stream; returns what must be kept
        blocks: the arrays
    """

    __slots__ = ("_blocks", "_call", "shared")

    def __init__(
        self,
        shared: Shared,
        call: Callable[[Communicator, int], Any],
        blocks: tuple[Block | Parts, ...],
    ) -> None:
        self.shared = shared
        self._call = call
        self._blocks = blocks

    def prepare(self) -> Communicator:
        """Return NCCL's communicator, made at the first call, which is collective."""
        first = next((one for one in self._blocks if one.ptr), None)
        return self.shared.need(first, collective=True)

    def __call__(self) -> Any:
        """Queue the collective after what makes the arrays' contents, and what was started before.

        Returns:
            what must be kept until it is done
        """
        shared = self.shared
        nccl = self.prepare()
        with shared.launching:
            shared.take_starts()
            shared.after(shared.queue, *self._blocks)
            return self._blocks, self._call(nccl, shared.queue)


class Launched(Operation):
    """A collective that was launched."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self._kept = launch()
        self._event = launch.shared.event(launch.shared.queue)

    def done(self) -> bool:
        finished: bool = self._event.done()
        return finished


class CollectiveLaunches(Base):
    """Reads the arguments of the collectives. None of these methods queues anything yet.

    Raises:
        TypeError, ValueError: as of ``CollectiveMethods``
    """

    _shared: Shared

    def _launch(self, call: Callable[[Communicator, int], Any], *blocks: Block | Parts) -> Launch:
        return Launch(self._shared, call, blocks)

    def _bcast(self, buf: Any, root: int) -> Launch:
        data = block(buf, "buf")
        return self._launch(
            lambda nccl, queue: nccl.broadcast(_bytes(data), root=root, stream=queue), data
        )

    def _reduced(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> tuple[Block, Block, Any]:
        recv = block(recvbuf, "recvbuf")
        send = recv if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        _check_equal(send, recv)
        return send, recv, reduction(op, send.element)

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> Launch:
        send, recv, how = self._reduced(sendbuf, recvbuf, op)
        source, target = numbers(send), numbers(recv)
        return self._launch(
            lambda nccl, queue: nccl.allreduce(source, target, how, stream=queue), send, recv
        )

    def _reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: int) -> Launch:
        if self.rank == root:
            send, recv, how = self._reduced(sendbuf, recvbuf, op)
        else:
            send = recv = block(sendbuf, "sendbuf")
            how = reduction(op, send.element)
        source, target = numbers(send), numbers(recv)
        return self._launch(
            lambda nccl, queue: nccl.reduce(source, target, how, root, stream=queue), send, recv
        )

    def _reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> Launch:
        in_place = is_in_place(sendbuf)
        if in_place:
            send = recv = block(recvbuf, "recvbuf", self.size)
        else:
            send, recv = block(sendbuf, "sendbuf", self.size), block(recvbuf, "recvbuf")
            _check_equal(send, recv)
        source, how = numbers(send, self.size), reduction(op, send.element)

        def call(nccl: Communicator, queue: int) -> Any:
            mine, spare = _beside(recv, nccl) if in_place else (recv, None)
            nccl.reduce_scatter(source, numbers(mine), how, stream=queue)
            copy(recv.ptr, mine.ptr, mine.nbytes, queue)
            return spare

        return self._launch(call, send, recv)

    def _reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: MPI.Op
    ) -> Launch:
        in_place = is_in_place(sendbuf)
        recv = block(recvbuf, "recvbuf")
        send = recv if in_place else block(sendbuf, "sendbuf")
        counts = self._recvcounts(recv, recvcounts, in_place)
        if send.element != recv.element:
            raise ValueError(f"sendbuf has {send.element.name} and recvbuf {recv.element.name}")
        if sum(counts) > send.items:
            raise ValueError(f"sendbuf has {send.items} elements, recvcounts add to {sum(counts)}")
        how = reduction(op, send.element)
        source = numbers(send._replace(items=sum(counts)))
        each = [count * send.element.parts for count in counts]
        part = recv._replace(items=counts[self.rank])

        def call(nccl: Communicator, queue: int) -> Any:
            mine, spare = _beside(part, nccl) if in_place else (part, None)
            nccl.reduce_scatterv(source, numbers(mine), each, how, stream=queue)
            copy(part.ptr, mine.ptr, mine.nbytes, queue)
            return spare

        return self._launch(call, send, recv)

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

    def _allgather(self, sendbuf: Any, recvbuf: Any) -> Launch:
        recv = block(recvbuf, "recvbuf", self.size)
        send = _moved(recv, self.rank) if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        _check_bytes(send, recv)
        source, target = _bytes(send), _bytes(recv, self.size)
        return self._launch(
            lambda nccl, queue: nccl.allgather(source, target, stream=queue), send, recv
        )

    def _allgatherv(self, sendbuf: Any, recvbuf: Any) -> Launch:
        recv = parts(recvbuf, "recvbuf", self.size)
        send = _part(recv, self.rank) if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        source, target = _bytes(send), _all_bytes(recv)
        return self._launch(
            lambda nccl, queue: nccl.allgatherv(
                source, target, recv.counts, recv.displs, stream=queue
            ),
            *(send, recv),
        )

    def _gather(self, sendbuf: Any, recvbuf: Any, root: int) -> Launch:
        if self.rank != root:
            mine = block(sendbuf, "sendbuf")
            return self._launch(
                lambda nccl, queue: nccl.gather(_bytes(mine), None, root, stream=queue), mine
            )
        recv = block(recvbuf, "recvbuf", self.size)
        send = _moved(recv, root) if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        _check_bytes(send, recv)
        source, target = _bytes(send), _bytes(recv, self.size)
        return self._launch(
            lambda nccl, queue: nccl.gather(source, target, root, stream=queue), send, recv
        )

    def _gatherv(self, sendbuf: Any, recvbuf: Any, root: int) -> Launch:
        if self.rank != root:
            mine = block(sendbuf, "sendbuf")
            return self._launch(
                lambda nccl, queue: nccl.gatherv(
                    _bytes(mine), None, None, None, root, stream=queue
                ),
                mine,
            )
        recv = parts(recvbuf, "recvbuf", self.size)
        send = _part(recv, root) if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        source, target = _bytes(send), _all_bytes(recv)
        return self._launch(
            lambda nccl, queue: nccl.gatherv(
                source, target, recv.counts, recv.displs, root, stream=queue
            ),
            *(send, recv),
        )

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int) -> Launch:
        if self.rank != root:
            mine = block(recvbuf, "recvbuf")
            return self._launch(
                lambda nccl, queue: nccl.scatter(None, _bytes(mine), root, stream=queue), mine
            )
        send = block(sendbuf, "sendbuf", self.size)
        recv = _moved(send, root) if is_in_place(recvbuf) else block(recvbuf, "recvbuf")
        _check_bytes(send, recv)
        source, target = _bytes(send, self.size), _bytes(recv)
        return self._launch(
            lambda nccl, queue: nccl.scatter(source, target, root, stream=queue), send, recv
        )

    def _scatterv(self, sendbuf: Any, recvbuf: Any, root: int) -> Launch:
        if self.rank != root:
            mine = block(recvbuf, "recvbuf")
            return self._launch(
                lambda nccl, queue: nccl.scatterv(
                    None, _bytes(mine), None, None, root, stream=queue
                ),
                mine,
            )
        send = parts(sendbuf, "sendbuf", self.size)
        recv = _part(send, root) if is_in_place(recvbuf) else block(recvbuf, "recvbuf")
        source, target = _all_bytes(send), _bytes(recv)
        return self._launch(
            lambda nccl, queue: nccl.scatterv(
                source, target, send.counts, send.displs, root, stream=queue
            ),
            *(send, recv),
        )

    def _alltoall(self, sendbuf: Any, recvbuf: Any) -> Launch:
        in_place = is_in_place(sendbuf)
        recv = block(recvbuf, "recvbuf", self.size)
        send = recv if in_place else block(sendbuf, "sendbuf", self.size)
        _check_bytes(send, recv)
        target = _bytes(recv, self.size)

        def call(nccl: Communicator, queue: int) -> Any:
            spare = _copied(recv.ptr, target[1], nccl, queue) if in_place else None
            here = send if spare is None else send._replace(ptr=spare.ptr)
            nccl.alltoall(_bytes(here, self.size), target, stream=queue)
            return spare

        return self._launch(call, send, recv)

    def _alltoallv(self, sendbuf: Any, recvbuf: Any) -> Launch:
        in_place = is_in_place(sendbuf)
        recv = parts(recvbuf, "recvbuf", self.size)
        send = recv if in_place else parts(sendbuf, "sendbuf", self.size)
        return self._exchanged(send, recv, in_place)

    def _exchanged(self, send: Parts, recv: Parts, in_place: bool) -> Launch:
        """Return the launch of an exchange of parts, of a copy where that is in place."""

        def call(nccl: Communicator, queue: int) -> Any:
            spare = _copied(recv.ptr, recv.nbytes, nccl, queue) if in_place else None
            here = send if spare is None else send._replace(ptr=spare.ptr)
            nccl.alltoallv(
                *(_all_bytes(here), send.counts, _all_bytes(recv), recv.counts),
                *(send.displs, recv.displs),
                stream=queue,
            )
            return spare

        return self._launch(call, send, recv)


def _bytes(data: Block, blocks: int = 1) -> Spec:
    return data.ptr, data.nbytes * blocks, DataType.UINT8


def _all_bytes(data: Parts) -> Spec:
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


def _copied(ptr: int, nbytes: int, nccl: Communicator, queue: int) -> Allocation:
    """Return memory that a copy is queued into."""
    spare = Allocation(nbytes, nccl.device.device_id)
    copy(spare.ptr, ptr, nbytes, queue)
    return spare
