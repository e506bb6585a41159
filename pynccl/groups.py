"""Several calls as one operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref
from dataclasses import dataclass

from pynccl import bindings, errors, library, recorder
from pynccl.errors import NCCLNotSupported
from pynccl.functions import FUNCTIONS
from pynccl.types import DataType, RedOp, initialized, version_text

__all__ = ["GroupSimInfo", "group", "group_end", "group_start"]


@dataclass(frozen=True)
class GroupSimInfo:
    """What a group would have taken.

    Attributes:
        estimated_time: NCCL's estimate, in microseconds
    """

    estimated_time: float


class _Later(threading.local):
    """What a thread's group leaves to be done once it is launched."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []


_later = _Later()


def in_group() -> bool:
    """Tell whether this thread collects calls in a group."""
    return recorder.group_number() != 0


def after_group(call: Callable[[], None]) -> None:
    """Call when this thread's group is launched; at once where there is none."""
    if in_group():
        _later.calls.append(call)
    else:
        call()


def _ended() -> list[Callable[[], None]]:
    """Note that a group ends, and return what comes after the outermost."""
    if not recorder.group_ended():
        return []
    calls, _later.calls = _later.calls, []
    return calls


def group_start() -> None:
    """Begin to collect this thread's calls (``ncclGroupStart``, NCCL 2.3.5). Groups nest."""
    code = bindings.ncclGroupStart()
    if code:
        errors.check(code, "ncclGroupStart")
    recorder.group_started()


def group_end(*, simulate: bool = False) -> GroupSimInfo | None:
    """End a group: the outermost end launches what was collected (``ncclGroupEnd``, NCCL 2.3.5).

    Returns when everything is queued on its streams, and communicators that were begun in the group
    are made, unless they are not blocking.

    Args:
        simulate: launch nothing and return an estimate (``ncclGroupSimulateEnd``, NCCL 2.22.3)
    Raises:
        NCCLError: a call in the group failed, and nothing of it was launched
    """
    if not simulate:
        calls = _ended()
        code = bindings.ncclGroupEnd()
        if code:
            errors.check(code, "ncclGroupEnd")
        for call in calls:
            call()
        return None
    if not bindings.available("ncclGroupSimulateEnd"):
        discard()
        loaded = library.load()
        since = FUNCTIONS["ncclGroupSimulateEnd"].since
        raise NCCLNotSupported(
            "ncclGroupSimulateEnd", since, version_text(loaded.version), loaded.path
        )
    _ended()
    info = initialized("ncclSimInfo_t", library.load().version)
    errors.check(bindings.ncclGroupSimulateEnd(byref(info)), "ncclGroupSimulateEnd")
    return GroupSimInfo(float(info.estimatedTime))


def discard() -> None:
    """End a group without launching it.

    NCCL launches nothing of a group in which a call failed; so one is made to fail.
    """
    _ended()
    bindings.ncclAllReduce(0, 0, 0, DataType.INT8, RedOp.SUM, 0, 0)
    bindings.ncclGroupEnd()  # its error is the one that was provoked


@contextmanager
def group() -> Iterator[None]:
    """Fuse the calls made inside into one operation.

    What must go on at the same time belongs in one group: sends and receives between the same
    ranks, and the calls for several GPUs of one thread. What is passed inside must be kept until
    the group has ended: only then is anything queued. An exception inside ends the group without
    launching anything of it, and is the one that is raised.

    Raises:
        NCCLError: NCCL refused to launch the group
    """
    group_start()
    try:
        yield
    except BaseException:
        discard()
        raise
    group_end()
