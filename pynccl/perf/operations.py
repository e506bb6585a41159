"""The operations of nccl-tests: what they move, what they call, and how bandwidth is reckoned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pynccl.perf import traffic

__all__ = ["OPERATIONS", "Call", "Operation", "Shape"]


@dataclass(frozen=True)
class Shape:
    """The sizes of one measurement, in elements.

    Attributes:
        send, recv: what a rank sends from and receives to
        count: the operation's count argument, and the "count" column
        send_in_place: where a rank's input lies in the receive buffer, times its rank
        recv_in_place: where its output lies, times its rank
    """

    send: int
    recv: int
    count: int
    send_in_place: int = 0
    recv_in_place: int = 0


@dataclass(frozen=True)
class Call:
    """What one rank does in one operation.

    Attributes:
        send, recv: addresses
        count: elements
        itemsize: bytes of one
        datatype, op, root, rank, nranks: as NCCL has them
    """

    send: int
    recv: int
    count: int
    itemsize: int
    datatype: int
    op: int
    root: int
    rank: int
    nranks: int


# Name of a function and its arguments, before the communicator and the stream. Those in one list
# are issued together; "copy" is a copy on the GPU: to, from, bytes.
Step = list[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Operation:
    """One of nccl-tests' programs.

    Attributes:
        shape: sizes for a number of elements, their bytes each, and the number of ranks
        steps: the calls of NCCL
        factor: bus bandwidth as a multiple of algorithm bandwidth, by number of ranks
        parts: bytes of ``count`` elements times this, by number of ranks, are the data moved
        reduces: takes a reduction
        rooted: takes a root
        in_place: can work in place
    """

    shape: Callable[[int, int, int], Shape]
    steps: Callable[[Call], list[Step]]
    factor: Callable[[int], float]
    parts: Callable[[int], int]
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True

    def bandwidth(
        self, shape: Shape, itemsize: int, nranks: int, seconds: float
    ) -> tuple[float, float]:
        """Return algorithm and bus bandwidth, in 10^9 bytes a second."""
        if self is OPERATIONS["alltoallv"]:
            moved = max(shape.send, shape.recv) * itemsize
        else:
            moved = shape.count * self.parts(nranks) * itemsize
        rate = moved / 1e9 / seconds if seconds > 0 else 0.0
        return rate, rate * self.factor(nranks)


def _whole(count: int, itemsize: int, nranks: int) -> Shape:
    return Shape(count, count, count)


def _part(count: int, itemsize: int, nranks: int) -> int:
    """Elements of a rank's part: those of a multiple of 16 bytes."""
    return count // nranks & ~(16 // itemsize - 1)


def _gathered(count: int, itemsize: int, nranks: int) -> Shape:
    part = _part(count, itemsize, nranks)
    return Shape(part, part * nranks, part, send_in_place=part)


def _scattered(count: int, itemsize: int, nranks: int) -> Shape:
    part = _part(count, itemsize, nranks)
    return Shape(part * nranks, part, part, recv_in_place=part)


def _exchanged(count: int, itemsize: int, nranks: int) -> Shape:
    part = _part(count, itemsize, nranks)
    return Shape(part * nranks, part * nranks, part)


def _exchanged_unevenly(count: int, itemsize: int, nranks: int) -> Shape:
    part = 0 if traffic.matrix_file() else _part(count, itemsize, nranks)
    table = traffic.elements(part, itemsize, nranks)
    sends = max(sum(row) for row in table)
    receives = max(sum(row[rank] for row in table) for rank in range(nranks))
    return Shape(sends, receives, part)


def _one(name: str, *fields: str) -> Callable[[Call], list[Step]]:
    """Return what makes a single call of NCCL, of a buffer pair, count, type and these fields."""

    def steps(call: Call) -> list[Step]:
        extra = tuple(getattr(call, field) for field in fields)
        return [[(name, (call.send, call.recv, call.count, call.datatype, *extra))]]

    return steps


def _ring(call: Call) -> list[Step]:
    after, before = (call.rank + 1) % call.nranks, (call.rank - 1) % call.nranks
    return [
        [
            ("ncclSend", (call.send, call.count, call.datatype, after)),
            ("ncclRecv", (call.recv, call.count, call.datatype, before)),
        ]
    ]


def _uneven(call: Call) -> list[Step]:
    table = traffic.elements(call.count, call.itemsize, call.nranks)
    step: Step = []
    step += _messages("ncclSend", call.send, table[call.rank], call)
    step += _messages("ncclRecv", call.recv, [row[call.rank] for row in table], call)
    return [step]


def _messages(name: str, pointer: int, counts: Sequence[int], call: Call) -> Step:
    step: Step = []
    for peer, count in enumerate(counts):
        if count:
            step.append((name, (pointer, count, call.datatype, peer)))
        pointer += count * call.itemsize
    return step


def _hypercube(call: Call) -> list[Step]:
    """An all-gather in log2(ranks) exchanges, each of twice as much as the one before."""
    part = call.count * call.itemsize
    own = call.recv + call.rank * part
    steps: list[Step] = [[("copy", (own, call.send, part))]] if own != call.send else []
    width = 1
    while width < call.nranks:
        first = call.rank & ~(width - 1)
        arguments = (call.count * width, call.datatype, call.rank ^ width)
        steps.append(
            [
                ("ncclSend", (call.recv + first * part, *arguments)),
                ("ncclRecv", (call.recv + (first ^ width) * part, *arguments)),
            ]
        )
        width *= 2
    return steps


def _one_part(nranks: int) -> int:
    return 1


def _all_parts(nranks: int) -> int:
    return nranks


def _other_parts(nranks: int) -> float:
    return (nranks - 1) / nranks


OPERATIONS: dict[str, Operation] = {
    "all_reduce": Operation(
        _whole,
        _one("ncclAllReduce", "op"),
        lambda nranks: 2 * (nranks - 1) / nranks,
        _one_part,
        reduces=True,
    ),
    "all_gather": Operation(_gathered, _one("ncclAllGather"), _other_parts, _all_parts),
    "reduce_scatter": Operation(
        _scattered, _one("ncclReduceScatter", "op"), _other_parts, _all_parts, reduces=True
    ),
    "broadcast": Operation(
        _whole, _one("ncclBroadcast", "root"), _one_part, _one_part, rooted=True
    ),
    "reduce": Operation(
        _whole, _one("ncclReduce", "op", "root"), _one_part, _one_part, reduces=True, rooted=True
    ),
    "alltoall": Operation(
        _exchanged, _one("ncclAlltoAll"), _other_parts, _all_parts, in_place=False
    ),
    "alltoallv": Operation(
        _exchanged_unevenly, _uneven, _other_parts, _all_parts, in_place=False
    ),
    "gather": Operation(
        _gathered, _one("ncclGather", "root"), _other_parts, _all_parts, rooted=True
    ),
    "scatter": Operation(
        _scattered, _one("ncclScatter", "root"), _other_parts, _all_parts, rooted=True
    ),
    "sendrecv": Operation(_whole, _ring, _one_part, _one_part, in_place=False),
    "hypercube": Operation(_gathered, _hypercube, _one_part, lambda nranks: nranks - 1),
}
