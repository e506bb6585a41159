"""Collectives whose parts differ in size from rank to rank, made of grouped operations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from pynccl import bindings, errors
from pynccl.arrays import Resolved
from pynccl.collectives import op_code
from pynccl.groups import group
from pynccl.point_to_point import PointToPoint
from pynccl.types import DataType, RedOp

__all__ = ["Uneven"]


class _Parts:
    """The parts of a buffer: where each begins and how many elements it has, in NCCL's elements."""

    def __init__(
        self,
        buffer: Resolved,
        argument: str,
        counts: Sequence[int],
        displs: Sequence[int] | None,
        nranks: int,
    ) -> None:
        if len(counts) != nranks:
            raise ValueError(f"{argument}: {len(counts)} counts for {nranks} ranks")
        if any(count < 0 for count in counts):
            raise ValueError(f"{argument}: counts {list(counts)} must not be negative")
        starts = [0, *accumulate(counts)][:-1] if displs is None else list(displs)
        if len(starts) != nranks or any(start < 0 for start in starts):
            raise ValueError(f"{argument}: displs {starts} must be one for each of {nranks} ranks")
        reach = max(start + count for start, count in zip(starts, counts))
        have = buffer.count // buffer.parts
        if reach > have:
            raise ValueError(f"{argument} has {have} elements, its parts reach to {reach}")
        step = buffer.parts * DataType(buffer.datatype).itemsize
        self.pointers = [buffer.ptr + start * step for start in starts]
        self.counts = [count * buffer.parts for count in counts]
        self.datatype = buffer.datatype

    def messages(self, peers: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """Return (pointer, count, data type, peer) of the parts that have elements."""
        return [
            (self.pointers[peer], self.counts[peer], self.datatype, peer)
            for peer in peers
            if self.counts[peer]
        ]


class Uneven(PointToPoint):
    """Collectives with a count, and optionally a displacement, for each rank.

    ``counts[i]`` elements begin ``displs[i]`` elements into the buffer; without ``displs`` the
    parts follow one another. Counts may be zero. All ranks give the same ``counts`` where they
    speak of the same parts. Asynchronous, like the other collectives, and in one group each.
    """

    def allgatherv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        counts: Sequence[int],
        displs: Sequence[int] | None = None,
        *,
        stream: Any = None,
    ) -> Any:
        """Put parts of different sizes one after another, on all ranks. Returns ``recvbuf``.

        One ``ncclBroadcast`` for each rank, grouped.

        Args:
            sendbuf: ``counts[rank]`` elements
            counts: elements that each rank sends
        """
        send, recv = self._same_type(sendbuf, recvbuf)
        parts = _Parts(recv, "recvbuf", counts, displs, self.nranks)
        self._check_part(send, "sendbuf", counts[self.rank])
        queue = self._stream_for(stream, send, recv)
        comm = self._handle.value or self._gone()
        with group():
            for root, (pointer, count) in enumerate(zip(parts.pointers, parts.counts)):
                if count == 0:
                    continue
                source = send.ptr if root == self.rank else pointer
                arguments = (source, pointer, count, send.datatype, root)
                self._log.collective("ncclBroadcast", arguments, queue)
                code = bindings.ncclBroadcast(*arguments, comm, queue)
                errors.check(code, "ncclBroadcast", comm)
        return recvbuf

    def gatherv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        counts: Sequence[int] | None,
        displs: Sequence[int] | None = None,
        root: int = 0,
        *,
        stream: Any = None,
    ) -> Any:
        """Put parts of different sizes one after another, on one rank. Returns ``recvbuf``.

        Grouped ``ncclSend`` and ``ncclRecv``.

        Args:
            sendbuf: this rank's part
            recvbuf, counts, displs: of all parts, on the root; elsewhere not looked at
        """
        self._check_root(root)
        send = self._buffer(sendbuf, "sendbuf")
        receives: list[tuple[int, int, int, int]] = []
        buffers = [send]
        if self.rank == root:
            if counts is None:
                raise TypeError("counts is None on the root")
            send, recv = self._same_type(sendbuf, recvbuf)
            self._check_part(send, "sendbuf", counts[self.rank])
            parts = _Parts(recv, "recvbuf", counts, displs, self.nranks)
            receives = parts.messages(range(self.nranks))
            buffers.append(recv)
        sends = [(send.ptr, send.count, send.datatype, root)] if send.count else []
        queue = self._stream_for(stream, *buffers)
        return self._exchange(sends, receives, queue, recvbuf)

    def scatterv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        counts: Sequence[int] | None,
        displs: Sequence[int] | None = None,
        root: int = 0,
        *,
        stream: Any = None,
    ) -> Any:
        """Give each rank its part, of any size, of one rank's elements. Returns ``recvbuf``.

        Grouped ``ncclSend`` and ``ncclRecv``.

        Args:
            sendbuf, counts, displs: of all parts, on the root; elsewhere not looked at
            recvbuf: this rank's part
        """
        self._check_root(root)
        recv = self._buffer(recvbuf, "recvbuf")
        sends: list[tuple[int, int, int, int]] = []
        buffers = [recv]
        if self.rank == root:
            if counts is None:
                raise TypeError("counts is None on the root")
            send, recv = self._same_type(sendbuf, recvbuf)
            self._check_part(recv, "recvbuf", counts[self.rank])
            parts = _Parts(send, "sendbuf", counts, displs, self.nranks)
            sends = parts.messages(range(self.nranks))
            buffers.append(send)
        receives = [(recv.ptr, recv.count, recv.datatype, root)] if recv.count else []
        queue = self._stream_for(stream, *buffers)
        return self._exchange(sends, receives, queue, recvbuf)

    def alltoallv(
        self,
        sendbuf: Any,
        sendcounts: Sequence[int],
        recvbuf: Any,
        recvcounts: Sequence[int],
        sdispls: Sequence[int] | None = None,
        rdispls: Sequence[int] | None = None,
        *,
        stream: Any = None,
    ) -> Any:
        """Send a part of any size to each rank and receive one from each. Returns ``recvbuf``.

        Grouped ``ncclSend`` and ``ncclRecv``.

        Args:
            sendcounts: elements for each rank
            recvcounts: elements from each rank: what that rank has in its ``sendcounts`` for this
        """
        send, recv = self._same_type(sendbuf, recvbuf)
        sent = _Parts(send, "sendbuf", sendcounts, sdispls, self.nranks)
        received = _Parts(recv, "recvbuf", recvcounts, rdispls, self.nranks)
        everyone = range(self.nranks)
        queue = self._stream_for(stream, send, recv)
        return self._exchange(sent.messages(everyone), received.messages(everyone), queue, recvbuf)

    def reduce_scatterv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        counts: Sequence[int],
        op: Any = RedOp.SUM,
        *,
        stream: Any = None,
    ) -> Any:
        """Reduce over all ranks and leave each its part, of any size. Returns ``recvbuf``.

        One ``ncclReduce`` for each rank, grouped.

        Args:
            sendbuf: the parts of all ranks, one after another
            recvbuf: ``counts[rank]`` elements
        """
        send, recv = self._same_type(sendbuf, recvbuf)
        parts = _Parts(send, "sendbuf", counts, None, self.nranks)
        self._check_part(recv, "recvbuf", counts[self.rank])
        op = op_code(op, send.parts)
        queue = self._stream_for(stream, send, recv)
        comm = self._handle.value or self._gone()
        with group():
            for root, (pointer, count) in enumerate(zip(parts.pointers, parts.counts)):
                if count == 0:
                    continue
                target = recv.ptr if root == self.rank else pointer
                arguments = (pointer, target, count, send.datatype, op, root)
                self._log.collective("ncclReduce", arguments, queue)
                code = bindings.ncclReduce(*arguments, comm, queue)
                errors.check(code, "ncclReduce", comm)
        return recvbuf

    def _same_type(self, sendbuf: Any, recvbuf: Any) -> tuple[Resolved, Resolved]:
        send = self._buffer(sendbuf, "sendbuf")
        recv = self._buffer(recvbuf, "recvbuf")
        if send.datatype != recv.datatype or send.parts != recv.parts:
            names = [DataType(buffer.datatype).name.lower() for buffer in (send, recv)]
            raise TypeError(f"sendbuf has {names[0]} and recvbuf {names[1]}: they must be equal")
        return send, recv

    def _check_part(self, buffer: Resolved, argument: str, count: int) -> None:
        have = buffer.count // buffer.parts
        if have != count:
            raise ValueError(
                f"{argument} has {have} elements, and counts says {count} for rank {self.rank}"
            )
