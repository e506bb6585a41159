"""MPI's messages of buffers: through NCCL where the array is on a GPU, else as before."""
# ruff: noqa: N802 - the names are MPI's

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from pynccl.device_array import Allocation
from pynccl.mpi.buffers import Block, block, is_on_gpu
from pynccl.mpi.messages import Exchange, refuse_announced
from pynccl.mpi.packing import gather
from pynccl.mpi.persistent import persistent
from pynccl.mpi.requests import Finished, Joined, Operation, request_for
from pynccl.mpi.shared import Shared

__all__ = ["MessageMethods"]

if TYPE_CHECKING:
    Base = MPI.Intracomm
else:
    Base = object


class MessageMethods(Base):
    """Messages. Both sides' arrays are on GPUs, or neither is.

    Tags, ``ANY_SOURCE``, ``ANY_TAG``, ``PROC_NULL``, a receive buffer larger than the message and
    what a status tells are as MPI has them. A send of bytes is done when it was received, as a
    synchronous one; nonblocking methods return a ``pynccl.mpi.Request``, and those that end in
    ``_init`` a ``pynccl.mpi.Prequest``.

    Raises:
        TypeError, ValueError: as of the collectives
        TypeError: a receive into a GPU array meets a message from host memory, or the reverse
            (that in ``Recv``, where ``Shared.compares``)
        MPI.Exception: a message was longer than the buffer
        RuntimeError: a message is the first operation, and other ranks did not come to one
    """

    _shared: Shared

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send, and return when it was received."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Send(buf, dest, tag)
        return self._complete(self._send(buf, dest, tag))

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send, and return when it was received."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Ssend(buf, dest, tag)
        return self._complete(self._send(buf, dest, tag, synchronous=True))

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send where the receive was begun."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Rsend(buf, dest, tag)
        return self._complete(self._send(buf, dest, tag))

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a copy, which is made on the GPU."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Bsend(buf, dest, tag)
        self.Ibsend(buf, dest, tag)
        return None

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Send, nonblocking."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Isend(buf, dest, tag)
        return request_for(self._shared, self._send(buf, dest, tag))

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Send, nonblocking, complete when the receive was begun."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Issend(buf, dest, tag)
        return request_for(self._shared, self._send(buf, dest, tag, synchronous=True))

    def Irsend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Send where the receive was begun, nonblocking."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Irsend(buf, dest, tag)
        return request_for(self._shared, self._send(buf, dest, tag))

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Send a copy, which is made on the GPU. The request is complete at once."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Ibsend(buf, dest, tag)
        return request_for(self._shared, self._send_copy(block(buf, "buf"), dest, tag))

    def Recv(
        self,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Receive."""
        if source == MPI.PROC_NULL or not is_on_gpu(buf):
            if self._shared.compares and source != MPI.PROC_NULL:
                refuse_announced(self._shared, source, tag)
            return super().Recv(buf, source, tag, status)
        return self._complete(self._receive(buf, source, tag), status)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        """Receive, nonblocking."""
        if source == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Irecv(buf, source, tag)
        return request_for(self._shared, self._receive(buf, source, tag))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Send to one rank and receive from one. Both arrays are on the GPU, or neither is."""
        if not (is_on_gpu(sendbuf) or is_on_gpu(recvbuf)):
            return super().Sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        send = self._send(sendbuf, dest, sendtag)
        receive = self._receive(recvbuf, source, recvtag)
        return self._complete(Joined(send, receive), status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
    ) -> MPI.Request:
        """Send to one rank and receive from one, nonblocking. Both arrays are on the GPU."""
        if not (is_on_gpu(sendbuf) or is_on_gpu(recvbuf)):
            return super().Isendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag)
        send = self._send(sendbuf, dest, sendtag)
        return request_for(self._shared, Joined(send, self._receive(recvbuf, source, recvtag)))

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Send a copy, which is made on the GPU, and receive into the same buffer."""
        if not is_on_gpu(buf):
            return super().Sendrecv_replace(buf, dest, sendtag, source, recvtag, status)
        return self._complete(self._replace(buf, dest, sendtag, source, recvtag), status)

    def Isendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
    ) -> MPI.Request:
        """Send a copy, and receive into the same buffer, nonblocking."""
        if not is_on_gpu(buf):
            return super().Isendrecv_replace(buf, dest, sendtag, source, recvtag)
        operation = self._replace(buf, dest, sendtag, source, recvtag)
        return request_for(self._shared, operation)

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """Send, persistent."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Send_init(buf, dest, tag)
        return self._persist_send(buf, dest, tag)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Send, persistent, complete when the receive was begun."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Ssend_init(buf, dest, tag)
        return self._persist_send(buf, dest, tag, synchronous=True)

    def Rsend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Send where the receive was begun, persistent."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Rsend_init(buf, dest, tag)
        return self._persist_send(buf, dest, tag)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Send a copy, which is made on the GPU at each start, persistent."""
        if dest == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Bsend_init(buf, dest, tag)
        data = block(buf, "buf")
        self._exchange(data)
        return persistent(self._shared, lambda: self._send_copy(data, dest, tag))

    def Recv_init(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> MPI.Prequest:
        """Receive, persistent."""
        if source == MPI.PROC_NULL or not is_on_gpu(buf):
            return super().Recv_init(buf, source, tag)
        data = block(buf, "buf")
        exchange = self._exchange(data)
        return persistent(self._shared, lambda: exchange.receive(data, source, tag))

    def _persist_send(
        self, buf: Any, dest: int, tag: int, synchronous: bool = False
    ) -> MPI.Prequest:
        data = block(buf, "buf")
        exchange = self._exchange(data)
        return persistent(self._shared, lambda: exchange.send(data, dest, tag, synchronous))

    def _send_copy(self, data: Block, dest: int, tag: int) -> Operation:
        """Make a copy, and leave it to be sent."""
        copy = self._copy(data)
        request_for(self._shared, self._exchange(copy).send(copy, dest, tag, False))
        return Finished()

    def _replace(self, buf: Any, dest: int, sendtag: int, source: int, recvtag: int) -> Operation:
        send: Operation = Finished()
        if dest != MPI.PROC_NULL:
            copy = self._copy(block(buf, "buf"))
            send = self._exchange(copy).send(copy, dest, sendtag, False)
        return Joined(send, self._receive(buf, source, recvtag))

    def _send(self, buf: Any, dest: int, tag: int, synchronous: bool = False) -> Operation:
        if dest == MPI.PROC_NULL:
            return Finished()
        data = block(buf, "buf")
        return self._exchange(data).send(data, dest, tag, synchronous)

    def _receive(self, buf: Any, source: int, tag: int) -> Operation:
        if source == MPI.PROC_NULL:
            return Finished()
        data = block(buf, "buf")
        return self._exchange(data).receive(data, source, tag)

    def _exchange(self, data: Block) -> Exchange:
        shared = self._shared
        shared.need(data, collective=False)
        if shared.exchange is None:
            shared.exchange = Exchange(shared)
        found: Exchange = shared.exchange
        return found

    def _copy(self, data: Block) -> Block:
        """Return a copy of what is sent, once it is made."""
        shared = self._shared
        self._exchange(data)
        if not data.nbytes:
            return data
        assert shared.nccl is not None
        spare = Allocation(data.nbytes, shared.nccl.device.device_id)
        queue = shared.queue
        shared.after(queue, data)
        gather(data, spare.ptr, queue)
        shared.wait(shared.event(queue).done)
        return data.packed(spare.ptr)._replace(stream=queue, array=spare)

    def _complete(self, operation: Operation, status: MPI.Status | None = None) -> None:
        self._shared.wait(operation.done)
        operation.tell(status)
        operation.result()
