"""The steps of a program: what each does on a rank, and to a picture of all memory in numpy.

A step has ``ranks``, which take part; ``run(worker)``, one rank's part; and ``simulate(memory)``,
what it does on all ranks.
"""

import ctypes
import functools
import time
import zlib
from dataclasses import dataclass

import numpy

import pynccl

NON_BLOCKING = 1
USLEEP = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value


@functools.cache
def driver():
    """Return cuda-python's driver, after the library that it is to find."""
    pynccl.library.load()
    from cuda.bindings import driver as module

    return module


def call(name, *arguments):
    """Call a function of the driver, and return what it gives."""
    result, *values = getattr(driver(), name)(*arguments)
    assert result == 0, f"{name}: {result.name}"
    return values[0] if values else None


@dataclass(frozen=True)
class Region:
    """Elements ``start`` to ``start + count`` of a buffer."""

    buffer: int
    start: int
    count: int

    @property
    def end(self):
        return self.start + self.count


class Memory:
    """The contents of every buffer on every rank, and what is to be read at which step."""

    def __init__(self):
        self.arrays = {}
        self.expected = {}

    def __getitem__(self, place):
        rank, region = place
        return self.arrays[rank, region.buffer][region.start : region.end]


def values(seed, count, dtype):
    """Return small integers, exact in every type, that differ from seed to seed."""
    numbers = (numpy.arange(count) * (seed % 5 + 1) + seed) % 4
    return numbers.astype("float32").astype(dtype)


class Worker:
    """One rank of a program: its streams, buffers, communicators, and what it has read."""

    def __init__(self, program, base, exchange):
        self.rank = base.rank
        self.program = program
        self.exchange = exchange
        self.base = base
        self.comms, self.buffers, self.windows = {0: base}, {}, {}
        self.events, self.graphs, self.read, self.keep = {}, {}, {}, []
        self.grouped = False
        self.activate()
        self.streams = [self.make_stream(kind) for kind in program.streams]

    def activate(self):
        self.base.device.set_current()

    @staticmethod
    def make_stream(kind):
        if kind == "legacy":
            return 0
        return int(call("cuStreamCreate", NON_BLOCKING if kind == "non-blocking" else 0))

    def handle(self, number):
        return self.streams[number]

    def event(self, number):
        if number not in self.events:
            self.events[number] = call("cuEventCreate", 2)
        return self.events[number]

    def pointer(self, region):
        array = self.buffers[region.buffer]
        return array.ptr + region.start * array.dtype.itemsize

    def view(self, region, as_array):
        """Return the region as a ``DeviceArray``, or as (pointer, count, dtype)."""
        if region is None:
            return None
        array = self.buffers[region.buffer]
        if as_array:
            return array[region.start : region.end]
        return self.pointer(region), region.count, array.dtype

    def stream(self, part):
        return None if part.stream is None else self.streams[part.stream]

    def settle(self, comm):
        """Wait until a communicator that is not blocking takes the next call."""
        if not comm.blocking and not self.grouped:
            self.comms[comm.number].wait_ready(timeout=100)

    def close(self):
        """Give everything back. The program has synchronised."""
        self.activate()
        for graph in self.graphs.values():
            call("cuGraphExecDestroy", graph)
        for event in self.events.values():
            call("cuEventDestroy", event)
        for window, _ in self.windows.values():
            window.close()
        for kept in self.keep:
            kept.close()
        self.buffers.clear()
        for comm in [self.comms[number] for number in sorted(self.comms) if number]:
            comm.destroy()
        for stream in self.streams:
            if stream:
                call("cuStreamDestroy", stream)

    def check(self, memory):
        """Compare what was read with what numpy has."""
        for (rank, slot), expected in memory.expected.items():
            if rank == self.rank:
                got = self.read[slot]
                if not numpy.array_equal(plain(got), plain(expected)):
                    raise AssertionError(difference(self.program, rank, slot, got, expected))


def plain(array):
    """Return the array in a type in which numpy compares: integers as they are."""
    return array if array.dtype.kind in "iu" else array.astype("float64")


