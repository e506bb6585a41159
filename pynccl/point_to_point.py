"""Messages between two ranks of a communicator."""

from __future__ import annotations

from sys import _getframe
from typing import Any

from pynccl import bindings, errors
from pynccl.call_site import find
from pynccl.prepared import Prepared

__all__ = ["PointToPoint"]


class PointToPoint(Prepared):
    """Send and receive. Each send needs a receive of the same count and type on the other side.

    Those that depend on each other (an exchange between two ranks) belong in one ``group()``, or in
    ``sendrecv``: a send is done only when it was received. Asynchronous, like the collectives.
    """

    def send(self, buf: Any, peer: int, *, stream: Any = None) -> Any:
        """Send to a rank (``ncclSend``, NCCL 2.7.3). Returns ``buf``.

        Raises:
            TypeError, ValueError: an argument does not fit
        """
        return self._message("ncclSend", buf, peer, stream)

    def recv(self, buf: Any, peer: int, *, stream: Any = None) -> Any:
        """Receive from a rank (``ncclRecv``, NCCL 2.7.3). Returns ``buf``.

        Raises:
            TypeError, ValueError: an argument does not fit
        """
        return self._message("ncclRecv", buf, peer, stream)

    def sendrecv(
        self, sendbuf: Any, dest: int, recvbuf: Any, source: int, *, stream: Any = None
    ) -> Any:
        """Send to one rank and receive from one, at the same time. Returns ``recvbuf``.

        ``ncclSend`` and ``ncclRecv`` in one group, NCCL 2.7.3. The counts may differ.
        """
        self._check_root(dest, "dest")
        self._check_root(source, "source")
        send = self._buffer(sendbuf, "sendbuf")
        recv = self._buffer(recvbuf, "recvbuf")
        queue = self._stream_for(stream, send, recv)
        return self._exchange(
            [(send.ptr, send.count, send.datatype, dest)],
            [(recv.ptr, recv.count, recv.datatype, source)],
            queue,
            recvbuf,
        )

    def _message(self, name: str, buf: Any, peer: int, stream: Any) -> Any:
        self._check_root(peer, "peer")
        buffer = self._buffer(buf, "buf")
        queue = self._stream_for(stream, buffer)
        comm = self._handle.value or self._gone()
        arguments = (buffer.ptr, buffer.count, buffer.datatype, peer)
        self._log.message(name, arguments, queue, find(_getframe(2)))
        code = getattr(bindings, name)(*arguments, comm, queue)
        if code:
            errors.check(code, name, comm, buffer.datatype)
        return buf
