"""Requests for operations on GPU arrays, which are MPI's own requests as well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from mpi4py import MPI

from pynccl.mpi.shared import Shared

__all__ = ["Finished", "Joined", "Launched", "Operation", "Request", "request_for"]


class Operation:
    """Something under way.

    Attributes:
        source, tag, nbytes: what a status tells of it
        error: what went wrong
    """

    def __init__(self) -> None:
        self.source = MPI.ANY_SOURCE
        self.tag = MPI.ANY_TAG
        self.nbytes = 0
        self.error: BaseException | None = None

    def done(self) -> bool:
        """Return whether the buffer may be used. Does not wait."""
        raise NotImplementedError

    def tell(self, status: Any) -> None:
        """Fill in a status."""
        if status is not None:
            status.Set_source(self.source)
            status.Set_tag(self.tag)
            status.Set_elements(MPI.BYTE, self.nbytes)

    def result(self) -> None:
        """Raise what went wrong."""
        if self.error is not None:
            raise self.error


class Joined(Operation):
    """Several as one; the status is the last one's."""

    def __init__(self, *operations: Operation) -> None:
        super().__init__()
        self._operations = operations

    def done(self) -> bool:
        finished = [operation.done() for operation in self._operations]
        if not all(finished):
            return False
        last = self._operations[-1]
        self.source, self.tag, self.nbytes = last.source, last.tag, last.nbytes
        failed = (operation.error for operation in self._operations)
        self.error = next((error for error in failed if error is not None), None)
        return True


class Launched(Operation):
    """Work queued on a stream, done at an event."""

    def __init__(self, event: Any, keep: Any = None) -> None:
        super().__init__()
        self._event = event
        self._keep = keep

    def done(self) -> bool:
        finished: bool = self._event.done()
        return finished


class Finished(Operation):
    """Nothing to do: a message from or to ``MPI.PROC_NULL``."""

    def __init__(self) -> None:
        super().__init__()
        self.source = MPI.PROC_NULL

    def done(self) -> bool:
        return True


class Request(MPI.Grequest):
    """A nonblocking operation on GPU arrays; one of MPI's generalized requests.

    ``Wait``, ``Test`` and the like work on it. Among MPI's own requests it is waited for with this
    class's ``Waitall``, ``Waitany`` and ``Waitsome``, or, where MPI has ``THREAD_MULTIPLE``, with
    ``MPI.Request``'s as well: there a thread keeps the operation going.
    """

    _operation: Operation
    _shared: Shared
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

    def _finish(self) -> None:
        """Block until it is complete."""
        if not self._complete:
            self._shared.wait(lambda: self._complete)

    def Wait(self, status: Any = None) -> Literal[True]:  # noqa: N802
        """Block until the buffer may be used.

        Raises:
            NCCLError: the operation failed
            MPI.Exception: a message was longer than the buffer
        """
        self._finish()
        with _raising([self]):
            return super().Wait(status)

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        """Return whether the buffer may be used. Raises as ``Wait`` does."""
        self._shared.advance()
        with _raising([self] if self._complete else []):
            return super().Test(status)

    def Get_status(self, status: Any = None) -> bool:  # noqa: N802
        """Return whether the buffer may be used, and keep the request."""
        self._shared.advance()
        return super().Get_status(status)

    def wait(self, status: Any = None) -> None:
        """Block until the buffer may be used."""
        self.Wait(status)

    def test(self, status: Any = None) -> tuple[bool, None]:
        """Return whether the buffer may be used, and None."""
        return self.Test(status), None

    @classmethod
    def Waitall(cls, requests: Any, statuses: Any = None) -> Literal[True]:  # noqa: N802
        """Block until all are complete, MPI's own ones among them. Raises as ``Wait`` does."""
        own = _own(requests)
        for request in own:
            request._finish()
        with _raising(own):
            return MPI.Request.Waitall(requests, statuses)

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
        return MPI.Request.Testall(requests, statuses)

    @classmethod
    def Testany(cls, requests: Any, status: Any = None) -> tuple[int, bool]:  # noqa: N802
        """Return the index of one that is complete, if any, and whether there is."""
        _advance(requests)
        return MPI.Request.Testany(requests, status)

    @classmethod
    def Testsome(cls, requests: Any, statuses: Any = None) -> list[int] | None:  # noqa: N802
        """Return the indices of those that are complete."""
        _advance(requests)
        return MPI.Request.Testsome(requests, statuses)

    @classmethod
    def waitall(cls, requests: Any, statuses: Any = None) -> list[Any]:
        """Block until all are complete, and return the messages of MPI's own ones."""
        own = _own(requests)
        for request in own:
            request._finish()
        with _raising(own):
            return MPI.Request.waitall(requests, statuses)


def request_for(shared: Shared, operation: Operation) -> Request:
    """Return a request that is complete when an operation is done."""
    inner = MPI.Grequest.Start(_query, args=(operation,))
    request = Request(inner)
    request._operation = operation
    request._shared = shared
    request._inner = inner
    request._complete = False
    with shared.lock:
        if not request.attempt():
            shared.serve(request)
    return request


def _own(requests: Any) -> list[Request]:
    return [request for request in requests if isinstance(request, Request)]


def _advance(requests: Any) -> None:
    for shared in {request._shared for request in _own(requests)}:
        shared.advance()


@contextmanager
def _raising(requests: list[Request]) -> Iterator[None]:
    """Raise the first error of complete requests, after MPI has let go of all of them."""
    failed = [one._operation.error for one in requests if one._operation.error is not None]
    for one in requests:
        one._operation.error = None
    yield
    if failed:
        raise failed[0]


def _query(status: MPI.Status, operation: Operation) -> None:
    """Called by MPI where a complete request is waited for or tested."""
    operation.tell(status)
    # What is left here, mpi4py's own methods are asked for; it prints the error besides.
    if isinstance(operation.error, MPI.Exception):
        raise operation.error
    if operation.error is not None:
        raise MPI.Exception(MPI.ERR_OTHER)