def difference(program, rank, slot, got, expected):
    wrong = numpy.flatnonzero(plain(got) != plain(expected))
    step = next(s for s in program.steps if isinstance(s, Fetch) and s.slot == slot)
    return (
        f"program {program.seed} of {program.nranks} ranks, rank {rank}, {step}: {len(wrong)} of "
        f"{len(got)} elements are wrong, the first at {wrong[0]}: {got[wrong[0]]} is not "
        f"{expected[wrong[0]]}"
    )


@dataclass(frozen=True)
class Local:
    """A step of one rank."""

    rank: int

    @property
    def ranks(self):
        return (self.rank,)

    def simulate(self, memory):
        """Most of them move no data."""


@dataclass(frozen=True)
class Allocate(Local):
    """Give a buffer new memory, with contents."""

    buffer: int
    count: int
    dtype: numpy.dtype
    seed: int

    def run(self, worker):
        worker.buffers.pop(self.buffer, None)
        worker.buffers[self.buffer] = worker.base.asarray(values(self.seed, self.count, self.dtype))

    def simulate(self, memory):
        memory.arrays[self.rank, self.buffer] = values(self.seed, self.count, self.dtype)


@dataclass(frozen=True)
class Fill(Local):
    """Copy from the host, by ``set`` in the order of the default stream or on any stream."""

    region: Region
    seed: int
    stream: int | None

    def run(self, worker):
        array = worker.view(self.region, as_array=True)
        host = values(self.seed, self.region.count, array.dtype)
        if self.stream is None:
            array.set(host)
        elif host.nbytes:
            call(
                "cuMemcpyHtoDAsync",
                array.ptr,
                host.ctypes.data,
                host.nbytes,
                worker.handle(self.stream),
            )

    def simulate(self, memory):
        place = memory[self.rank, self.region]
        place[:] = values(self.seed, self.region.count, place.dtype)


@dataclass(frozen=True)
class Fetch(Local):
    """Copy to the host, by ``get`` (which waits) or on any stream (which does not)."""

    region: Region
    slot: int
    stream: int | None

    def run(self, worker):
        array = worker.view(self.region, as_array=True)
        if self.stream is None:
            worker.read[self.slot] = array.get()
            return
        host = worker.read[self.slot] = numpy.empty(array.size, array.dtype)
        if host.nbytes:
            call(
                "cuMemcpyDtoHAsync",
                host.ctypes.data,
                array.ptr,
                host.nbytes,
                worker.handle(self.stream),
            )

    def simulate(self, memory):
        memory.expected[self.rank, self.slot] = memory[self.rank, self.region].copy()


@dataclass(frozen=True)
class Copy(Local):
    """Copy within the GPU."""

    source: Region
    target: Region
    stream: int

    def run(self, worker):
        nbytes = self.source.count * worker.buffers[self.source.buffer].dtype.itemsize
        if nbytes:
            pointers = worker.pointer(self.target), worker.pointer(self.source)
            call("cuMemcpyDtoDAsync", *pointers, nbytes, worker.handle(self.stream))

    def simulate(self, memory):
        memory[self.rank, self.target][:] = memory[self.rank, self.source]


@dataclass(frozen=True)
class Zero(Local):
    """Set to zero."""

    region: Region
    stream: int

    def run(self, worker):
        nbytes = self.region.count * worker.buffers[self.region.buffer].dtype.itemsize
        if nbytes:
            pointer = worker.pointer(self.region)
            call("cuMemsetD8Async", pointer, 0, nbytes, worker.handle(self.stream))

    def simulate(self, memory):
        memory[self.rank, self.region][:] = 0


@dataclass(frozen=True)
class Compute(Local):
    """Fill with ``comm.compute()``'s module, in the order of the default stream."""

    region: Region
    seed: int

    def run(self, worker):
        array = worker.view(self.region, as_array=True)
        with worker.base.compute() as xp:
            host = values(self.seed, self.region.count, array.dtype)
            xp.asarray(array)[:] = xp.asarray(host)

    simulate = Fill.simulate


@dataclass(frozen=True)
class Record(Local):
    event: int
    stream: int

    def run(self, worker):
        call("cuEventRecord", worker.event(self.event), worker.handle(self.stream))


@dataclass(frozen=True)
class WaitEvent(Local):
    event: int
    stream: int

    def run(self, worker):
        call("cuStreamWaitEvent", worker.handle(self.stream), worker.event(self.event), 0)


@dataclass(frozen=True)
class SyncEvent(Local):
    event: int

    def run(self, worker):
        call("cuEventSynchronize", worker.event(self.event))


