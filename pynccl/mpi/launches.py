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
from pynccl.mpi.packing import copy, gather, scatter
from pynccl.mpi.requests import Operation
from pynccl.mpi.shared import Shared
from pynccl.types import DataType

__all__ = [
    "CollectiveLaunches",
    "Data",
    "Launch",
    "Launched",
    "numbers",
]

Spec = tuple[int, int, DataType]
Data = Block | Parts
Move = Callable[[Communicator, int, Any, Any], Any]
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

    def _move(
        self, call: Move, send: Data | None, recv: Data | None, partly: bool = False
    ) -> Launch:
        """Return the launch of what moves bytes, from and to temporaries where data has gaps.

        Args:
            call: queues it, given NCCL's communicator, the stream, and what is sent and received,
                which has no gaps; returns what must be kept
            send, recv: None where this rank sends or receives nothing
            partly: whether nothing arrives for some of what is received
        """
        given = [data for data in (send, recv) if data is not None]
        if not ((send and send.places) or (recv and recv.places)):
            return self._launch(lambda nccl, queue: call(nccl, queue, send, recv), *given)

        def packed(nccl: Communicator, queue: int) -> Any:
            source, sent = _packed(send, nccl)
            target, received = _packed(recv, nccl)
            if send is not None and sent is not None:
                gather(send, sent.ptr, queue)
            if partly and recv is not None and received is not None:
                gather(recv, received.ptr, queue)
            kept = call(nccl, queue, source, target)
            if recv is not None and received is not None:
                scatter(recv, received.ptr, received.nbytes, queue)
            return kept, sent, received

        return self._launch(packed, *given)

    def _bcast(self, buf: Any, root: int) -> Launch:
        data = block(buf, "buf")
        send, recv = (data, None) if self.rank == root else (None, data)
        return self._move(
            lambda nccl, queue, send, recv: nccl.broadcast(
                _bytes(send or recv), root=root, stream=queue
            ),
            *(send, recv),
        )

    def _reduced(self, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> tuple[Block, Block, Any]:
        recv = block(recvbuf, "recvbuf")
        send = recv if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        how = reduction(op, send.element)
        _check_equal(send, recv)
        return send, recv, how

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
        how = reduction(op, send.element)
        if not in_place:
            _check_equal(send, recv)
        source = numbers(send, self.size)

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
        how = reduction(op, send.element)
        counts = self._recvcounts(recv, recvcounts, in_place)
        if send.element != recv.element:
            raise ValueError(f"sendbuf has {send.element.name} and recvbuf {recv.element.name}")
        if sum(counts) > send.items:
            raise ValueError(f"sendbuf has {send.items} elements, recvcounts add to {sum(counts)}")
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
        return self._move(
            lambda nccl, queue, send, recv: nccl.allgather(
                _bytes(send), _bytes(recv), stream=queue
            ),
            *(send, recv),
        )

    def _allgatherv(self, sendbuf: Any, recvbuf: Any) -> Launch:
        recv = parts(recvbuf, "recvbuf", self.size)
        send = _part(recv, self.rank) if is_in_place(sendbuf) else block(sendbuf, "sendbuf")
        return self._move(
            lambda nccl, queue, send, recv: nccl.allgatherv(
                _bytes(send), _bytes(recv), recv.counts, recv.displs, stream=queue
            ),
            *(send, recv),
        )

    def _gather(self, sendbuf: Any, recvbuf: Any, root: int) -> Launch:
        recv = block(recvbuf, "recvbuf", self.size) if self.rank == root else None
        if recv is not None and is_in_place(sendbuf):
            send = _moved(recv, root)
        else:
            send = block(sendbuf, "sendbuf")
        _check_bytes(send, recv)
        return self._move(
            lambda nccl, queue, send, recv: nccl.gather(
                _bytes(send), _bytes(recv), root, stream=queue
            ),
            *(send, recv),
        )

    def _gatherv(self, sendbuf: Any, recvbuf: Any, root: int) -> Launch:
        recv = parts(recvbuf, "recvbuf", self.size) if self.rank == root else None
        if recv is not None and is_in_place(sendbuf):
            send = _part(recv, root)
        else:
            send = block(sendbuf, "sendbuf")
        return self._move(
            lambda nccl, queue, send, recv: nccl.gatherv(
                _bytes(send), _bytes(recv), *_ranges(recv), root, stream=queue
            ),
            *(send, recv),
        )

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int) -> Launch:
        send = block(sendbuf, "sendbuf", self.size) if self.rank == root else None
        if send is not None and is_in_place(recvbuf):
            recv = _moved(send, root)
        else:
            recv = block(recvbuf, "recvbuf")
        _check_bytes(send, recv)
        return self._move(
            lambda nccl, queue, send, recv: nccl.scatter(
                _bytes(send), _bytes(recv), root, stream=queue
            ),
            *(send, recv),
        )

    def _scatterv(self, sendbuf: Any, recvbuf: Any, root: int) -> Launch:
        send = parts(sendbuf, "sendbuf", self.size) if self.rank == root else None
        if send is not None and is_in_place(recvbuf):
            recv = _part(send, root)
        else:
            recv = block(recvbuf, "recvbuf")
        return self._move(
            lambda nccl, queue, send, recv: nccl.scatterv(
                _bytes(send), _bytes(recv), *_ranges(send), root, stream=queue
            ),
            *(send, recv),
        )

    def _alltoall(self, sendbuf: Any, recvbuf: Any) -> Launch:
        recv = block(recvbuf, "recvbuf", self.size)
        send = recv if is_in_place(sendbuf) else block(sendbuf, "sendbuf", self.size)
        _check_bytes(send, recv)

        def call(nccl: Communicator, queue: int, send: Any, recv: Any) -> Any:
            send, spare = _apart(send, recv, nccl, queue)
            nccl.alltoall(_bytes(send), _bytes(recv), stream=queue)
            return spare

        return self._move(call, send, recv)

    def _alltoallv(self, sendbuf: Any, recvbuf: Any) -> Launch:
        recv = parts(recvbuf, "recvbuf", self.size)
        send = recv if is_in_place(sendbuf) else parts(sendbuf, "sendbuf", self.size)
        return self._exchanged(send, recv)

    def _exchanged(self, send: Parts, recv: Parts) -> Launch:
        """Return the launch of an exchange of parts."""

        def call(nccl: Communicator, queue: int, send: Any, recv: Any) -> Any:
            send, spare = _apart(send, recv, nccl, queue)
            nccl.alltoallv(
                *(_bytes(send), send.counts, _bytes(recv), recv.counts),
                *(send.displs, recv.displs),
                stream=queue,
            )
            return spare

        return self._move(call, send, recv)


