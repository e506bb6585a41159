"""Messages between GPU arrays: MPI matches them, NCCL moves them.

NCCL knows no tags, and its sends and receives are queued on a stream, where one that waits for its
partner holds up the next. So a message is announced through MPI with its own tag and size, which
matches it to a receive by MPI's rules; the receiver answers, the sender agrees, and with that both
have promised to put it into their next group. A rank that has answered launches nothing before it
is agreed, and then launches all that is: so no rank ever waits in a group for a rank that waits in
another for it.
"""

from __future__ import annotations

import time
from itertools import count
from sys import _getframe
from typing import Any

import numpy
from mpi4py import MPI

from pynccl import bindings, errors
from pynccl.call_site import find
from pynccl.device_array import Allocation
from pynccl.groups import group
from pynccl.mpi.buffers import Block
from pynccl.mpi.packing import gather, scatter
from pynccl.mpi.requests import Operation
from pynccl.mpi.shared import Shared
from pynccl.types import DataType

__all__ = ["Exchange", "Message", "refuse_announced", "wrong_side"]

_READY, _AGREED = 1, 2
_CONTROL_TAG = 0
# How long a receive lets a message of the other side (from host memory to a GPU, or the reverse)
# lie before it raises, in seconds: a message of its own side may be on its way.
GRACE = 2.0


class Message(Operation):
    """One message, on the side that sends or on the one that receives."""

    def __init__(self, exchange: Exchange, block: Block, peer: int, tag: int, sends: bool) -> None:
        super().__init__()
        self.exchange = exchange
        self.site = find(_getframe(2))  # the launch may be another thread's
        self.block = block
        self.peer = peer
        self.wanted_tag = tag
        self.sends = sends
        self.ptr = block.ptr
        self.note = numpy.zeros(2, dtype=numpy.int64)  # the sender's number of it, bytes
        self.announced: Any = None
        self.event: Any = None
        self.spare: Allocation | None = None
        self.finished = False
        self.begun = time.monotonic()
        self.nbytes = block.nbytes if sends else 0

    def cancel(self) -> None:
        self.exchange.cancel(self)

    def use_spare(self, nbytes: int, device: int) -> None:
        """Send from, or receive into, memory beside the array."""
        self.spare = Allocation(nbytes, device)
        self.ptr = self.spare.ptr

    def done(self) -> bool:
        if not self.finished and self.event is not None and self.event.done():
            self.finished = True
            self.spare = None
        if self.finished and self.sends:
            return bool(self.announced.Test())
        return self.finished