@dataclass(frozen=True)
class SyncStream(Local):
    """Wait on the host for a stream; for the default stream by ``comm.synchronize``."""

    stream: int

    def run(self, worker):
        if self.stream == 0:
            worker.base.synchronize(timeout=100)
        else:
            call("cuStreamSynchronize", worker.handle(self.stream))


@dataclass(frozen=True)
class SyncDevice(Local):
    def run(self, worker):
        call("cuCtxSynchronize")


@dataclass(frozen=True)
class Sleep(Local):
    """Keep the host or a stream (by a host function) from going on."""

    microseconds: int
    stream: int | None

    def run(self, worker):
        if self.stream is None:
            time.sleep(self.microseconds / 1e6)
        else:
            call("cuLaunchHostFunc", worker.handle(self.stream), USLEEP, self.microseconds)


@dataclass(frozen=True)
class Comm:
    """A communicator of the plan: its ranks' numbers in the program, in order."""

    number: int
    members: tuple[int, ...]
    blocking: bool = True


@dataclass(frozen=True)
class Make:
    """Make a communicator: by split, shrink, or a unique id."""

    how: str
    parent: Comm
    made: tuple[Comm, ...]
    keys: tuple[int, ...] = ()

    @property
    def ranks(self):
        """All of the parent's, but for ``shrink`` and a unique id only those of the new one."""
        return self.parent.members if self.how == "split" else self.made[0].members

    def run(self, worker):
        index = self.parent.members.index(worker.rank)
        parent = worker.comms[self.parent.number]
        colors = [i for i, comm in enumerate(self.made) if worker.rank in comm.members]
        mine = self.made[colors[0]] if colors else None
        if self.how == "split":
            made = parent.split(colors[0] if colors else None, self.keys[index])
        elif self.how == "shrink":
            left_out = [i for i, r in enumerate(self.parent.members) if r not in mine.members]
            made = parent.shrink(left_out)
        else:
            made = self.meet(worker, mine)
        if mine is not None:
            worker.comms[mine.number] = made
            worker.settle(mine)
        worker.settle(self.parent)

    def meet(self, worker, mine):
        index = mine.members.index(worker.rank)
        unique_id = worker.exchange(mine.number, mine.members, worker.rank)
        config = None if mine.blocking else pynccl.Config(blocking=False)
        made = pynccl.Communicator.init(
            len(mine.members), index, unique_id, config, device=worker.base.device, timeout=100
        )
        if not mine.blocking:
            made.wait_ready(timeout=100)
        return made

    def simulate(self, memory):
        """It moves no data."""


@dataclass(frozen=True)
class Destroy:
    comm: Comm

    @property
    def ranks(self):
        return self.comm.members

    def run(self, worker):
        worker.comms.pop(self.comm.number).destroy()

    def simulate(self, memory):
        """It moves no data."""


@dataclass(frozen=True)
class Part:
    """What one rank passes. ``stream`` None is the communicator's own."""

    send: Region | None
    recv: Region | None
    stream: int | None
    as_array: bool = False
    writes: bool = True


