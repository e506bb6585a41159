"""Collectives whose arguments are settled once, to be issued many times."""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from typing import Any

from pynccl import bindings, errors
from pynccl.arrays import resolve
from pynccl.call_site import find
from pynccl.collectives import Collectives, Plan, pointer_to
from pynccl.config import CollConfig
from pynccl.functions import FUNCTIONS
from pynccl.recorder import group_number, open_groups
from pynccl.streams import make_wait, same

__all__ = ["Prepared"]

_FUNCTIONS = {
    "allreduce": "ncclAllReduce",
    "reduce": "ncclReduce",
    "broadcast": "ncclBroadcast",
    "allgather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "alltoall": "ncclAlltoAll",
    "gather": "ncclGather",
    "scatter": "ncclScatter",
}


class Prepared(Collectives):
    """Collectives, and the same with their arguments settled beforehand."""

    def prepare(self, operation: str, *buffers: Any, **arguments: Any) -> Callable[[], Any]:
        """Settle a collective's arguments once; each call of what is returned issues it.

        A call returns the receive buffer. The arrays are kept, and must stay where they are. The
        recorder and the emulator name the line of ``prepare``.

        Args:
            operation: the name of a collective method, such as ``"allreduce"``
            buffers, arguments: what the method takes
        Raises:
            ValueError: there is no such collective
            TypeError, ValueError: what the method raises for its arguments; ValueError, also from
                a call, where the communicator is not made yet or gone
        """
        if operation not in _FUNCTIONS:
            raise ValueError(f"operation {operation!r}: must be one of {', '.join(_FUNCTIONS)}")
        config = arguments.pop("config", None)
        if operation == "reduce" and _root(buffers, arguments) is None:
            operation = "allreduce"
            buffers = buffers[:3]
            arguments.pop("root", None)
        if not bindings.available(_FUNCTIONS[operation]):
            method = getattr(self, operation)
            return lambda: method(*buffers, config=config, **arguments)
        plan = getattr(self, f"_{operation}")(*buffers, **arguments)
        producers = _producers(plan, buffers, arguments)
        return self._issuer(plan, config, producers, (buffers, arguments))

    def _issuer(
        self, plan: Plan, config: CollConfig | None, producers: tuple[int, ...], keep: Any
    ) -> Callable[[], Any]:
        name, arguments, queue, result = plan
        handle, ordinal, gone = self._handle, self._ordinal, self._gone
        datatype = arguments[3]
        site = find(_getframe(2))
        address, record = site.address, (name, arguments, queue, site)
        cell, append, number = self._log.hot
        tail: tuple[Any, ...] = (queue,)
        if config is not None:
            name += "Config"
            tail = (queue, pointer_to(config))
        function = getattr(bindings, name)
        everything = _converted(name, arguments, handle.value or gone(), tail)

        def issue(_keep: Any = keep) -> Any:
            if producers:
                for producer in producers:
                    make_wait(queue, producer, ordinal)
            if not handle.value:
                gone()
            cell.value = address
            append((number(), None, open_groups and group_number(), record))
            code = function(*everything)
            if code:
                errors.check(code, name, handle.value, datatype)
            return result

        return issue


def _converted(
    name: str, head: tuple[Any, ...], comm: int, tail: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Make the arguments into C's types, which no call then has to do."""
    kinds = FUNCTIONS[name].arguments.values()
    return tuple(
        kind(value) if isinstance(value, int) else value
        for kind, value in zip(kinds, (*head, comm, *tail))
    )


def _root(buffers: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    return buffers[3] if len(buffers) > 3 else arguments.get("root")


def _producers(
    plan: Plan, buffers: tuple[Any, ...], arguments: dict[str, Any]
) -> tuple[int, ...]:
    """Return the streams, other than the operation's own, that make the buffers' contents."""
    _, _, queue, _ = plan
    given = [*buffers[:2], arguments.get("sendbuf"), arguments.get("recvbuf")]
    streams = {resolve(buffer).made_on for buffer in given if buffer is not None}
    return tuple(s for s in streams if s is not None and not same(s, queue))
