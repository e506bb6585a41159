"""Writing to another rank's memory without its taking part, and signals that tell of it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from sys import _getframe
from typing import Any, NamedTuple

from pynccl import bindings, errors, library
from pynccl.call_site import find
from pynccl.resources import RegisteredBuffer, RegisteredWindow
from pynccl.streams import handle_of
from pynccl.types import DataType, structure
from pynccl.uneven import Uneven

__all__ = ["OneSided", "WaitSignalDesc"]


class WaitSignalDesc(NamedTuple):
    """Which signals to wait for (``ncclWaitSignalDesc_t``).

    Attributes:
        peer: the rank that sends them
        op_count: how many
        signal_index, context: which of the rank's signals
    """

    peer: int
    op_count: int = 1
    signal_index: int = 0
    context: int = 0


class OneSided(Uneven):
    """Registered memory, puts and signals. Puts and signals are asynchronous."""

    def register_buffer(self, buffer: Any) -> RegisteredBuffer:
        """Register a buffer for use without copies (``ncclCommRegister``, NCCL 2.19.1).

        The buffer is kept while it is registered.
        """
        self._handle.value or self._gone()
        found = self._buffer(buffer, "buffer")
        nbytes = found.count * DataType(found.datatype).itemsize
        self._log.locate(find(_getframe(1)))
        return RegisteredBuffer(self._handle, buffer, found.ptr, nbytes)

    def register_window(self, buffer: Any, flags: int = 0) -> RegisteredWindow:
        """Register memory of all ranks as a window (``ncclCommWindowRegister``, NCCL 2.27.3).

        Collective, and blocks until all ranks have come, unless in a group. The buffer begins at a
        multiple of 4096 bytes, as that of ``pynccl.mem_alloc`` does, and is kept while it is
        registered.

        Args:
            flags: ``WindowFlag``
        """
        self._handle.value or self._gone()
        found = self._buffer(buffer, "buffer")
        nbytes = found.count * DataType(found.datatype).itemsize
        self._log.locate(find(_getframe(1)))
        return RegisteredWindow(self._handle, buffer, found.ptr, nbytes, flags)

    def put_signal(
        self,
        local_buffer: Any,
        peer: int,
        peer_window: RegisteredWindow,
        peer_window_offset: int = 0,
        signal_index: int = 0,
        context: int = 0,
        flags: int = 0,
        *,
        stream: Any = None,
    ) -> None:
        """Write to a rank's part of a window, then signal it (``ncclPutSignal``, NCCL 2.29.2).

        The signal arrives after the data.

        Args:
            local_buffer: the elements to write
            peer_window_offset: where in the peer's part, in bytes
            signal_index, context: which of the peer's signals
        """
        self._check_root(peer, "peer")
        buffer = self._buffer(local_buffer, "local_buffer")
        if peer_window_offset < 0:
            raise ValueError(f"peer_window_offset {peer_window_offset} must not be negative")
        comm = self._handle.value or self._gone()
        queue = self._stream_for(stream, buffer)
        put = (buffer.ptr, buffer.count, buffer.datatype, peer)
        self._log.message("ncclPutSignal", put, queue, find(_getframe(1)))
        code = bindings.ncclPutSignal(
            *put,
            peer_window.handle,
            peer_window_offset,
            signal_index,
            context,
            flags,
            comm,
            queue,
        )
        errors.check(code, "ncclPutSignal", comm)

    def signal(
        self,
        peer: int,
        signal_index: int = 0,
        context: int = 0,
        flags: int = 0,
        *,
        stream: Any = None,
    ) -> None:
        """Signal a rank without writing anything (``ncclSignal``, NCCL 2.29.2)."""
        self._check_root(peer, "peer")
        comm = self._handle.value or self._gone()
        queue = self._queue if stream is None else handle_of(stream)
        self._log.message("ncclSignal", (peer,), queue, find(_getframe(1)))
        code = bindings.ncclSignal(peer, signal_index, context, flags, comm, queue)
        errors.check(code, "ncclSignal", comm)

    def wait_signal(
        self, descs: WaitSignalDesc | Sequence[WaitSignalDesc], *, stream: Any = None
    ) -> None:
        """Make the stream wait for signals of other ranks (``ncclWaitSignal``, NCCL 2.29.2).

        Work queued behind sees what was written before the signals.
        """
        wanted = [descs] if isinstance(descs, WaitSignalDesc) else list(descs)
        for desc in wanted:
            self._check_root(desc.peer, "peer")
        comm = self._handle.value or self._gone()
        queue = self._queue if stream is None else handle_of(stream)
        kind: Any = structure("ncclWaitSignalDesc_t", max(library.load().version, 22902))
        structs = (kind * len(wanted))(
            *(kind(d.op_count, d.peer, d.signal_index, d.context) for d in wanted)
        )
        peers = {desc.peer for desc in wanted}
        peer = peers.pop() if len(peers) == 1 else -1
        self._log.message("ncclWaitSignal", (peer,), queue, find(_getframe(1)))
        code = bindings.ncclWaitSignal(len(wanted), ctypes.addressof(structs), comm, queue)
        errors.check(code, "ncclWaitSignal", comm)