@dataclass(frozen=True)
class Collective:
    kind: str
    comm: Comm
    parts: dict[int, Part]
    counts: tuple[int, ...]
    op: str | None = None
    root: int | None = None
    prepared: bool = False

    @property
    def ranks(self):
        return self.comm.members

    @property
    def streams(self):
        return {rank: [part.stream] for rank, part in self.parts.items() if self.issues(part)}

    def issues(self, part):
        """Tell whether the rank issues anything: uneven calls leave out empty messages."""
        counts = [region.count for region in (part.send, part.recv) if region is not None]
        return any(counts) or not self.kind.endswith("v")

    def run(self, worker):
        part, comm = self.parts[worker.rank], worker.comms[self.comm.number]
        buffers = [worker.view(part.send, part.as_array), worker.view(part.recv, part.as_array)]
        if part.send == part.recv and self.kind in ("allreduce", "reduce", "broadcast"):
            buffers.pop()
        arguments = {"stream": worker.stream(part)}
        if self.op is not None:
            arguments["op"] = self.operator(worker, comm, part)
        if self.root is not None:
            arguments["root"] = self.root
        if self.kind == "alltoallv":
            mine = self.comm.members.index(worker.rank)
            n = len(self.comm.members)
            sent, received = self.counts[mine * n :][:n], self.counts[mine::n]
            buffers = [buffers[0], sent, buffers[1], received]
        elif self.kind.endswith("v"):
            buffers.append(self.counts)
        if self.prepared:
            comm.prepare(self.kind, *buffers, **arguments)()
        else:
            getattr(comm, self.kind)(*buffers, **arguments)
        worker.settle(self.comm)

    def operator(self, worker, comm, part):
        if self.op != "TWICE":
            return getattr(pynccl, self.op)
        region = part.send or part.recv
        made = comm.create_pre_mul_sum(2, worker.buffers[region.buffer].dtype)
        worker.keep.append(made)
        return made

    def simulate(self, memory):
        members = self.comm.members
        sent = [
            None if self.parts[rank].send is None else memory[rank, self.parts[rank].send].copy()
            for rank in members
        ]
        for index, rank in enumerate(members):
            part = self.parts[rank]
            if part.writes and part.recv is not None:
                memory[rank, part.recv][:] = self.result(sent, index)

    def result(self, sent, index):
        """Return what the rank at this index receives."""
        n = len(sent)
        kind = self.kind.removesuffix("v")
        if kind in ("allreduce", "reduce"):
            return reduced(self.op, sent)
        if kind == "broadcast":
            return sent[self.root]
        if kind in ("allgather", "gather"):
            return numpy.concatenate(sent)
        if kind == "alltoall":
            rows = [self.counts[r * n :][:n] for r in range(n)]
            return numpy.concatenate([part(sent[r], rows[r], index) for r in range(n)])
        if kind == "scatter":
            return part(sent[self.root], self.counts, index)
        return part(reduced(self.op, sent), self.counts, index)  # reduce_scatter


def part(array, counts, index):
    start = sum(counts[:index])
    return array[start : start + counts[index]]


def reduced(op, arrays):
    """Return the reduction; integers wrap around, floating-point results are exact."""
    dtype = arrays[0].dtype
    stacked = numpy.stack(arrays)
    if dtype.kind not in "iu":
        stacked = stacked.astype("float64")
    if op == "AVG":
        return stacked.mean(axis=0).astype(dtype)
    if op == "TWICE":
        return (2 * stacked).sum(axis=0, dtype=stacked.dtype).astype(dtype)
    if op in ("SUM", "PROD"):
        function = {"SUM": numpy.sum, "PROD": numpy.prod}[op]
        return function(stacked, axis=0, dtype=stacked.dtype).astype(dtype)
    return {"MAX": numpy.max, "MIN": numpy.min}[op](stacked, axis=0).astype(dtype)


@dataclass(frozen=True)
class Message:
    """A send and its receive. ``source`` and ``target`` are ranks of the program."""

    comm: Comm
    source: int
    target: int
    send: Part
    recv: Part

    @property
    def ranks(self):
        return tuple({self.source, self.target})

    @property
    def streams(self):
        found = {self.source: [self.send.stream]}
        found.setdefault(self.target, []).append(self.recv.stream)
        return found

    def halves(self, rank):
        found = [("send", self)] if rank == self.source else []
        return found + ([("recv", self)] if rank == self.target else [])

    def run_half(self, worker, half):
        comm = worker.comms[self.comm.number]
        if half == "send":
            buffer = worker.view(self.send.send, self.send.as_array)
            peer = self.comm.members.index(self.target)
            comm.send(buffer, peer, stream=worker.stream(self.send))
        else:
            buffer = worker.view(self.recv.recv, self.recv.as_array)
            peer = self.comm.members.index(self.source)
            comm.recv(buffer, peer, stream=worker.stream(self.recv))

    def run(self, worker):
        for half, _ in self.halves(worker.rank):
            self.run_half(worker, half)
        worker.settle(self.comm)

    def simulate(self, memory):
        memory[self.target, self.recv.recv][:] = memory[self.source, self.send.send]


