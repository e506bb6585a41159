"""The flight recorder: what each communicator was last asked for, from where, and how far it came.

It is always on. A call leaves a tuple of numbers in a ring; words are made of it only when
something has failed, or a program asks. The record of every rank can be written to a folder
(``PYNCCL_TRACE``), where ``python -m pynccl trace`` lays them side by side.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from sys import _getframe
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from pynccl.call_site import Site, find
from pynccl.functions import FUNCTIONS
from pynccl.types import DataType, RedOp

if TYPE_CHECKING:
    from pynccl.unique_id import UniqueId

__all__ = ["Log", "Operation", "dump", "logs", "of", "report"]

DEFAULT_SIZE = 1024
ENDED = 8  # communicators that are remembered after their end
SHOWN = 6  # operations in a report
MESSAGES = ("ncclSend", "ncclRecv", "ncclPutSignal", "ncclSignal", "ncclWaitSignal")


class Operation(NamedTuple):
    """An operation as the record tells it.

    Attributes:
        number: its place among all that this rank asked of the communicator, from 1
        kind: ``"collective"``, ``"message"``, ``"control"`` (split, grow, finalize), or
            ``"refused"`` for a call that the library did not take
        ordinal: its place among the collectives and controls; of a message, among those of the same
            function with the same peer. So equal ordinals belong together on different ranks
        function: NCCL's
        elements, dtype, nbytes: of what the call names; 0 and "" where there are none
        op, root, peer: None where the function has none
        stream: CUDA's handle
        group: number of the group it was in; 0 for none
        site: file and line
        time: seconds of ``time.perf_counter``; of a prepared operation, between its neighbours'
        known: the same of the moment at which a synchronize told that it was done, or None
        state: ``"completed"``; ``"not completed"``; ``"issued"`` where nobody can tell;
            ``"refused"``
    """

    number: int
    kind: str
    ordinal: int
    function: str
    elements: int
    dtype: str
    nbytes: int
    op: str | None
    root: int | None
    peer: int | None
    stream: int
    group: int
    site: str
    time: float
    known: float | None
    state: str

    def __str__(self) -> str:
        return f"#{self.number} {self.call}  {self.site}  {self.state}"

    @property
    def call(self) -> str:
        """The function and its arguments, such as ``ncclReduce(1024 float32, sum, root 0)``."""
        parts = [f"{self.elements} {self.dtype}"] if self.dtype else []
        parts += [self.op] if self.op else []
        parts += [f"root {self.root}"] if self.root is not None else []
        if self.peer is not None:
            to = "from" if self.function in ("ncclRecv", "ncclWaitSignal") else "to"
            parts += [f"{to} {self.peer}"]
        return f"{self.function}({', '.join(parts)})"


class Place(NamedTuple):
    """How an operation that is not a collective is counted.

    Attributes:
        ordinal: a message's
        apart: how many so far are not among the collectives and controls
        ours: how many so far the library was not given
    """

    kind: str
    ordinal: int
    apart: int
    ours: int


Hot = tuple[ctypes.c_size_t, Callable[[tuple[Any, ...]], None], Callable[[], int]]


class Log:
    """The record of one communicator on one rank.

    Attributes:
        rank, nranks, device: of the communicator; -1 until they are known
        identity: a name that is the same on all its ranks and no other communicator's
        alias: another such name; "" for none
        hot: what a call needs: where its site's address is put for the library to read; what takes
            ``(number, time or None, group or falsy, (function, arguments, queue, site))``, and
            a ``Place`` for what is not a collective; and what returns the next number
        peers: how many messages of a function there were with a peer
        state: ``"alive"``, ``"destroyed"``, ``"aborted"``
    """

    __slots__ = (
        "_apart",
        "_children",
        "_made",
        "_ours",
        "_pending",
        "_progress",
        "_ring",
        "_synchronized",
        "alias",
        "device",
        "handle",
        "hot",
        "identity",
        "nranks",
        "peers",
        "rank",
        "state",
    )

    def __init__(self, rank: int, nranks: int, device: int) -> None:
        self.rank, self.nranks, self.device = rank, nranks, device
        self.identity = self.alias = ""
        self._children: defaultdict[str, count[int]] = defaultdict(count)
        self.state = "alive"
        self.handle = 0
        self._made = perf_counter()
        self._ring: deque[tuple[Any, ...]] = deque(maxlen=size())
        self.hot: Hot = (ctypes.c_size_t(), self._ring.append, count(1).__next__)
        self._apart = self._ours = self._pending = 0
        self.peers: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._synchronized: deque[tuple[int, int, float]] = deque(maxlen=256)
        self._progress: tuple[int, int] | None = None

    def opened(self, handle: int) -> None:
        """Take NCCL's handle."""
        self.handle = handle
        _by_handle[handle] = self
        function = _of_emulator("pynccl_call_site", ctypes.c_void_p, ctypes.c_void_p)
        address = function(handle) if function is not None else None
        if address:
            self.hot = (ctypes.c_size_t.from_address(address), *self.hot[1:])

    def ended(self, state: str) -> None:
        """Note the end, before NCCL frees the communicator: nothing is asked of it any more."""
        if self.handle:
            self._progress = self.progress()
            self.hot = (ctypes.c_size_t(), *self.hot[1:])
            _by_handle.pop(self.handle, None)
            self.handle = 0
        self.state = state
        _alive.pop(id(self), None)
        if self._ring:
            _ended.append(self)

    def message(self, function: str, arguments: tuple[Any, ...], queue: int, site: Site) -> None:
        """Record a send, a receive or a signal."""
        cell, append, number = self.hot
        cell.value = site.address
        self._apart += 1
        whom = function, arguments[-1]
        self.peers[whom] += 1
        place = ("message", self.peers[whom], self._apart, self._ours)  # of a Place, made later
        call = (function, arguments, queue, site)
        append((number(), perf_counter(), open_groups and group_number(), call, place))

    def collective(self, function: str, arguments: tuple[Any, ...], queue: int) -> None:
        """Record a collective, where the way there is not worth to be written out."""
        cell, append, number = self.hot
        site = find(_getframe(2))
        cell.value = site.address
        call = (function, arguments, queue, site)
        append((number(), perf_counter(), open_groups and group_number(), call))

    def control(self, function: str) -> None:
        """Record a call that all ranks make and that blocks; ``returned`` follows."""
        _, append, number = self.hot
        self._ours += 1
        self._pending = number()
        call = (function, (), 0, self.locate(find(_getframe(2))))
        place = Place("control", 0, self._apart, self._ours)
        append((self._pending, perf_counter(), 0, call, place))

    def child(self, function: str, part: str) -> str:
        """Record a split or a grow, and return the identity of the communicator it makes.

        A shrink is not in the record: only the ranks that stay come to it.

        Args:
            part: what tells the communicators apart that one call makes
        """
        if function != "ncclCommShrink":
            self.control(function)
        else:
            self.locate(find(_getframe(1)))
        verb = function.removeprefix("ncclComm").lower()
        return f"{self.identity}/{verb}{next(self._children[function])}{part}"

    def refused(self, function: str) -> None:
        """Note that the library did not take the last call, if it was this function's."""
        record = self._ring[-1] if self._ring else None
        if record is None or record[3][0].removesuffix("Config") != function.removesuffix("Config"):
            return
        if len(record) > 4:
            self.peers[function, record[3][1][-1]] -= 1
        else:
            self._apart += 1
        self._ours += 1
        self._ring[-1] = (*record[:4], Place("refused", 0, self._apart, self._ours))

    def locate(self, site: Site) -> Site:
        """Tell the library where its next call comes from."""
        self.hot[0].value = site.address
        return site

    def returned(self) -> None:
        """Note that the last control came back."""
        self._pending = 0

    @property
    def issued(self) -> int:
        """Number of the last operation."""
        return self._ring[-1][0] if self._ring else 0

    @property
    def collectives(self) -> int:
        """Number of collectives and controls so far."""
        return self.issued - self._apart

    def synchronized(self, queue: int, number: int) -> None:
        """Note that what was queued up to an operation is done on a stream."""
        self._synchronized.append((queue, number, perf_counter()))

    def progress(self) -> tuple[int, int] | None:
        """Return how many operations the library was given and has done, where it tells."""
        if not self.handle:
            return self._progress
        counts = (ctypes.c_ulonglong * 2)()
        function = _of_emulator(
            "pynccl_comm_progress", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
        )
        if function is None or function(self.handle, counts):
            return None
        return counts[0], counts[1]

    def operations(self, last: int | None = None) -> list[Operation]:
        """Return what the ring holds, oldest first; at most the last so many."""
        progress = self.progress()
        records = list(self._ring.copy())
        done = self._done(records, progress)
        times = self._times(records)
        apart, ours = self._apart, self._ours
        made: list[Operation] = []
        for record in reversed(records[-last:] if last else records):
            number, known = record[0], self._known(record)
            if len(record) == 4:
                place = Place("collective", number - apart, apart, ours)
            else:
                place = Place(*record[4])
            kind, ordinal, apart, ours = place
            state = self._state(place, number, known, done)
            if kind == "control":
                ordinal, ours = number - apart, ours - 1
            elif kind == "message":
                apart -= 1
            elif kind == "refused":
                apart, ours = apart - 1, ours - 1
            made.append(_operation(record, kind, ordinal, times(number), known, state))
        return made[::-1]

    def _state(self, place: Place, number: int, known: float | None, done: int | None) -> str:
        if place.kind == "refused":
            return "refused"
        if place.kind == "control":
            return "completed" if number != self._pending else "not completed"
        if known is not None or (done is not None and number - place.ours <= done):
            return "completed"
        return "issued" if done is None else "not completed"

    def _done(
        self, records: list[tuple[Any, ...]], progress: tuple[int, int] | None
    ) -> int | None:
        """Return how many operations other than controls the library has done, as we count."""
        if progress is None or not records:
            return None
        given, completed = progress
        ours = records[-1][0] - self._ours
        # Calls of pynccl.bindings are not in the record; they count as the earliest.
        return int(completed - max(0, given - ours))

    def _times(self, records: list[tuple[Any, ...]]) -> Callable[[int], float]:
        """Return what gives an operation's time: between others' where it has none of its own.

        A synchronize comes after its operation, and so half a number later.
        """
        points = [(record[0], record[1]) for record in records if record[1] is not None]
        points += [(upto + 0.5, when) for _, upto, when in self._synchronized.copy()]
        numbers, times = zip(*sorted(points)) if points else ((0,), (self._made,))
        return lambda number: float(numpy.interp(number, numbers, times))

    def _known(self, record: tuple[Any, ...]) -> float | None:
        number, queue = record[0], record[3][2]
        for stream, upto, when in self._synchronized.copy():
            if stream == queue and number <= upto:
                return when
        return None

    @property
    def title(self) -> str:
        """The communicator in words."""
        return f"rank {self.rank} of {self.nranks}, communicator {self.identity or '?'}"