class Exchange:
    """The messages of one communicator that are under way on this rank."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._numbers = count()
        self._sends: dict[int, Message] = {}
        self._receives: list[Message] = []
        self._answered: dict[int, Message] = {}
        self._agreed: list[Message] = []
        self._letters: list[tuple[Any, Any]] = []

    @property
    def busy(self) -> bool:
        """Whether a message is announced or looked out for, and not yet launched."""
        return bool(self._receives or self._sends or self._answered or self._agreed)

    @property
    def partners(self) -> str:
        """Tell which ranks messages wait for."""
        told = [f" to send to rank {one.peer}" for one in self._sends.values()]
        for one in self._receives:
            told.append(f" to receive from {'any' if one.peer < 0 else f'rank {one.peer}'}")
        return ",".join(dict.fromkeys(told))

    def send(self, block: Block, dest: int, tag: int, synchronous: bool) -> Message:
        """Announce a message."""
        message = Message(self, block, dest, tag, sends=True)
        shared = self._shared
        with shared.lock:
            shared.take_starts()
            shared.after(shared.message_queue, block)
            if block.places:
                message.use_spare(block.nbytes, shared.ordinal)
                gather(block, message.ptr, shared.message_queue)
            number = next(self._numbers)
            message.note[:] = number, block.nbytes
            announce = shared.notes.Issend if synchronous else shared.notes.Isend
            message.announced = announce(message.note, dest, tag)
            if block.nbytes:
                self._sends[number] = message
            else:
                message.finished = True
        return message

    def receive(self, block: Block, source: int, tag: int) -> Message:
        """Look out for the announcement of a message."""
        message = Message(self, block, source, tag, sends=False)
        shared = self._shared
        with shared.lock:
            shared.take_starts()
            shared.after(shared.message_queue, block)
            message.announced = shared.notes.Irecv(message.note, source, tag)
            self._receives.append(message)
        return message

    def advance(self) -> None:
        """Do what can be done without waiting."""
        if not self.busy:
            return
        status = MPI.Status()
        self._receives = [one for one in self._receives if not self._match(one, status)]
        while self._shared.control.Iprobe(MPI.ANY_SOURCE, _CONTROL_TAG, status):
            self._read_letter(status.source)
        if self._agreed and not self._answered:
            self._launch()
        self._letters = [letter for letter in self._letters if not letter[0].Test()]

    def _match(self, message: Message, status: MPI.Status) -> bool:
        """Answer the announcement that a receive was looking out for, if it has come."""
        if not self._arrived(message, status):
            return False
        if not message.finished:
            self._answer(message, status)
        return True

    def cancel(self, message: Message) -> None:
        """Give up a receive that has met no announcement; any other message goes on."""
        if message not in self._receives:
            return
        self._receives.remove(message)
        status = MPI.Status()
        message.announced.Cancel()
        message.announced.Wait(status)
        message.cancelled = message.finished = status.Is_cancelled()
        if not message.cancelled:
            self._answer(message, status)

    def _answer(self, message: Message, status: MPI.Status) -> None:
        """Promise the sender to receive its message, of which the status tells."""
        number, nbytes = (int(value) for value in message.note)
        message.source, message.tag = status.source, status.tag
        message.peer = status.source
        message.nbytes = nbytes
        if nbytes > message.block.nbytes:
            # It must be taken all the same, or the sender would wait for ever.
            message.error = MPI.Exception(MPI.ERR_TRUNCATE)
        if message.error is not None or message.block.places:
            message.use_spare(nbytes, self._shared.ordinal)
        if nbytes == 0:
            message.finished = True
            return
        mine = next(self._numbers)
        self._answered[mine] = message
        self._write_letter(message.peer, _READY, number, mine)

    def _arrived(self, message: Message, status: MPI.Status) -> bool:
        """Tell whether an announcement has come, or the message lies in MPI: that fails it."""
        if message.announced.Test(status):
            return True
        found = MPI.Status()
        overdue = time.monotonic() - message.begun > GRACE
        if not overdue or not self._shared.plain.Iprobe(message.peer, message.wanted_tag, found):
            return False
        message.announced.Cancel()
        message.announced.Wait(status)
        if status.Is_cancelled():
            message.error = wrong_side("a GPU's memory", "host memory", found)
            message.finished = True
        return True

    def _write_letter(self, to: int, kind: int, theirs: int, mine: int) -> None:
        letter = numpy.array([kind, theirs, mine], dtype=numpy.int64)
        self._letters.append((self._shared.control.Isend(letter, to, _CONTROL_TAG), letter))

    def _read_letter(self, source: int) -> None:
        letter = numpy.empty(3, dtype=numpy.int64)
        self._shared.control.Recv(letter, source, _CONTROL_TAG)
        kind, mine, theirs = (int(value) for value in letter)
        if kind == _READY:
            self._agreed.append(self._sends.pop(mine))
            self._write_letter(source, _AGREED, theirs, mine)
        else:
            self._agreed.append(self._answered.pop(mine))

    def _launch(self) -> None:
        """Queue all messages that both sides have promised, as one group."""
        ready, self._agreed = self._agreed, []
        shared = self._shared
        comm, queue = shared.ready_for_messages()
        try:
            with group():
                for one in ready:
                    name = "ncclSend" if one.sends else "ncclRecv"
                    arguments = (one.ptr, one.nbytes, DataType.UINT8, one.peer)
                    shared.record_message(name, arguments, queue, one.site)
                    code = getattr(bindings, name)(*arguments, comm, queue)
                    errors.check(code, name, comm)
            for one in ready:
                if not one.sends and one.error is None:
                    scatter(one.block, one.ptr, one.nbytes, queue)
            event = shared.event(queue)
        except errors.NCCLError as error:
            for one in ready:
                one.error, one.finished = error, True
            raise
        for one in ready:
            one.event = event


def wrong_side(mine: str, theirs: str, status: MPI.Status) -> TypeError:
    """Return the error for a message from a side that this receive cannot take it from."""
    return TypeError(
        f"a receive into an array in {mine} has met a message that rank {status.source} (tag "
        f"{status.tag}) sent from {theirs}: both ends must have their arrays on the same side"
    )


def refuse_announced(shared: Shared, source: int, tag: int) -> None:
    """Wait until a message can be received into host memory.

    Raises:
        TypeError: what lies there is one from a GPU, and nothing else comes within the grace
    """
    status = MPI.Status()
    since = None

    def there() -> bool:
        nonlocal since
        if shared.plain.Iprobe(source, tag):
            return True
        if not shared.notes.Iprobe(source, tag, status):
            since = None
        elif since is None:
            since = time.monotonic()
        elif time.monotonic() - since > GRACE:
            raise wrong_side("host memory", "a GPU's memory", status)
        return False

    shared.wait(there)