@dataclass(frozen=True)
class Group:
    """Calls of one or several communicators, fused. Messages come in each rank's own order."""

    children: tuple[Collective | Message, ...]
    seed: int

    @property
    def ranks(self):
        return tuple(sorted({rank for child in self.children for rank in child.ranks}))

    def calls(self, rank):
        """Return (send, recv or None, call) of the rank; between two ranks they keep their order.

        Uneven collectives are messages too, so that beside them all keep their order.
        """
        shuffled = not any(getattr(child, "kind", "").endswith("v") for child in self.children)
        found = []
        for child in self.children:
            halves = child.halves(rank) if isinstance(child, Message) else [(None, child)]
            if rank in child.ranks:
                found += halves
        if not shuffled:
            return found
        return sorted(found, key=lambda one: (one[1].comm.number, self.place(rank, *one)))

    def place(self, rank, half, child):
        if half is None:
            return 50
        pair = rank, half, child.comm.number, child.source, child.target
        return zlib.crc32(f"{self.seed} {pair}".encode()) % 101

    def run(self, worker):
        worker.grouped = True
        with pynccl.group():
            for half, child in self.calls(worker.rank):
                if half is None:
                    child.run(worker)
                else:
                    child.run_half(worker, half)
        worker.grouped = False
        for child in self.children:
            if worker.rank in child.ranks:
                worker.settle(child.comm)

    def simulate(self, memory):
        # The parts of a group touch different memory, or only read it.
        for child in self.children:
            child.simulate(memory)


@dataclass(frozen=True)
class Capture:
    """Capture steps on a stream of each rank into a graph."""

    graph: int
    inner: tuple
    stream: int

    @property
    def ranks(self):
        return tuple(sorted({rank for step in self.inner for rank in step.ranks}))

    def run(self, worker):
        handle = worker.handle(self.stream)
        mode = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call("cuStreamBeginCapture", handle, mode)
        for step in self.inner:
            if worker.rank in step.ranks:
                step.run(worker)
        graph = call("cuStreamEndCapture", handle)
        worker.graphs[self.graph] = call("cuGraphInstantiate", graph, 0)
        call("cuGraphDestroy", graph)

    def simulate(self, memory):
        """A capture runs nothing."""


@dataclass(frozen=True)
class Launch:
    """Launch a graph, each rank on a stream of its own."""

    graph: int
    inner: tuple
    streams: dict[int, int]

    @property
    def ranks(self):
        return tuple(self.streams)

    def run(self, worker):
        call("cuGraphLaunch", worker.graphs[self.graph], worker.handle(self.streams[worker.rank]))

    def simulate(self, memory):
        for step in self.inner:
            step.simulate(memory)


@dataclass(frozen=True)
class OpenWindow:
    """Register a window of 4096 bytes on every rank of a communicator."""

    comm: Comm

    @property
    def ranks(self):
        return self.comm.members

    def run(self, worker):
        memory = pynccl.mem_alloc(4096, worker.base.device)
        window = worker.comms[self.comm.number].register_window((int(memory.handle), 4096, "uint8"))
        worker.windows[self.comm.number] = window, memory

    def simulate(self, memory):
        """It moves no data."""


@dataclass(frozen=True)
class Put:
    """Every rank puts into the next one's window, which copies it out and allows the next put."""

    comm: Comm
    sends: dict[int, Region]
    recvs: dict[int, Region]
    putting: dict[int, int]
    waiting: dict[int, int]
    offset: int

    @property
    def ranks(self):
        return self.comm.members

    def run(self, worker):
        comm = worker.comms[self.comm.number]
        window, memory = worker.windows[self.comm.number]
        after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
        putting = worker.handle(self.putting[worker.rank])
        waiting = worker.handle(self.waiting[worker.rank])
        comm.put_signal(
            worker.view(self.sends[worker.rank], as_array=False),
            after,
            window,
            self.offset,
            stream=putting,
        )
        comm.wait_signal(pynccl.WaitSignalDesc(before), stream=waiting)
        target = self.recvs[worker.rank]
        nbytes = target.count * worker.buffers[target.buffer].dtype.itemsize
        source = int(memory.handle) + self.offset
        if nbytes:
            call("cuMemcpyDtoDAsync", worker.pointer(target), source, nbytes, waiting)
        comm.signal(before, stream=waiting)
        comm.wait_signal(pynccl.WaitSignalDesc(after), stream=putting)

    def simulate(self, memory):
        members = self.comm.members
        sent = [memory[rank, self.sends[rank]].copy() for rank in members]
        for index, rank in enumerate(members):
            memory[rank, self.recvs[rank]][:] = sent[index - 1]
