"""What all Comm objects of one MPI communicator share: NCCL's communicators and MPI's for notes."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy
from mpi4py import MPI

from pynccl import library
from pynccl.bootstrap import local_place
from pynccl.call_site import Site
from pynccl.communicator import Communicator
from pynccl.streams import check_driver, make_wait
from pynccl.waiting import StreamWait

__all__ = ["Event", "Shared", "shared_of"]

# How long the first operation, where it is a message, waits for the other ranks' first, and a
# communicator that is freed for its requests; and how long a wait is before it says what it waits
# for. In seconds.
PATIENCE = 60.0
# How long a wait looks without pause, the pauses after that, and those of the thread that serves
# requests. In seconds; and how often errors are asked for.
EAGER = 2e-3
PAUSE = 200e-6
SHORTEST_PAUSE = 30e-6
LOOKS_PER_ERROR_CHECK = 256


class Event:
    """A point on a stream; ``done`` tells whether the work before it is done.

    Args:
        check: called once it is reached; raises if the work failed without failing the stream
    """

    __slots__ = ("_check", "_event", "_finished")

    def __init__(self, queue: int, check: Callable[[], None]) -> None:
        from cuda.bindings import driver

        self._check = check
        self._finished = False
        flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._event = check_driver(driver.cuEventCreate(flags), "cuEventCreate")
        check_driver(driver.cuEventRecord(self._event, queue), "cuEventRecord")

    def done(self) -> bool:
        """Return whether it was reached.

        Raises:
            NCCLError: the work before it failed
        """
        if not self._finished:
            from cuda.bindings import driver

            answer = driver.cuEventQuery(self._event)
            if answer[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
                return False
            self._finished = True
            driver.cuEventDestroy(self._event)
            check_driver(answer, "cuEventQuery")
            self._check()
        return True


class Shared:
    """The state of one MPI communicator. Making it is collective over that.

    Attributes:
        notes, control: duplicates of the communicator, for announcements of messages and answers
        nccl: NCCL's communicator for collectives; None until first needed
        messages: NCCL's communicator for messages, so that these and collectives may overlap
        plain: the communicator itself
        compares: whether ranks compare, before a blocking collective and while they receive, that
            all have their arrays on GPUs, or none; PYNCCL_MPI_CHECK, else where it is the emulator
        queue, message_queue: handles of the streams they work on
        exchange, starts: the messages under way, and the persistent requests; None until needed
        launching: held while a collective is launched
    """

    def __init__(self, comm: Any) -> None:
        self.plain = plain = MPI.Intracomm(comm)
        self.notes = plain.Dup()
        self.control = plain.Dup()
        self._learn_place()
        self.compares = plain.size > 1 and plain.allreduce(_wants_comparison(), op=MPI.LAND)
        self.permanent = plain in (MPI.COMM_WORLD, MPI.COMM_SELF)
        self.nccl: Communicator | None = None
        self.messages: Communicator | None = None
        self.queue = 0
        self.message_queue = 0
        self.lock = threading.RLock()
        self.launching = threading.RLock()
        self.exchange: Any = None
        self.starts: Any = None
        self._streams: tuple[Any, ...] = ()
        self._stream_wait: Callable[[], None] = lambda: None
        self._requests: list[Any] = []
        self._waiting = 0
        self._work = threading.Event()
        self._thread: threading.Thread | None = None
        self._broken = ""

    def need(self, array: Any, collective: bool) -> Communicator:
        """Return NCCL's communicator, made at the first call, which is collective.

        Args:
            array: of this rank's, to make it on that GPU; None where there is none
            collective: whether the operation is; every rank comes to such a one, or MPI would hang
        Raises:
            RuntimeError: it was wanted for a message, and other ranks did not want it
        """
        if self.nccl is not None:
            self.nccl.device.set_current()
            return self.nccl
        if self._broken:
            raise RuntimeError(self._broken)
        everyone = self.notes.Ibarrier()
        start = time.monotonic()
        warned = False
        while not everyone.Test():
            if not collective and time.monotonic() - start > PATIENCE:
                self._broken = (
                    "the first operation on GPU arrays makes NCCL's communicator, and all ranks of "
                    f"the MPI communicator must take part; some did not within {PATIENCE:g} s. Ask "
                    "for comm.nccl on all ranks before the first message"
                )
                raise RuntimeError(self._broken)
            if not warned and time.monotonic() - start > PATIENCE:
                warned = True
                self._warn("has waited for the other ranks' first operation on GPU arrays")
            time.sleep(PAUSE)
        made = Communicator.from_mpi(self.notes, self._choose_gpu(array))
        self.messages = made.split(0)
        made._permanent = self.permanent
        if self.messages is not None:
            self.messages._permanent = self.permanent
        gpu = made.device
        gpu.set_current()
        self._streams = (gpu.create_stream(), gpu.create_stream())
        self.queue, self.message_queue = (int(stream.handle) for stream in self._streams)
        self._stream_wait = StreamWait(made._ordinal, self.queue, made._handle, None)
        self.nccl = made
        _open.add(self)
        return made

    def compare(self, on_gpu: bool) -> None:
        """Compare with all ranks whether arrays are on GPUs. Collective.

        Raises:
            TypeError: they are on some ranks only; on all ranks
        """
        sides = numpy.empty(self.plain.size, dtype=numpy.uint8)
        gathering = self.control.Iallgather(numpy.array([on_gpu], dtype=numpy.uint8), sides)
        self.wait(gathering.Test)
        if sides.min() != sides.max():
            there, here = numpy.flatnonzero(sides), numpy.flatnonzero(sides == 0)
            raise TypeError(
                f"arrays are on GPUs on {_ranks(there)}, and in host memory on {_ranks(here)}: all "
                "ranks of a collective must have theirs on the same side"
            )

    def _warn(self, what: str) -> None:
        text = f"rank {self.plain.rank} {what} for {PATIENCE:g} s; a rank whose array is in host "
        warnings.warn(text + "memory never comes to an operation on GPU arrays", RuntimeWarning, 3)

    def _learn_place(self) -> None:
        """Note the place on the node: parts of the communicator must choose GPUs as it does."""
        global _place, _place_size
        place, _ = local_place(self.notes)
        if self.notes.size > _place_size:
            _place, _place_size = place, self.notes.size

    @staticmethod
    def _choose_gpu(array: Any) -> int | None:
        """Return the GPU to use; None where ``from_mpi`` shall choose, or say what is wrong."""
        try:
            return _gpu_for(array)
        except Exception:  # from_mpi meets it as well, and tells all ranks
            return None

    @property
    def ordinal(self) -> int:
        """Which GPU it is."""
        assert self.nccl is not None
        return self.nccl._ordinal

    def ready_for_messages(self) -> tuple[int, int]:
        """Make the GPU current, and return NCCL's handle and the stream's, for messages."""
        from cuda.core import Device

        assert self.messages is not None
        Device(self.ordinal).set_current()
        return self.messages._handle.value, self.message_queue

    def record_message(self, name: str, arguments: tuple[int, ...], queue: int, site: Site) -> None:
        """Enter a message into the flight record."""
        assert self.messages is not None
        self.messages._log.message(name, arguments, queue, site)

    def after(self, queue: int, *blocks: Any) -> None:
        """Make a stream wait for what makes, or still reads, the contents of arrays."""
        from cuda.bindings import driver

        for block in blocks:
            # An array that names no stream may be made on any that the default stream waits for.
            producer = block.stream
            if producer is None or driver.cuStreamQuery(producer)[0] != 0:
                make_wait(queue, producer or 0)

    def event(self, queue: int) -> Event:
        """Record an event on one of the streams."""
        return Event(queue, self.check)

    def wait_for_collectives(self) -> None:
        """Block until the collectives queued so far are done. Raises as ``wait`` does."""
        if self._requests or (self.exchange is not None and self.exchange.busy):
            self.wait(self.event(self.queue).done)
        else:
            self._stream_wait()

    def wait(self, done: Callable[[], bool]) -> None:
        """Block until ``done()``, and keep other operations going meanwhile. Ctrl-C ends it.

        Raises:
            NCCLError: a communicator has failed
        """
        start = time.monotonic()
        looks = 0
        warned = False
        self._waiting += 1
        try:
            while True:
                with self.lock:
                    self.advance()
                    if done():
                        return
                looks += 1
                if not warned and time.monotonic() - start > PATIENCE:
                    warned = True
                    self._warn("has waited" + (self.exchange.partners if self.exchange else ""))
                if looks % LOOKS_PER_ERROR_CHECK == 0:
                    self.check()
                time.sleep(0 if time.monotonic() - start < EAGER else PAUSE)
        finally:
            self._waiting -= 1

    def advance(self) -> None:
        """Do what can be done without waiting."""
        with self.lock:
            self.take_starts()
            if self.exchange is not None:
                self.exchange.advance()
            if self._requests:
                self._requests = [request for request in self._requests if not request.attempt()]

    def take_starts(self) -> None:
        """Begin the persistent requests that were started."""
        if self.starts is not None:
            with self.lock:
                self.starts.take()

    def check(self) -> None:
        """Raise for an error that happened after a call returned."""
        for comm in (self.nccl, self.messages):
            if comm is not None:
                comm._handle.raise_asynchronous_error()

    def serve(self, request: Any) -> None:
        """Keep a request going until it is complete; by a thread where MPI lets there be one."""
        with self.lock:
            self._requests.append(request)
        self.look()

    def look(self) -> None:
        """Wake the thread that keeps requests going, where MPI lets there be one."""
        with self.lock:
            if self._thread is None and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()
        self._work.set()

    def _serve(self) -> None:
        """Keep requests going while the program computes, or is inside MPI."""
        assert self.nccl is not None
        self.nccl.device.set_current()
        pause = SHORTEST_PAUSE
        while self._work.wait():
            if _ending:
                return
            time.sleep(pause)
            if self._waiting:  # that thread does it
                continue
            with self.lock:
                before = len(self._requests)
                if self.nccl is None:
                    return
                try:
                    self.advance()
                except Exception as error:  # it is what Wait raises
                    self._requests = [one for one in self._requests if not one.fail(error)]
                if not self._requests and not (self.starts and self.starts.expected):
                    self._work.clear()
            moved = len(self._requests) < before
            pause = SHORTEST_PAUSE if moved else min(pause * 1.2, PAUSE)

    def drain(self) -> None:
        """Block until no request is under way, as MPI does what is pending before it frees.

        Raises:
            RuntimeError: one has no partner
        """
        start = time.monotonic()

        def done() -> bool:
            return not self._requests or time.monotonic() - start > PATIENCE

        self.wait(done)
        if self._requests:
            raise RuntimeError(
                f"{len(self._requests)} requests are under way and were not done in {PATIENCE:g} "
                "s: the communicator cannot be freed"
            )

    def close(self, together: bool) -> None:
        """Free everything. ``together`` where all ranks do so, in a call that is collective."""
        with self.lock:
            nccl, self.nccl = self.nccl, None
            messages, self.messages = self.messages, None
        self._work.set()  # ends the thread
        for comm in (messages, nccl):
            if comm is None:
                continue
            if together:
                comm.destroy()
            else:
                comm.abort()
        if not self.permanent and not MPI.Is_finalized():
            self.notes.Free()
            self.control.Free()
            if self.starts is not None:
                self.starts.close()
        _open.discard(self)


def shared_of(comm: Any) -> Shared:
    """Return what belongs to an MPI communicator. Collective where it is the first time."""
    global _keyval
    if _keyval == MPI.KEYVAL_INVALID:
        _keyval = MPI.Comm.Create_keyval(delete_fn=_forget)
    found = comm.Get_attr(_keyval)
    if found is None:
        found = Shared(comm)
        MPI.Intracomm(comm).Set_attr(_keyval, found)
    known: Shared = found
    return known


def forget(comm: Any) -> None:
    """Free what belongs to an MPI communicator, before that is freed. Collective."""
    found = comm.Get_attr(_keyval) if _keyval != MPI.KEYVAL_INVALID else None
    if found is not None:
        found.drain()
        found.close(together=True)
        found.permanent = True  # nothing is left for the callback
        comm.Delete_attr(_keyval)


def _forget(_comm: Any, _keyval: int, shared: Shared) -> None:
    """Called by MPI where a communicator is freed by another way, or MPI ends."""
    shared.close(together=False)


def _gpu_for(array: Any) -> int | None:
    """Return the ordinal of the GPU to use: the array's, else the one in use, else by place."""
    from cuda.bindings import driver
    from cuda.core import Device

    library.require_gpu()
    if array is not None:
        what = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        result, ordinal = driver.cuPointerGetAttribute(what, array.ptr)
        if result == 0:
            return int(ordinal)
    for other in _open:
        return other.ordinal
    result, context = driver.cuCtxGetCurrent()
    if result == 0 and int(context):
        return int(check_driver(driver.cuCtxGetDevice(), "cuCtxGetDevice"))
    return _place if len(Device.get_all_devices()) > 1 else None


def _wants_comparison() -> bool:
    wanted = os.environ.get("PYNCCL_MPI_CHECK")
    if wanted:
        return wanted != "0"
    try:
        return library.backend() == "emulator"
    except ValueError:  # PYNCCL_BACKEND is no backend, which the first use of a GPU says
        return False


def _ranks(ranks: Any) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


# This rank's place on its node, in the largest communicator so far, and that one's size.
_place, _place_size = 0, 0

_keyval = MPI.KEYVAL_INVALID
_open: weakref.WeakSet[Shared] = weakref.WeakSet()
_ending = False


@atexit.register
def _stop_threads() -> None:
    global _ending
    _ending = True
    for shared in list(_open):
        shared._work.set()
        if shared._thread is not None:
            shared._thread.join(timeout=1.0)
