"""Requests for operations on GPU arrays, which are MPI's own requests as well."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from mpi4py import MPI

from pynccl.mpi.shared import Shared

__all__ = ["Awaited", "Finished", "Joined", "Operation", "Request", "request_for"]


class Operation:
    """Something under way.

    Attributes:
        source, tag, nbytes: what a status tells of it
        error: what went wrong
        cancelled: whether it was given up
    """

    def __init__(self) -> None:
        self.source = MPI.ANY_SOURCE
        self.tag = MPI.ANY_TAG
        self.nbytes = 0
        self.error: BaseException | None = None
        self.cancelled = False

    def done(self) -> bool:
        """Return whether the buffer may be used. Does not wait."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Give it up, where that can be done."""

    def tell(self, status: Any) -> None:
        """Fill in a status."""
        if status is not None:
            status.Set_source(self.source)
            status.Set_tag(self.tag)
            status.Set_elements(MPI.BYTE, self.nbytes)
            status.Set_cancelled(self.cancelled)

    def result(self) -> None:
        """Raise what went wrong."""
        if self.error is not None:
            raise self.error


class Joined(Operation):
    """Several as one; the status is the last one's."""

    def __init__(self, *operations: Operation) -> None:
        super().__init__()
        self._operations = operations

    def cancel(self) -> None:
        for operation in self._operations:
            operation.cancel()

    def done(self) -> bool:
        finished = [operation.done() for operation in self._operations]
        if not all(finished):
            return False
        last = self._operations[-1]
        self.source, self.tag, self.nbytes = last.source, last.tag, last.nbytes
        self.cancelled = last.cancelled
        failed = (operation.error for operation in self._operations)
        self.error = next((error for error in failed if error is not None), None)
        return True


class Finished(Operation):
    """Nothing to do: a message from or to ``MPI.PROC_NULL``."""

    def __init__(self) -> None:
        super().__init__()
        self.source = MPI.PROC_NULL

    def done(self) -> bool:
        return True


if TYPE_CHECKING:
    Base = MPI.Request
else:
    Base = object


class Awaited(Base):
    """The waits of a request for an operation on GPU arrays."""

    _shared: Shared

    def _is_complete(self) -> bool:
        raise NotImplementedError

    def _active(self) -> Operation | None:
        """Return the operation that no wait has told of."""
        raise NotImplementedError

    def _outcome(self) -> Operation | None:
        """Return the operation that MPI has completed, once."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Block until it is complete."""
        if not self._is_complete():
            self._shared.wait(self._is_complete)

    def Wait(self, status: Any = None) -> Literal[True]:  # noqa: N802
        """Block until the buffer may be used.

        Raises:
            NCCLError: the operation failed
            MPI.Exception: a message was longer than the buffer
        """
        self._finish()
        with _quiet():
            super().Wait(status)
        _tell([self], [0], [status])
        return True

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        """Return whether the buffer may be used. Raises as ``Wait`` does."""
        self._shared.advance()
        with _quiet():
            found = super().Test(status)
        _tell([self], [0] if found else [], [status])
        return found

    def Get_status(self, status: Any = None) -> bool:  # noqa: N802
        """Return whether the buffer may be used, and keep the request."""
        self._shared.advance()
        return super().Get_status(status)

    def Cancel(self) -> None:  # noqa: N802
        """Give up a receive that has met no message, which then is complete; else do nothing.

        A status tells whether it was (``Is_cancelled``).
        """
        with self._shared.lock:
            self._shared.advance()
            operation = self._active()
            if operation is not None:
                operation.cancel()
        self._shared.advance()

    def wait(self, status: Any = None) -> None:
        """Block until the buffer may be used."""
        self.Wait(status)

    def test(self, status: Any = None) -> tuple[bool, None]:
        """Return whether the buffer may be used, and None."""
        return self.Test(status), None

    @classmethod
    def Waitall(cls, requests: Any, statuses: Any = None) -> Literal[True]:  # noqa: N802
        """Block until all are complete, MPI's own ones among them. Raises as ``Wait`` does."""
        for request in _own(requests):
            request._finish()
        with _quiet():
            found = MPI.Request.Waitall(requests, statuses)
        _tell(requests, range(len(requests)), statuses)
        return found

    @classmethod
    def Waitany(cls, requests: Any, status: Any = None) -> int:  # noqa: N802
        """Block until one is complete, and return its index."""
        while True:
            index, found = cls.Testany(requests, status)
            if found:
                return index
            time.sleep(0)

    @classmethod
    def Waitsome(cls, requests: Any, statuses: Any = None) -> list[int] | None:  # noqa: N802
        """Block until some are complete, and return their indices."""
        while True:
            found = cls.Testsome(requests, statuses)
            if found is None or found:
                return found
            time.sleep(0)

    @classmethod
    def Testall(cls, requests: Any, statuses: Any = None) -> bool:  # noqa: N802
        """Return whether all are complete."""
        _advance(requests)
        with _quiet():
            found = MPI.Request.Testall(requests, statuses)
        _tell(requests, range(len(requests)) if found else [], statuses)
        return found

    @classmethod
    def Testany(cls, requests: Any, status: Any = None) -> tuple[int, bool]:  # noqa: N802
        """Return the index of one that is complete, if any, and whether there is."""
        _advance(requests)
        with _quiet():
            index, found = MPI.Request.Testany(requests, status)
        _tell(requests, [index] if found and index >= 0 else [], [status])
        return index, found

    @classmethod
    def Testsome(cls, requests: Any, statuses: Any = None) -> list[int] | None:  # noqa: N802
        """Return the indices of those that are complete."""
        _advance(requests)
        with _quiet():
            found = MPI.Request.Testsome(requests, statuses)
        _tell(requests, found or [], statuses)
        return found

    @classmethod
    def waitall(cls, requests: Any, statuses: Any = None) -> list[Any]:
        """Block until all are complete, and return the messages of MPI's own ones."""
        for request in _own(requests):
            request._finish()
        with _quiet():
            found = MPI.Request.waitall(requests, statuses)
        _tell(requests, range(len(requests)), statuses)
        return found


