"""How often a program communicates, and how much."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pynccl.communicator import Communicator

__all__ = ["CountedCommunicator", "Traffic"]


@dataclass
class Traffic:
    """Calls and bytes by operation.

    The bytes are those that one rank sends where the collectives go round a ring of the n ranks,
    which is what moves the least (Patarasu and Yuan 2009); a broadcast's or reduce's are the mean
    of the ranks.

    Attributes:
        calls, nbytes: by the name of the method
        paused: whether calls are not counted
    """

    calls: dict[str, int] = field(default_factory=dict)
    nbytes: dict[str, float] = field(default_factory=dict)
    paused: bool = False

    def add(self, operation: str, nbytes: float) -> None:
        """Count one call."""
        if not self.paused:
            self.calls[operation] = self.calls.get(operation, 0) + 1
            self.nbytes[operation] = self.nbytes.get(operation, 0) + nbytes

    def reset(self) -> None:
        """Start again from nothing."""
        self.calls.clear()
        self.nbytes.clear()

    @property
    def total(self) -> float:
        """Bytes of all operations."""
        return sum(self.nbytes.values())


def _around(nranks: int) -> float:
    return (nranks - 1) / nranks


# Bytes that a rank sends, from its number, the number of ranks and the call's arguments.
_SENT: dict[str, Callable[..., float]] = {
    "allreduce": lambda rank, n, sendbuf, *_, **__: 2 * _around(n) * sendbuf.nbytes,
    "reduce": lambda rank, n, sendbuf, *_, **__: _around(n) * sendbuf.nbytes,
    "broadcast": lambda rank, n, sendbuf, *_, **__: _around(n) * sendbuf.nbytes,
    "allgather": lambda rank, n, sendbuf, *_, **__: (n - 1) * sendbuf.nbytes,
    "reduce_scatter": lambda rank, n, sendbuf, *_, **__: _around(n) * sendbuf.nbytes,
    "alltoall": lambda rank, n, sendbuf, *_, **__: _around(n) * sendbuf.nbytes,
    "alltoallv": lambda rank, n, sendbuf, counts, *_, **__: _elsewhere(rank, sendbuf, counts),
    "send": lambda rank, n, buf, *_, **__: buf.nbytes,
    "sendrecv": lambda rank, n, sendbuf, *_, **__: sendbuf.nbytes,
}


def _elsewhere(rank: int, sendbuf: Any, counts: Sequence[int]) -> int:
    itemsize: int = sendbuf.dtype.itemsize
    return (sum(counts) - counts[rank]) * itemsize


class CountedCommunicator:
    """A communicator whose calls are counted; otherwise the same.

    Args:
        comm: the communicator
        traffic: where to count; communicators made by ``split`` count there too
    """

    def __init__(self, comm: Communicator, traffic: Traffic | None = None) -> None:
        self.comm = comm
        self.traffic = Traffic() if traffic is None else traffic

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.comm, name)
        if name not in _SENT:
            return value
        rank, nranks, sent = self.comm.rank, self.comm.nranks, _SENT[name]

        @functools.wraps(value)
        def counted(*arguments: Any, **keywords: Any) -> Any:
            self.traffic.add(name, sent(rank, nranks, *arguments, **keywords))
            return value(*arguments, **keywords)

        return counted

    def split(self, color: int | None = None, key: int = 0) -> CountedCommunicator | None:
        """Divide the communicator, as ``Communicator.split``, and count the parts' calls too."""
        made = self.comm.split(color, key)
        return None if made is None else CountedCommunicator(made, self.traffic)

    def __enter__(self) -> CountedCommunicator:
        self.comm.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.comm.__exit__(*exception)