def size() -> int:
    """Return how many operations a communicator's record holds (``PYNCCL_TRACE_SIZE``)."""
    text = os.environ.get("PYNCCL_TRACE_SIZE", "").strip()
    if not text:
        return DEFAULT_SIZE
    if not text.isdecimal():
        raise ValueError(f"PYNCCL_TRACE_SIZE is {text!r}; it must be a number of operations, or 0")
    return int(text)


# Thread -> [number of its outermost group, depth]. Empty outside groups, which costs a call least.
open_groups: dict[int, list[int]] = {}
_groups = count(1)
_in_process = count()
_alive: dict[int, Log] = {}
_ended: deque[Log] = deque(maxlen=ENDED)
_by_handle: dict[int, Log] = {}
_arranged = False


def new_log(rank: int, nranks: int, device: int) -> Log:
    """Return a communicator's empty record, which is in every dump until the communicator ends."""
    global _arranged
    if not _arranged and os.environ.get("PYNCCL_TRACE"):
        from pynccl import record_file

        _arranged = True
        record_file.begin()
    log = Log(rank, nranks, device)
    _alive[id(log)] = log
    return log


def logs() -> list[Log]:
    """Return the records of all communicators, the last ended ones first."""
    return [*_ended, *_alive.values()]


def of(handle: int) -> Log | None:
    """Return the record of a communicator by NCCL's handle."""
    return _by_handle.get(handle)


