"""The collective operations of a communicator."""

from __future__ import annotations

from ctypes import byref, c_int
from sys import _getframe
from time import perf_counter
from typing import Any

import numpy

from pynccl import bindings, errors
from pynccl.arrays import Resolved, datatype_of, numpy_dtype, resolve
from pynccl.call_site import find, sites
from pynccl.config import CollConfig, structure_of
from pynccl.groups import discard, group_end, group_start
from pynccl.recorder import Log, group_number, open_groups
from pynccl.resources import CustomRedOp
from pynccl.streams import handle_of, make_wait, same
from pynccl.types import DataType, RedOp, ScalarResidence
from pynccl.waiting import Handle

__all__ = ["Collectives", "Plan"]


# A call of NCCL, settled but for the communicator and what follows it: the function, its arguments,
# the stream, and what the method returns. A plain tuple: a named one takes 0.2 us longer to make.
Plan = tuple[str, tuple[Any, ...], int, Any]


class Collectives:
    """Collective operations: every rank of the communicator calls the same ones in the same order.

    A buffer is a ``DeviceArray``, an object with ``__cuda_array_interface__`` or ``__dlpack__``, or
    ``(pointer, count, dtype)``; contiguous, on the communicator's GPU. All calls are asynchronous:
    they return when the operation is queued. ``stream`` is where; None means the array's own
    current stream where it names one, else the communicator's. ``config`` is a ``CollConfig``
    (NCCL 2.31.2).

    Every method returns the receive buffer. It raises ``TypeError`` or ``ValueError`` for arguments
    that do not fit, before NCCL is called, and an ``NCCLError`` for what NCCL reports.
    """

    rank: int
    nranks: int
    _handle: Handle
    _ordinal: int
    _queue: int
    _log: Log

    def allreduce(
        self,
        sendbuf: Any,
        recvbuf: Any = None,
        op: Any = RedOp.SUM,
        *,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Any:
        """Reduce over all ranks and leave the result on all of them.

        ``ncclAllReduce``, NCCL 2.3.5.

        Args:
            sendbuf: this rank's elements, as many on every rank
            recvbuf: as many; None for in place
            op: SUM, PROD, MAX, MIN, AVG, or what ``create_pre_mul_sum`` returned
        """
        return self._run(self._allreduce(sendbuf, recvbuf, op, stream), config)

    def reduce(
        self,
        sendbuf: Any,
        recvbuf: Any = None,
        op: Any = RedOp.SUM,
        root: int | None = None,
        *,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Any:
        """Reduce over all ranks and leave the result on one.

        ``ncclReduce``, NCCL 2.3.5.

        Args:
            sendbuf: this rank's elements, as many on every rank
            recvbuf: as many, on the root; None for in place, and on other ranks
            op: as of ``allreduce``
            root: the rank that receives; None makes it an ``allreduce``
        """
        if root is None:
            return self.allreduce(sendbuf, recvbuf, op, stream=stream, config=config)
        return self._run(self._reduce(sendbuf, recvbuf, op, root, stream), config)

    def broadcast(
        self,
        sendbuf: Any,
        recvbuf: Any = None,
        root: int = 0,
        *,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Any:
        """Copy the root's elements to all ranks.

        ``ncclBroadcast``, NCCL 2.3.5.

        Args:
            sendbuf: the elements on the root; elsewhere not read, and may be None
            recvbuf: as many, on every rank; None for in place in ``sendbuf``
            root: the rank that sends
        """
        return self._run(self._broadcast(sendbuf, recvbuf, root, stream), config)

    def allgather(
        self, sendbuf: Any, recvbuf: Any, *, stream: Any = None, config: CollConfig | None = None
    ) -> Any:
        """Put the elements of all ranks one after another, on all ranks.

        ``ncclAllGather``, NCCL 2.3.5. In place where ``sendbuf`` is the rank's part of ``recvbuf``.

        Args:
            sendbuf: this rank's elements, as many on every rank
            recvbuf: ``nranks`` times as many
        """
        return self._run(self._allgather(sendbuf, recvbuf, stream), config)

    def reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Any = RedOp.SUM,
        *,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Any:
        """Reduce over all ranks and leave each rank its part of the result.

        ``ncclReduceScatter``, NCCL 2.3.5. In place where ``recvbuf`` is the rank's part of
        ``sendbuf``.

        Args:
            sendbuf: ``nranks`` times as many elements as ``recvbuf``
            recvbuf: the part of this rank, as many on every rank
            op: as of ``allreduce``
        """
        return self._run(self._reduce_scatter(sendbuf, recvbuf, op, stream), config)

    def alltoall(
        self, sendbuf: Any, recvbuf: Any, *, stream: Any = None, config: CollConfig | None = None
    ) -> Any:
        """Send a part to each rank and receive a part from each.

        ``ncclAlltoAll``, NCCL 2.28.3; grouped sends and receives before.

        Args:
            sendbuf: ``nranks`` parts; the i-th goes to rank i
            recvbuf: as many elements; the i-th part comes from rank i. Not the same memory
        """
        plan = self._alltoall(sendbuf, recvbuf, stream)
        if bindings.available("ncclAlltoAll"):
            return self._run(plan, config)
        _no_config(config)
        _, arguments, queue, result = plan
        send, recv, count, datatype = arguments
        step = count * DataType(datatype).itemsize
        everyone = range(self.nranks)
        return self._exchange(
            [(send + peer * step, count, datatype, peer) for peer in everyone],
            [(recv + peer * step, count, datatype, peer) for peer in everyone],
            queue,
            result,
        )

    def gather(
        self,
        sendbuf: Any,
        recvbuf: Any = None,
        root: int = 0,
        *,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Any:
        """Put the elements of all ranks one after another, on one rank.

        ``ncclGather``, NCCL 2.28.3; grouped sends and receives before.

        Args:
            sendbuf: this rank's elements, as many on every rank
            recvbuf: ``nranks`` times as many, on the root; elsewhere not written, and may be None
            root: the rank that receives
        """
        plan = self._gather(sendbuf, recvbuf, root, stream)
        if bindings.available("ncclGather"):
            return self._run(plan, config)
        _no_config(config)
        _, arguments, queue, result = plan
        send, recv, count, datatype, root = arguments
        step = count * DataType(datatype).itemsize
        sources = range(self.nranks) if self.rank == root else ()
        return self._exchange(
            [(send, count, datatype, root)],
            [(recv + peer * step, count, datatype, peer) for peer in sources],
            queue,
            result,
        )

    def scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        stream: Any = None,
        config: CollConfig | None = None,
    ) -> Any:
        """Give each rank its part of one rank's elements.

        ``ncclScatter``, NCCL 2.28.3; grouped sends and receives before.

        Args:
            sendbuf: ``nranks`` parts on the root; elsewhere not read, and may be None
            recvbuf: the part of this rank, as many elements on every rank
            root: the rank that sends
        """
        plan = self._scatter(sendbuf, recvbuf, root, stream)
        if bindings.available("ncclScatter"):
            return self._run(plan, config)
        _no_config(config)
        _, arguments, queue, result = plan
        send, recv, count, datatype, root = arguments
        step = count * DataType(datatype).itemsize
        targets = range(self.nranks) if self.rank == root else ()
        return self._exchange(
            [(send + peer * step, count, datatype, peer) for peer in targets],
            [(recv, count, datatype, root)],
            queue,
            result,
        )

    def create_pre_mul_sum(self, scalar: Any, dtype: Any = None) -> CustomRedOp:
        """Return a reduction that multiplies by a scalar, then sums.

        ``ncclRedOpCreatePreMulSum``, NCCL 2.11.4. Each rank's scalar applies to its own elements.

        Args:
            scalar: a number; or a buffer of one element on the GPU, which is read when a collective
                runs
            dtype: of the arrays to reduce; may be left out for a buffer
        Raises:
            TypeError: a number without a dtype, or a complex dtype
        """
        comm = self._handle.value or self._gone()
        made = c_int()
        if isinstance(scalar, (int, float, numpy.generic)):
            if dtype is None:
                raise TypeError("dtype: a number needs the dtype of the arrays to reduce")
            datatype, parts = datatype_of(dtype)
            host = numpy.array(scalar).astype(numpy_dtype(dtype))
            pointer, residence = host.ctypes.data, ScalarResidence.HOST_IMMEDIATE
            keep: Any = None
        else:
            found = self._buffer(scalar, "scalar")
            datatype, parts = DataType(found.datatype), found.parts
            if found.count != 1:
                raise ValueError(f"scalar has {found.count} elements; it must have one")
            pointer, residence, keep = found.ptr, ScalarResidence.DEVICE, scalar
        if parts != 1:
            raise TypeError("a complex scalar cannot be multiplied by; scale the array instead")
        code = bindings.ncclRedOpCreatePreMulSum(byref(made), pointer, datatype, residence, comm)
        errors.check(code, "ncclRedOpCreatePreMulSum", comm)
        return CustomRedOp(self._handle, made.value, keep)

    def _run(self, plan: Plan, config: CollConfig | None) -> Any:
        name, arguments, queue, result = plan
        comm = self._handle.value or self._gone()
        cell, append, number = self._log.hot
        frame = _getframe(2)
        try:
            site = sites[id(frame.f_code), frame.f_lasti] or find(frame)
        except KeyError:
            site = find(frame)
        cell.value = site.address
        append(
            (
                number(),
                perf_counter(),
                open_groups and group_number(),
                (name, arguments, queue, site),
            )
        )
        if config is not None:
            name += "Config"
            code = getattr(bindings, name)(*arguments, comm, queue, pointer_to(config))
        else:
            code = getattr(bindings, name)(*arguments, comm, queue)
        if code:
            errors.check(code, name, comm, arguments[3])
        return result

    def _gone(self) -> int:
        raise ValueError(f"the communicator was {self._log.state}")

    def _exchange(
        self,
        sends: list[tuple[int, int, int, int]],
        receives: list[tuple[int, int, int, int]],
        queue: int,
        result: Any,
    ) -> Any:
        """Send and receive (pointer, count, data type, peer) in one group."""
        comm = self._handle.value or self._gone()
        log, site = self._log, find(_getframe(2))
        group_start()
        try:
            for send in sends:
                log.message("ncclSend", send, queue, site)
                code = bindings.ncclSend(*send, comm, queue)
                if code:
                    errors.check(code, "ncclSend", comm, send[2])
            for receive in receives:
                log.message("ncclRecv", receive, queue, site)
                code = bindings.ncclRecv(*receive, comm, queue)
                if code:
                    errors.check(code, "ncclRecv", comm, receive[2])
        except BaseException:
            discard()
            raise
        group_end()
        return result

    def _buffer(self, buffer: Any, argument: str) -> Resolved:
        found = resolve(buffer, argument)
        if found.device != self._ordinal and found.device >= 0:
            raise ValueError(
                f"{argument} is on GPU {found.device}, the communicator on GPU {self._ordinal}: "
                "pass memory of that one"
            )
        return found

    def _pair(
        self, sendbuf: Any, recvbuf: Any, send_parts: int, recv_parts: int
    ) -> tuple[Resolved, Resolved]:
        """Resolve two buffers whose counts are to each other as the parts."""
        send = self._buffer(sendbuf, "sendbuf")
        recv = self._buffer(recvbuf, "recvbuf")
        if send.datatype != recv.datatype or send.parts != recv.parts:
            raise TypeError(
                f"sendbuf has {_type_name(send)} and recvbuf {_type_name(recv)}: they must be equal"
            )
        if send.count * recv_parts != recv.count * send_parts:
            have = f"sendbuf has {send.count // send.parts} and recvbuf {recv.count // recv.parts}"
            raise ValueError(f"{have} elements: {_ratio(send_parts, recv_parts)}")
        return send, recv

    def _stream_for(self, stream: Any, *buffers: Resolved) -> int:
        if stream is None:
            own = buffers[0].stream
            queue = self._queue if own is None else own
        else:
            queue = handle_of(stream)
        for buffer in buffers:
            made_on = buffer.made_on
            if made_on is not None and made_on != queue and not same(made_on, queue):
                make_wait(queue, made_on, self._ordinal)
        return queue

    def _check_root(self, root: int, argument: str = "root") -> None:
        if not isinstance(root, (int, numpy.integer)) or not 0 <= root < self.nranks:
            raise ValueError(f"{argument} {root!r}: must be a rank from 0 to {self.nranks - 1}")

    def _allreduce(
        self, sendbuf: Any, recvbuf: Any = None, op: Any = RedOp.SUM, stream: Any = None
    ) -> Plan:
        if recvbuf is None:
            send = recv = self._buffer(sendbuf, "sendbuf")
            recvbuf = sendbuf
            queue = self._stream_for(stream, send)
        else:
            send, recv = self._pair(sendbuf, recvbuf, 1, 1)
            queue = self._stream_for(stream, send, recv)
        if op.__class__ is not RedOp or send.parts != 1:
            op = op_code(op, send.parts)
        arguments = (send.ptr, recv.ptr, send.count, send.datatype, op)
        return ("ncclAllReduce", arguments, queue, recvbuf)

    def _reduce(
        self,
        sendbuf: Any,
        recvbuf: Any = None,
        op: Any = RedOp.SUM,
        root: int = 0,
        stream: Any = None,
    ) -> Plan:
        self._check_root(root)
        if recvbuf is None:
            recvbuf = sendbuf
        send, recv = self._pair(sendbuf, recvbuf, 1, 1)
        op = op_code(op, send.parts)
        arguments = (send.ptr, recv.ptr, send.count, send.datatype, op, root)
        return ("ncclReduce", arguments, self._stream_for(stream, send, recv), recvbuf)

    def _broadcast(
        self, sendbuf: Any, recvbuf: Any = None, root: int = 0, stream: Any = None
    ) -> Plan:
        self._check_root(root)
        if sendbuf is None and self.rank == root:
            raise TypeError("sendbuf is None on the root")
        if recvbuf is None:
            recvbuf = sendbuf
        if sendbuf is None:
            sendbuf = recvbuf
        send, recv = self._pair(sendbuf, recvbuf, 1, 1)
        arguments = (send.ptr, recv.ptr, send.count, send.datatype, root)
        return ("ncclBroadcast", arguments, self._stream_for(stream, send, recv), recvbuf)

    def _allgather(self, sendbuf: Any, recvbuf: Any, stream: Any = None) -> Plan:
        send, recv = self._pair(sendbuf, recvbuf, 1, self.nranks)
        arguments = (send.ptr, recv.ptr, send.count, send.datatype)
        return ("ncclAllGather", arguments, self._stream_for(stream, send, recv), recvbuf)

    def _reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, op: Any = RedOp.SUM, stream: Any = None
    ) -> Plan:
        send, recv = self._pair(sendbuf, recvbuf, self.nranks, 1)
        op = op_code(op, send.parts)
        arguments = (send.ptr, recv.ptr, recv.count, send.datatype, op)
        return ("ncclReduceScatter", arguments, self._stream_for(stream, send, recv), recvbuf)

    def _alltoall(self, sendbuf: Any, recvbuf: Any, stream: Any = None) -> Plan:
        send, recv = self._pair(sendbuf, recvbuf, 1, 1)
        if send.count % self.nranks:
            raise ValueError(
                f"sendbuf has {send.count // send.parts} elements, which {self.nranks} ranks "
                "cannot share evenly; alltoallv takes a count per rank"
            )
        arguments = (send.ptr, recv.ptr, send.count // self.nranks, send.datatype)
        return ("ncclAlltoAll", arguments, self._stream_for(stream, send, recv), recvbuf)

    def _gather(
        self, sendbuf: Any, recvbuf: Any = None, root: int = 0, stream: Any = None
    ) -> Plan:
        self._check_root(root)
        if self.rank != root:
            send = self._buffer(sendbuf, "sendbuf")
            arguments = (send.ptr, 0, send.count, send.datatype, root)
            return ("ncclGather", arguments, self._stream_for(stream, send), recvbuf)
        if recvbuf is None:
            raise TypeError("recvbuf is None on the root")
        send, recv = self._pair(sendbuf, recvbuf, 1, self.nranks)
        arguments = (send.ptr, recv.ptr, send.count, send.datatype, root)
        return ("ncclGather", arguments, self._stream_for(stream, send, recv), recvbuf)

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, stream: Any = None) -> Plan:
        self._check_root(root)
        if self.rank != root:
            recv = self._buffer(recvbuf, "recvbuf")
            arguments = (0, recv.ptr, recv.count, recv.datatype, root)
            return ("ncclScatter", arguments, self._stream_for(stream, recv), recvbuf)
        if sendbuf is None:
            raise TypeError("sendbuf is None on the root")
        send, recv = self._pair(sendbuf, recvbuf, self.nranks, 1)
        arguments = (send.ptr, recv.ptr, recv.count, send.datatype, root)
        return ("ncclScatter", arguments, self._stream_for(stream, send, recv), recvbuf)


def op_code(op: Any, parts: int) -> int:
    if parts != 1 and op not in (RedOp.SUM, RedOp.AVG):
        raise TypeError(f"op {op!r}: complex numbers are reduced with SUM and AVG only")
    if isinstance(op, CustomRedOp):
        return op.op
    if isinstance(op, RedOp):
        return op
    raise TypeError(f"op {op!r}: must be SUM, PROD, MAX, MIN, AVG, or of create_pre_mul_sum")


def pointer_to(config: CollConfig) -> Any:
    struct = structure_of(config, CollConfig)
    return None if struct is None else byref(struct)


def _no_config(config: CollConfig | None) -> None:
    if config is not None:
        structure_of(config, CollConfig)  # says which release it needs


def _type_name(buffer: Resolved) -> str:
    name = DataType(buffer.datatype).name.lower()
    return name if buffer.parts == 1 else f"complex of {name}"


def _ratio(send_parts: int, recv_parts: int) -> str:
    if send_parts == recv_parts:
        return "they must have as many"
    if send_parts == 1:
        return f"recvbuf must have {recv_parts} times as many, one part from each rank"
    return (
        f"sendbuf must have {send_parts} times as many, one part for each rank; reduce_scatterv "
        "and scatterv take a count per rank"
    )
