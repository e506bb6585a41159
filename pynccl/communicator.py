"""Communicators: how they are made and ended."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from ctypes import byref, c_int, c_void_p
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy
import numpy.typing

from pynccl import bindings, errors, library, recorder
from pynccl.compute import computing
from pynccl.config import Config, check_settings, structure_of
from pynccl.device_array import DeviceArray
from pynccl.groups import in_group
from pynccl.streams import handle_of
from pynccl.subcommunicators import Subcommunicators
from pynccl.types import Result, UniqueIdStruct
from pynccl.unique_id import UniqueId
from pynccl.waiting import Handle, StreamWait

if TYPE_CHECKING:
    from cuda.core import Device, Stream

__all__ = ["Communicator"]


class Communicator(Subcommunicators):
    """One rank of a group of GPUs that communicate.

    Made by ``from_mpi``, ``init``, ``init_all``, ``split``, ``shrink`` and ``grow``. Use it in a
    ``with`` block, or call ``destroy``: a communicator that is merely dropped stays behind in NCCL,
    with a ``ResourceWarning``, since its end needs all ranks.

    Attributes:
        rank: this rank, from 0
        nranks: number of ranks
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError(
            "a communicator is made by Communicator.from_mpi, .init, .init_all, .split, .shrink or "
            ".grow"
        )

    @classmethod
    def _make(
        cls, value: int, nranks: int, rank: int, ordinal: int, queue: int, timeout: float | None
    ) -> Communicator:
        made = object.__new__(cls)
        made._handle = Handle(value)
        made._pending = None
        made._ordinal = ordinal
        made._queue = queue
        made._finalized = False
        made._stream = None
        made.nranks = nranks
        made.rank = rank
        made._log = recorder.new_log(rank, nranks, ordinal)
        if value:
            made._log.opened(value)
        made._wait = StreamWait(ordinal, queue, made._handle, timeout)
        _alive.add(made)
        return made

    # Whether its owner means it to live as long as the process.
    _permanent = False
    _pending: c_void_p | None
    _finalized: bool
    _stream: Any
    _wait: StreamWait

    @classmethod
    def init(
        cls,
        nranks: int,
        rank: int,
        unique_id: UniqueId | Sequence[UniqueId],
        config: Config | None = None,
        *,
        device: Device | int | None = None,
        stream: Any = None,
        timeout: float | None = None,
    ) -> Communicator:
        """Make a communicator with the ranks that hold the same unique id.

        ``ncclCommInitRankConfig`` (NCCL 2.14.3); with several ids ``ncclCommInitRankScalable``
        (2.23.4). Blocks until all ranks have come, unless the config or a group says otherwise.

        Args:
            unique_id: what one rank got from ``get_unique_id``; or several, the same on all ranks
            device: this rank's GPU; None for the current one
            stream: where operations go that name no other; None for CUDA's default stream
            timeout: seconds after which ``synchronize`` gives up; None for never
        Raises:
            ValueError: the rank is not one of ``nranks``
            NCCLError: NCCL could not make it
        """
        library.require_gpu()
        if not all(isinstance(number, (int, numpy.integer)) for number in (nranks, rank)):
            raise TypeError(f"nranks {nranks!r} and rank {rank!r} must be integers")
        if nranks < 1 or not 0 <= rank < nranks:
            raise ValueError(f"rank {rank} of {nranks}: rank must be from 0 to nranks - 1")
        check_settings(config, timeout, stream)
        ids = [unique_id] if isinstance(unique_id, UniqueId) else list(unique_id)
        if not ids or not all(isinstance(one, UniqueId) for one in ids):
            raise TypeError(
                "unique_id must be a pynccl.UniqueId or a sequence of them (UniqueId.from_bytes "
                "makes one of bytes)"
            )
        ordinal = _current(device)
        queue = 0 if stream is None else handle_of(stream)
        made = cls._make(0, nranks, rank, ordinal, queue, timeout)
        made._stream = stream
        made._log.identity = recorder.identity_of(ids)
        struct = structure_of(config, Config)
        pointer = None if struct is None else byref(struct)
        target = c_void_p()
        made._pending = target
        if isinstance(unique_id, UniqueId):
            name = "ncclCommInitRankConfig"
            code = bindings.ncclCommInitRankConfig(
                byref(target), nranks, unique_id.struct, rank, pointer
            )
        else:
            name = "ncclCommInitRankScalable"
            structs = (UniqueIdStruct * len(ids))(*(one.struct for one in ids))
            code = bindings.ncclCommInitRankScalable(
                byref(target), nranks, rank, len(ids), structs, pointer
            )
        made._adopt(code, name)
        return made

    @classmethod
    def init_all(cls, devices: int | Iterable[int] | None = None) -> list[Communicator]:
        """Make communicators for several GPUs of this process, one a GPU (``ncclCommInitAll``).

        NCCL 2.3.5. Blocks. Calls for all of them from one thread belong in a ``group()``.

        Args:
            devices: ordinals, by rank; a number for the first GPUs; None for all
        Raises:
            ValueError: a device does not exist, or is named twice
        """
        from cuda.core import Device

        library.require_gpu()
        have = len(Device.get_all_devices())
        if devices is None:
            devices = have
        ordinals = list(range(devices)) if isinstance(devices, int) else list(devices)
        for ordinal in ordinals:
            _check_device(ordinal, have)
        if len(set(ordinals)) != len(ordinals):
            raise ValueError(f"devices {ordinals}: each GPU can be one rank only")
        if not ordinals:
            return []
        for ordinal in ordinals:
            Device(ordinal).set_current()
        handles = (c_void_p * len(ordinals))()
        list_of_devices = (c_int * len(ordinals))(*ordinals)
        errors.check(
            bindings.ncclCommInitAll(handles, len(ordinals), list_of_devices), "ncclCommInitAll"
        )
        made = [
            cls._make(int(handle or 0), len(ordinals), rank, ordinal, 0, None)
            for rank, (handle, ordinal) in enumerate(zip(handles, ordinals))
        ]
        identity = recorder.identity_of_process()
        for comm in made:
            comm._log.identity = identity
        return made

    @classmethod
    def from_mpi(
        cls,
        comm: Any,
        device: Device | int | None = None,
        config: Config | None = None,
        timeout: float | None = None,
        *,
        stream: Any = None,
        ranks_per_id: int | None = None,
    ) -> Communicator:
        """Make a communicator with the ranks of an MPI communicator. Collective over those.

        This rank's GPU is chosen by its place on its node, also where the scheduler shows each task
        a single GPU. Where any rank cannot go on, all raise the same error.

        Args:
            comm: an mpi4py intracommunicator
            device: this rank's GPU, in place of the choice
            config, timeout, stream: as of ``init``
            ranks_per_id: how many ranks meet by one unique id, the same on all ranks; None for
                128. Smaller ones start large jobs on more roots. No effect before NCCL 2.23.4.
        Raises:
            RuntimeError: two ranks share a GPU, a rank failed, or the launcher is another MPI's
            TypeError: ``comm`` is no intracommunicator
        """
        from pynccl import bootstrap

        return bootstrap.from_mpi(cls, comm, device, config, timeout, stream, ranks_per_id)

    def _adopt(self, code: int, name: str) -> None:
        """Take the handle that NCCL has written, or will write at the end of a group."""
        if code not in (Result.SUCCESS, Result.IN_PROGRESS):
            _alive.discard(self)
            self._pending = None
            self._log.ended("never made")
        errors.check(code, name)
        self._settle()

    def _settle(self) -> None:
        if self._pending is not None and self._pending.value:
            self._handle.value = self._pending.value
            self._log.opened(self._pending.value)
            self._pending = None
        # Of what a group makes, NCCL knows no more before the group ends.
        unknown = self.nranks < 0 and self._handle.value and not in_group()
        if unknown and self._handle.asynchronous_error() == Result.SUCCESS:
            self._read_shape()

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until a communicator that is not blocking has done what was last asked of it.

        Raises:
            NCCLTimeout: it was not ready after ``timeout`` seconds
            NCCLError: it failed
        """
        super().wait_ready(timeout)
        self._settle()

    def _gone(self) -> int:
        self._settle()
        if self._handle.value:
            return self._handle.value
        if self._pending is not None:
            raise ValueError("the communicator is made only when the group ends")
        raise ValueError(
            f"the communicator was {self._log.state} ({self._log.title}): make a new one"
        )

    @property
    def size(self) -> int:
        """The same as ``nranks``."""
        return self.nranks

    @property
    def ptr(self) -> int:
        """NCCL's handle (``ncclComm_t``); 0 once the communicator is gone."""
        self._settle()
        return self._handle.value

    @property
    def is_valid(self) -> bool:
        """Whether the communicator was neither destroyed nor aborted."""
        return self.ptr != 0

    @property
    def device(self) -> Device:
        """This rank's GPU."""
        from cuda.core import Device

        return Device(self._ordinal)

    @property
    def stream(self) -> Stream:
        """Where operations go that name no other stream."""
        from cuda.core import Stream

        if self._stream is None or isinstance(self._stream, int):
            self._stream = Stream.from_handle(self._queue)
        return self._stream

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> DeviceArray:
        """Return an array on this rank's GPU, with whatever contents.

        Raises:
            TypeError: NCCL has no such dtype
            NCCLCudaError: the GPU's memory does not suffice
        """
        return DeviceArray.allocate(shape, dtype, self._ordinal, self._queue, self._wait)

    def asarray(self, values: numpy.typing.ArrayLike, dtype: Any = None) -> DeviceArray:
        """Return a copy, on this rank's GPU, of an array in host memory.

        Raises:
            TypeError: NCCL has no such dtype
        """
        host = numpy.asarray(values)
        made = self.empty(host.shape, host.dtype if dtype is None else dtype)
        made.set(host)
        return made

    def compute(self) -> AbstractContextManager[Any]:
        """Return a context whose value is cupy, or numpy on the emulator.

        Arithmetic inside is ordered on the communicator's stream: after what is queued there, and
        before what comes next.
        """
        return computing(self._ordinal, self._queue, self._wait)

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until the work queued on the communicator's stream is done. Ctrl-C ends it.

        Args:
            timeout: seconds; None for what the communicator was made with
        Raises:
            NCCLTimeout: it took longer; the communicator can be aborted
            NCCLError: an operation failed after its call had returned
        """
        if not (self._handle.value or self._gone()):
            return
        self._wait(timeout)

    @classmethod
    def join(
        cls,
        nranks: int,
        rank: int,
        unique_id: UniqueId,
        config: Config | None = None,
        *,
        device: Device | int | None = None,
    ) -> Communicator:
        """Join a communicator that grows (``ncclCommGrow``, NCCL 2.29.2). Blocks.

        Args:
            nranks: size of the grown communicator
            rank: this process's rank there
            unique_id: what a rank of the communicator got from its ``get_unique_id``
        """
        library.require_gpu()
        made = cls._make(0, nranks, rank, _current(device), 0, None)
        made._log.identity = recorder.identity_of([unique_id])
        struct = structure_of(config, Config)
        target = made._pending = c_void_p()
        code = bindings.ncclCommGrow(
            0,
            nranks,
            byref(unique_id.struct),
            rank,
            byref(target),
            None if struct is None else byref(struct),
        )
        made._adopt(code, "ncclCommGrow")
        return made

    def _read_shape(self) -> None:
        number = c_int()
        comm = self._handle.value
        errors.check(bindings.ncclCommCount(comm, byref(number)), "ncclCommCount", comm)
        self.nranks = number.value
        errors.check(bindings.ncclCommUserRank(comm, byref(number)), "ncclCommUserRank", comm)
        self.rank = number.value
        self._log.rank, self._log.nranks = self.rank, self.nranks

    def finalize(self) -> None:
        """Wait for all work; then only ``destroy`` is left (``ncclCommFinalize``, NCCL 2.14.3).

        Called by all ranks. A second call is without effect.
        """
        comm = self._handle.value or self._gone()
        if self._finalized:
            return
        self._finalized = True
        self._log.control("ncclCommFinalize")
        code = bindings.ncclCommFinalize(comm)
        errors.check(code, "ncclCommFinalize", comm)
        if code == Result.IN_PROGRESS:
            self.wait_ready()
        self._log.returned()

    def destroy(self) -> None:
        """Finalize and free the communicator (``ncclCommDestroy``). Idempotent.

        Arrays made by it stay usable.

        Raises:
            NCCLError: work under way failed; the communicator is freed all the same
        """
        if not self.ptr:
            return
        try:
            self.finalize()
        except errors.NCCLError:
            self.abort()
            raise
        comm, self._handle.value = self._handle.value, 0
        _alive.discard(self)
        self._log.ended("destroyed")
        errors.check(bindings.ncclCommDestroy(comm), "ncclCommDestroy")

    def abort(self) -> None:
        """Stop the work under way and free the communicator (``ncclCommAbort``). Idempotent."""
        comm, self._handle.value = self.ptr, 0
        _alive.discard(self)
        if comm:
            self._log.ended("aborted")
            recorder.ended(f"abort of {self._log.title}")
            errors.check(bindings.ncclCommAbort(comm), "ncclCommAbort")

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.destroy()
        else:
            self.abort()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and handle.value and not _ending:
            warnings.warn(
                f"communicator (rank {self.rank} of {self.nranks}) was dropped without destroy() "
                "or abort(); it stays behind in NCCL",
                ResourceWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        if not self.is_valid:
            return f"<Communicator rank {self.rank} of {self.nranks}, destroyed>"
        return f"<Communicator rank {self.rank} of {self.nranks} on GPU {self._ordinal}>"


_alive: weakref.WeakSet[Communicator] = weakref.WeakSet()
_ending = False


@atexit.register
def _abort_the_rest() -> None:
    """Leave no work behind that would keep the process from ending."""
    global _ending
    _ending = True
    for comm in list(_alive):
        handle = comm._handle
        value, handle.value = handle.value, 0
        if value:
            comm._log.ended("aborted")
            _tell_of_undestroyed(comm)
            bindings.ncclCommAbort(value)


def _tell_of_undestroyed(comm: Communicator) -> None:
    """Say on the emulator what on GPUs goes unnoticed; not where an exception ended the program."""
    expected = comm._permanent or hasattr(sys, "last_value")
    if library.load().backend == "emulator" and not expected:
        print(
            f"pynccl emulator: process {os.getpid()} ends, and its communicator (rank {comm.rank} "
            f"of {comm.nranks}) was neither destroyed nor aborted: `with comm:` does it",
            file=sys.stderr,
            flush=True,
        )


def _current(device: Device | int | None) -> int:
    """Make a GPU current to this thread and return its ordinal."""
    from cuda.core import Device

    if isinstance(device, int):
        _check_device(device, len(Device.get_all_devices()))
    chosen = device if isinstance(device, Device) else Device(device)
    chosen.set_current()
    return int(chosen.device_id)


def _check_device(ordinal: int, have: int) -> None:
    if not 0 <= ordinal < have:
        raise ValueError(f"device {ordinal} does not exist: this process sees {have} GPUs")