def _bytes(data: Data | None) -> Spec | None:
    return None if data is None else (data.ptr, data.span, DataType.UINT8)


def _ranges(data: Parts | None) -> tuple[list[int] | None, list[int] | None]:
    return (None, None) if data is None else (data.counts, data.displs)


def numbers(data: Block, blocks: int = 1) -> Spec:
    """Return blocks that follow one another as NCCL takes them to a reduction."""
    datatype = data.element.datatype
    assert datatype is not None, "reduction() has seen to that"
    return data.ptr, data.items * data.element.parts * blocks, datatype


def _moved(data: Block, blocks: int) -> Block:
    distance = blocks * data.items * data.element.extent
    return data._replace(ptr=data.ptr + distance, blocks=1)


def _part(data: Parts, rank: int) -> Block:
    element = data.element
    items = data.counts[rank] // element.itemsize if element.itemsize else 0
    return Block(data.ptr + data.displs[rank], items, element, data.stream, data.array)


def _check_equal(send: Block, recv: Block) -> None:
    if send.element[1:] != recv.element[1:]:
        raise ValueError(
            f"sendbuf has {send.element.name} and recvbuf {recv.element.name}: they must be equal"
        )
    if send.items != recv.items:
        raise ValueError(f"sendbuf has {send.items} elements and recvbuf {recv.items}")


def _check_bytes(send: Block | None, recv: Block | None) -> None:
    if send is not None and recv is not None and send.nbytes != recv.nbytes:
        raise ValueError(
            f"a rank's part has {send.nbytes} bytes in sendbuf and {recv.nbytes} in recvbuf"
        )


def _beside(data: Block, nccl: Communicator) -> tuple[Block, Allocation]:
    """Return a place for as much: MPI leaves the rest of a buffer in place as it was."""
    spare = Allocation(data.nbytes, nccl.device.device_id)
    return data._replace(ptr=spare.ptr), spare


def _apart(
    send: Data, recv: Data, nccl: Communicator, queue: int
) -> tuple[Data, Allocation | None]:
    """Return what is sent, or a copy that is queued where it is exchanged in place."""
    if send is not recv:
        return send, None
    spare = Allocation(recv.span, nccl.device.device_id)
    copy(spare.ptr, recv.ptr, recv.span, queue)
    return send._replace(ptr=spare.ptr), spare


def _packed(data: Data | None, nccl: Communicator) -> tuple[Data | None, Allocation | None]:
    """Return data as it is, or a place for as much without gaps."""
    if data is None or not data.places:
        return data, None
    spare = Allocation(data.total, nccl.device.device_id)
    return data.packed(spare.ptr), spare