def identity_of(ids: Sequence[UniqueId]) -> str:
    """Return what names the communicator that is made with unique ids, on all of its ranks."""
    return sha256(b"".join(map(bytes, ids))).hexdigest()[:8]


def identity_of_process() -> str:
    """Return a name for the communicators that one call makes for several GPUs of a process."""
    return f"{socket.gethostname()}.{os.getpid()}.{next(_in_process)}"


def refused(handle: int, function: str) -> None:
    """Note that the library found fault with the arguments of a communicator's last call."""
    log = of(handle)
    if log is not None:
        log.refused(function)


def group_started() -> None:
    """Note that this thread began a group."""
    entry = open_groups.setdefault(get_ident(), [0, 0])
    if entry[1] == 0:
        entry[0] = next(_groups)
    entry[1] += 1


def group_ended() -> bool:
    """Note that this thread ended a group; tell whether it is in none now."""
    thread = get_ident()
    entry = open_groups.get(thread)
    if entry is None:
        return True
    entry[1] -= 1
    if entry[1] > 0:
        return False
    del open_groups[thread]
    return True


def group_number() -> int:
    """Return the number of this thread's group; 0 outside of one."""
    entry = open_groups.get(get_ident())
    return entry[0] if entry is not None else 0


def _of_emulator(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function that only the emulator's library has; None where it has not."""
    from pynccl import library

    function = getattr(library.load().cdll, name, None)
    if function is not None:
        function.restype, function.argtypes = result, arguments
    return function


def _operation(
    record: tuple[Any, ...],
    kind: str,
    ordinal: int,
    time: float,
    known: float | None,
    state: str,
) -> Operation:
    number, _, group, (function, arguments, queue, site) = record[:4]
    function = function.removesuffix("Config")
    words: dict[str, Any] = {}
    if function in MESSAGES:
        words["peer"] = arguments[-1] if arguments[-1] >= 0 else None
        if len(arguments) == 4:
            words["count"], words["datatype"] = arguments[1:3]
    elif kind != "control":
        names = [name.removeprefix("send").removeprefix("recv") for name in FUNCTIONS[function][2]]
        words = dict(zip(names, arguments))
    dtype, nbytes = "", 0
    if "datatype" in words:
        datatype = DataType(_plain(words["datatype"]))
        dtype, nbytes = datatype.name.lower(), _plain(words["count"]) * datatype.itemsize
    op = _plain(words["op"]) if "op" in words else None
    return Operation(
        number,
        kind,
        ordinal,
        function,
        _plain(words.get("count", 0)),
        dtype,
        nbytes,
        None if op is None else RedOp(op).name.lower() if op < len(RedOp) else "custom",
        _plain(words["root"]) if "root" in words else None,
        words.get("peer"),
        _plain(queue),
        group or 0,
        site.text if isinstance(site, Site) else "?",
        time,
        known,
        state,
    )


def _plain(value: Any) -> int:
    """Return the number in one of ctypes' objects, or the number itself."""
    return int(getattr(value, "value", value) or 0)


def report(log: Log, last: int = SHOWN) -> str:
    """Return the last operations of a communicator, a line each; empty where there were none."""
    operations = log.operations(last)
    if not operations:
        return ""
    lines = [f"last operations of {log.title} ({log.issued} in all):"]
    return "\n".join([*lines, *(f"  {operation}" for operation in operations)])


def failed(handle: int, what: str) -> str:
    """Return the report for the text of an error, and write the record where one is wanted.

    Never raises: the error itself matters more.
    """
    try:
        log = of(handle)
        text = report(log) if log is not None else ""
    except Exception as error:
        text = f"(the flight recorder failed: {type(error).__name__}: {error})"
    ended(what)
    return text


def ended(reason: str) -> None:
    """Write the record if ``PYNCCL_TRACE`` names a folder. Never raises."""
    if os.environ.get("PYNCCL_TRACE"):
        from pynccl import record_file

        record_file.write_quietly(reason)


def dump(folder: str | os.PathLike[str] | None = None) -> Path:
    """Write this process's record, for ``python -m pynccl trace``, and return the file.

    A later dump replaces it.

    Args:
        folder: None for the one that ``PYNCCL_TRACE`` names; made where it does not exist
    Raises:
        ValueError: neither names a folder
        OSError: the file cannot be written
    """
    from pynccl import record_file

    folder = folder or os.environ.get("PYNCCL_TRACE")
    if not folder:
        raise ValueError("folder is None, and PYNCCL_TRACE is not set: name a folder")
    return record_file.write(Path(folder), "dump()")
