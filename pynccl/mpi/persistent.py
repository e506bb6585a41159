"""Persistent requests for operations on GPU arrays, which are MPI's own requests as well.

To MPI such a request is an empty synchronous send of this rank to itself. Whoever starts it, this
module or MPI's own ``Startall``, its message can be probed for from then on, in the order of
starts, and receiving that completes the request. So inactive requests, reuse, and the order in
which requests complete are MPI's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from mpi4py import MPI

from pynccl.mpi.requests import Awaited, Operation
from pynccl.mpi.shared import Shared

__all__ = ["Prequest", "persistent"]

_NOTHING = [None, 0, MPI.BYTE]


class Repeated:
    """An operation that can be begun again and again.

    Attributes:
        begin: begins it once
        operation: what was begun last; None once its outcome was told
    """

    def __init__(self, begin: Callable[[], Operation]) -> None:
        self.begin = begin
        self.operation: Operation | None = None


class Started:
    """A persistent request that was started: complete when its message to itself is received."""

    def __init__(self, operation: Operation, message: MPI.Message) -> None:
        self._operation = operation
        self._message = message

    def attempt(self) -> bool:
        """Complete the request if its operation is done."""
        try:
            if not self._operation.done():
                return False
        except Exception as error:
            return self.fail(error)
        self._message.Recv(_NOTHING)
        return True

    def fail(self, error: Exception) -> bool:
        """Complete the request with an error, which ``Wait`` raises."""
        self._operation.error = error
        self._message.Recv(_NOTHING)
        return True


class Failed(Operation):
    """An operation that could not be begun."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def done(self) -> bool:
        return True


class Starts:
    """The persistent requests of a communicator, and what is seen of their starts."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._loop = MPI.Intracomm(MPI.COMM_SELF).Dup()
        self._most = self._loop.Get_attr(MPI.TAG_UB) or 32767  # what MPI promises
        self._tags = count()
        self._known: dict[int, Repeated] = {}
        self._taking = False

    @property
    def expected(self) -> bool:
        """Whether there are requests, which may be started at any time."""
        return bool(self._known)

    def add(self, repeated: Repeated) -> tuple[int, MPI.Request]:
        """Make MPI's request for an operation; return its tag, too."""
        free = (tag % (self._most + 1) for tag in self._tags)
        tag = next(tag for tag in free if tag not in self._known)
        self._known[tag] = repeated
        return tag, self._loop.Ssend_init(_NOTHING, 0, tag)

    def remove(self, tag: int) -> None:
        """Forget a request; it is completed if it is active."""
        self.take()
        self._known.pop(tag, None)

    def take(self) -> None:
        """Begin what was started, in the order of starts, unless another thread launches."""
        shared = self._shared
        if self._taking or not self._known or not shared.launching.acquire(blocking=False):
            return
        self._taking = True
        status = MPI.Status()
        try:
            while message := self._loop.Improbe(0, MPI.ANY_TAG, status):
                repeated = self._known[status.tag]
                try:
                    repeated.operation = repeated.begin()
                except Exception as error:  # it is what Wait raises
                    repeated.operation = Failed(error)
                started = Started(repeated.operation, message)
                if not started.attempt():
                    shared.serve(started)
        finally:
            self._taking = False
            shared.launching.release()

    def close(self) -> None:
        """Free the communicator that starts are seen on."""
        self._known.clear()
        self._loop.Free()


class Prequest(Awaited, MPI.Prequest):
    """A persistent operation on GPU arrays; one of MPI's requests, inactive until it is started.

    ``Start``, ``Wait``, ``Test`` and the like work on it. Among MPI's own requests it is started
    and waited for as ``Request`` is waited for; only this module's methods tell of a message in
    the status, and raise what went wrong.
    """

    _repeated: Repeated
    _shared: Shared
    _tag: int

    def Start(self) -> None:  # noqa: N802
        """Begin the operation. What goes wrong, ``Wait`` raises.

        Raises:
            RuntimeError: the communicator was freed
        """
        self.Startall([self])

    @classmethod
    def Startall(cls, requests: Iterable[Any]) -> None:  # noqa: N802
        """Begin several, in their order, MPI's own ones among them."""
        requests = list(requests)
        own = [request for request in requests if isinstance(request, cls)]
        for request in own:
            if request._shared.nccl is None:
                raise RuntimeError("Start: the communicator of the request was freed")
        MPI.Prequest.Startall(requests)
        for shared in {request._shared for request in own}:
            shared.advance()

    def Free(self) -> None:  # noqa: N802
        """Free the request. An operation that is under way goes on."""
        starts = self._shared.starts
        if starts is not None:
            with self._shared.lock:
                starts.remove(self._tag)
        super().Free()

    def _is_complete(self) -> bool:
        return bool(MPI.Request.Get_status(self))

    def Get_status(self, status: Any = None) -> bool:  # noqa: N802
        """Return whether the buffers may be used, and keep the request active."""
        found = super().Get_status(status)
        if found and self._repeated.operation is not None:
            self._repeated.operation.tell(status)
        return found

    def _active(self) -> Operation | None:
        return self._repeated.operation

    def _outcome(self) -> Operation | None:
        operation, self._repeated.operation = self._repeated.operation, None
        return operation


def persistent(shared: Shared, begin: Callable[[], Operation]) -> Prequest:
    """Return an inactive request for an operation.

    NCCL's communicator exists: ``shared.need`` was called.

    Args:
        begin: called at each start, one after the other, perhaps by the thread that serves requests
    """
    with shared.lock:
        if shared.starts is None:
            shared.starts = Starts(shared)
        repeated = Repeated(begin)
        tag, inner = shared.starts.add(repeated)
    request = Prequest(inner)
    request._repeated, request._shared, request._tag = repeated, shared, tag
    shared.look()
    return request