class Request(Awaited, MPI.Grequest):
    """A nonblocking operation on GPU arrays; one of MPI's generalized requests.

    ``Wait``, ``Test`` and the like work on it. Among MPI's own requests it is waited for with this
    class's ``Waitall``, ``Waitany`` and ``Waitsome``, or, where MPI has ``THREAD_MULTIPLE``, with
    ``MPI.Request``'s as well: there a thread keeps the operation going.
    """

    _operation: Operation
    _untold: Operation | None
    _inner: Any
    _complete: bool

    def attempt(self) -> bool:
        """Complete the request if its operation is done."""
        try:
            if not self._operation.done():
                return False
        except Exception as error:
            return self.fail(error)
        self._complete = True
        self._inner.Complete()
        return True

    def fail(self, error: Exception) -> bool:
        """Complete the request with an error, which ``Wait`` raises."""
        self._operation.error = error
        self._complete = True
        self._inner.Complete()
        return True

    def _is_complete(self) -> bool:
        return self._complete

    def _active(self) -> Operation | None:
        return self._untold

    def _outcome(self) -> Operation | None:
        outcome, self._untold = self._untold, None
        return outcome


def request_for(shared: Shared, operation: Operation) -> Request:
    """Return a request that is complete when an operation is done."""
    inner = MPI.Grequest.Start(_query, args=(operation,))
    request = Request(inner)
    request._operation = request._untold = operation
    request._shared = shared
    request._inner = inner
    request._complete = False
    with shared.lock:
        if not request.attempt():
            shared.serve(request)
    return request


def _own(requests: Any) -> list[Awaited]:
    return [request for request in requests if isinstance(request, Awaited)]


def _advance(requests: Any) -> None:
    for shared in {request._shared for request in _own(requests)}:
        shared.advance()


_asking = threading.local()


@contextmanager
def _quiet() -> Iterator[None]:
    """Let MPI complete requests of this thread whatever their operations came to."""
    _asking.quiet = True
    try:
        yield
    finally:
        _asking.quiet = False


def _tell(requests: Any, complete: Iterable[int], statuses: Any) -> None:
    """Fill in the statuses of requests that MPI has completed, and raise their first error."""
    failed = None
    for place, index in enumerate(complete):
        request = requests[index]
        operation = request._outcome() if isinstance(request, Awaited) else None
        if operation is not None:
            if statuses is not None and place < len(statuses):
                operation.tell(statuses[place])
            failed = failed or operation.error
    if failed is not None:
        raise failed


def _query(status: MPI.Status, operation: Operation) -> None:
    """Called by MPI where a complete request is waited for or tested."""
    operation.tell(status)
    if operation.error is None or getattr(_asking, "quiet", False):
        return
    # mpi4py's own methods ask for it; it prints the error besides.
    if isinstance(operation.error, MPI.Exception):
        raise operation.error
    raise MPI.Exception(MPI.ERR_OTHER)
