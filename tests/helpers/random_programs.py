"""Random correct programs: derived from a seed, the same on every rank, without a race or deadlock.

A program is a list of steps in one order for all ranks, of which each rank runs its own. Whatever
waits for something waits for earlier steps only, so no program can deadlock. Steps of one rank that
touch the same memory on different streams are put in order by events or by waits of the host, and
only where nothing else has done so: for that, every stream has a vector clock.
"""

import random
from dataclasses import dataclass, field, replace

import numpy

from helpers import program_steps as steps
from helpers.program_steps import Comm, Memory, Part, Region, Worker
from helpers.values import DTYPES

__all__ = ["Program", "generate", "run", "simulate"]

# Bits of a mantissa, the largest number, the smallest step.
FLOATS = {
    "float64": (53, 1e300, 1e-300),
    "float32": (24, 1e38, 1e-37),
    "bfloat16": (8, 1e38, 1e-37),
    "float16": (11, 65504, 2.0**-24),
    "float8_e4m3fn": (4, 448, 2.0**-9),
    "float8_e5m2": (3, 57344, 2.0**-16),
}
REDUCTIONS = ("allreduce", "reduce", "reduce_scatter", "reduce_scatterv")
ROOTED = ("broadcast", "reduce", "gather", "scatter", "gatherv", "scatterv")
KINDS = (
    "allreduce", "allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "alltoall",
    "gather", "scatter", "allgatherv", "gatherv", "scatterv", "alltoallv", "reduce_scatterv",
)  # fmt: skip


@dataclass
class Program:
    """A program; ``operations`` counts its calls, copies and waits of the host.

    ``reached`` is the number of the step that each rank runs.
    """

    seed: int
    nranks: int
    streams: list[str]
    steps: list = field(default_factory=list)
    reached: dict = field(default_factory=dict)

    @property
    def operations(self):
        return sum(
            len(getattr(step, "children", (step,)))
            for step in self.steps
            if not isinstance(step, (steps.Record, steps.WaitEvent, steps.Allocate))
        )


@dataclass
class Access:
    """A use of a region: as late as ``time`` on the clock of the stream."""

    start: int
    end: int
    write: bool
    stream: int
    time: int


class Clocks:
    """What is known on one rank to be over: for each stream, the host and each event."""

    def __init__(self, kinds):
        self.kinds = kinds
        self.streams = [[0] * len(kinds) for _ in kinds]
        self.host = [0] * len(kinds)
        self.events = {}

    @staticmethod
    def join(one, other):
        one[:] = map(max, one, other)

    def issue(self, stream):
        """Put something on a stream; return its time."""
        clock = self.streams[stream]
        self.join(clock, self.host)
        # The default stream waits for those that are not non-blocking, and they for it.
        if self.kinds[stream] == "legacy":
            for kind, other in zip(self.kinds, self.streams):
                if kind == "blocking":
                    self.join(clock, other)
        elif self.kinds[stream] == "blocking":
            self.join(clock, self.streams[0])
        clock[stream] += 1
        return clock[stream]

    def record(self, event, stream):
        self.issue(stream)
        self.events[event] = list(self.streams[stream])

    def wait(self, event, stream):
        self.issue(stream)
        self.join(self.streams[stream], self.events[event])

    def knows(self, stream, access):
        """Tell whether what comes next on the stream comes after an access."""
        clock = max(self.streams[stream][access.stream], self.host[access.stream])
        if self.kinds[stream] == "legacy":
            clocks = [c for k, c in zip(self.kinds, self.streams) if k == "blocking"]
            clock = max([clock, *(c[access.stream] for c in clocks)])
        elif self.kinds[stream] == "blocking":
            clock = max(clock, self.streams[0][access.stream])
        return access.stream == stream or clock >= access.time


class Builder:
    """Grows a program by one random piece at a time."""

    def __init__(self, seed, nranks):
        self.random = random.Random(f"{seed} {nranks}")
        kinds = ["legacy"]
        kinds += self.random.choices(
            ["non-blocking", "blocking"], [3, 1], k=self.random.randint(1, 3)
        )
        self.program = Program(seed, nranks, kinds)
        self.everyone = tuple(range(nranks))
        self.clocks = [Clocks(kinds) for _ in self.everyone]
        self.accesses = [{} for _ in self.everyone]
        self.ranges = [{} for _ in self.everyone]
        self.comms = [Comm(0, self.everyone)]
        self.made, self.events, self.slots = 1, 0, 0
        self.windows, self.graphs = [], []
        self.captured = set()  # buffers of graphs, which keep their memory
        self.families = []
        self.buffers = {}
        for _ in range(self.random.randint(1, 3)):
            self.add_family()

    def add(self, step):
        self.program.steps.append(step)

    # Memory

    def add_family(self):
        """Add buffers of one type and size, on every rank."""
        name = self.random.choice(list(DTYPES))
        dtype = DTYPES[name]
        size = self.random.choices([60, 1000, 8192, 40_000, 400_000], [4, 6, 4, 3, 1])[0]
        count = max(8, self.random.randint(size // 2, size) // dtype.itemsize)
        numbers = [len(self.buffers) + i for i in range(self.random.randint(2, 4))]
        for number in numbers:
            self.buffers[number] = (name, count)
            for rank in self.everyone:
                self.allocate(rank, number)
        self.families.append((name, count, numbers))

    def allocate(self, rank, number):
        name, count = self.buffers[number]
        self.add(steps.Allocate(rank, number, count, DTYPES[name], self.random.randrange(1000)))
        # Freeing the old memory need not have waited for anything.
        clocks = self.clocks[rank]
        time = clocks.issue(0)
        self.accesses[rank][number] = [Access(0, count, True, 0, time)]
        self.ranges[rank][number] = (3, 1)

    def count(self, most):
        """Return a number of elements, up to ``most``."""
        return min(most, self.random.choice([0, 1, 1, 3, 17, self.random.randint(0, most), most]))

    def region(self, rank, family, count, busy):
        """Return a region that touches nothing of ``busy``, or None if none is found soon."""
        _, capacity, numbers = family
        for _ in range(8):
            start = self.random.choice(
                [0, capacity - count, self.random.randint(0, capacity - count)]
            )
            found = Region(self.random.choice(numbers), start, count)
            if not any(overlap(found, other) for other in busy):
                busy.append(found)
                return found
        return None

    # Order

    def stream(self):
        return self.random.randrange(len(self.program.streams))

    def before(self, rank, stream, region, write):
        """See to it that what comes next on the stream may touch the region."""
        clocks = self.clocks[rank]
        for access in self.accesses[rank].setdefault(region.buffer, []):
            meets = access.start < region.end and region.start < access.end
            if meets and (write or access.write) and not clocks.knows(stream, access):
                self.put_in_order(rank, stream, access)

    def put_in_order(self, rank, stream, access):
        clocks = self.clocks[rank]
        known = [e for e, c in clocks.events.items() if c[access.stream] >= access.time]
        way = self.random.choices(
            ["known", "event", "host", "host event", "device"], [6, 6, 2, 2, 1]
        )[0]
        if way == "known" and known:
            self.wait_event(rank, self.random.choice(known), stream)
        elif way == "host":
            self.sync_stream(rank, access.stream)
        elif way == "host event":
            self.sync_event(rank, self.record(rank, access.stream))
        elif way == "device":
            self.sync_device(rank)
        else:
            self.wait_event(rank, self.record(rank, access.stream), stream)

    def record(self, rank, stream):
        """Record an event, at times one that was used before."""
        used = list(self.clocks[rank].events)
        event = self.random.choice(used) if len(used) > 3 else self.events
        self.events += 1
        self.add(steps.Record(rank, event, stream))
        self.clocks[rank].record(event, stream)
        return event

    def wait_event(self, rank, event, stream):
        self.add(steps.WaitEvent(rank, event, stream))
        self.clocks[rank].wait(event, stream)

    def sync_event(self, rank, event):
        self.add(steps.SyncEvent(rank, event))
        self.clocks[rank].join(self.clocks[rank].host, self.clocks[rank].events[event])

    def sync_stream(self, rank, stream):
        self.add(steps.SyncStream(rank, stream))
        self.clocks[rank].join(self.clocks[rank].host, self.clocks[rank].streams[stream])

    def sync_device(self, rank):
        self.add(steps.SyncDevice(rank))
        for clock in self.clocks[rank].streams:
            self.clocks[rank].join(self.clocks[rank].host, clock)

    def touch(self, rank, stream, region, write, time):
        """Note an access, and forget those that it hides."""
        if region.count == 0:
            return
        clocks = self.clocks[rank]
        kept = [
            a
            for a in self.accesses[rank].setdefault(region.buffer, [])
            if not (
                region.start <= a.start
                and a.end <= region.end
                and (write or not a.write)
                and clocks.streams[stream][a.stream] >= a.time
                and (a.stream != stream or write or not a.write)
            )
        ]
        kept.append(Access(region.start, region.end, write, stream, time))
        self.accesses[rank][region.buffer] = kept

    # Values

    def range_of(self, rank, region):
        return self.ranges[rank].get(region.buffer, (0, 1))

    def widen(self, rank, region, found):
        if region.count == self.buffers[region.buffer][1]:
            self.ranges[rank][region.buffer] = found
            return
        old = self.range_of(rank, region)
        self.ranges[rank][region.buffer] = (max(old[0], found[0]), min(old[1], found[1]))

    def operator(self, family, found, n):
        """Return a reduction whose result is exact, and the range of what it gives."""
        bound, step = found
        options = [("MAX", found), ("MIN", found)]
        options += [("SUM", (bound * n, step)), ("TWICE", (2 * bound * n, step))]
        options += [("PROD", (bound**n, step**n)) if bound < 1e9 else ("MAX", found)]
        if n in (1, 2, 4, 8) and family[0] in FLOATS:
            options += [("AVG", (bound * n, step / n))]
        if family[0] in FLOATS:
            options = options[:2] + [one for one in options[2:] if exact(family[0], *one[1])]
        op, result = self.random.choice(options)
        return op, ((bound, step / n) if op == "AVG" else result)

    # Pieces

    def local(self):
        """Something that one rank does alone."""
        rank = self.random.choice(self.everyone)
        family = self.random.choice(self.families)
        what = self.random.choice(
            ["fill", "fill", "fetch", "fetch", "copy", "zero", "compute", "sync", "record", "again"]
        )
        busy = []
        region = self.region(rank, family, self.count(family[1]), busy)
        if what == "sync":
            self.random.choice([self.sync_device, lambda r: self.sync_stream(r, self.stream())])(
                rank
            )
        elif what == "record":
            self.record(rank, self.stream())
        elif what == "again" and region.buffer not in self.captured:
            self.allocate(rank, region.buffer)
        elif what in ("again", "compute"):
            self.compute(rank, region)
        elif what == "copy":
            target = self.region(rank, family, region.count, busy)
            if target is not None:
                self.copy(rank, region, target)
        else:
            {"fill": self.fill, "fetch": self.fetch, "zero": self.zero}[what](rank, region)

    def alone(self, rank, stream, *uses):
        """Order the uses (region, write) of a step on one stream before it, and note them."""
        for region, write in uses:
            self.before(rank, stream, region, write)
        time = self.clocks[rank].issue(stream)
        for region, write in uses:
            self.touch(rank, stream, region, write, time)

    def fill(self, rank, region):
        stream = self.random.choice([None, self.stream()])
        self.alone(rank, stream or 0, (region, True))
        self.add(steps.Fill(rank, region, self.random.randrange(1000), stream))
        self.widen(rank, region, (3, 1))

    def fetch(self, rank, region):
        stream = self.random.choice([None, self.stream()])
        self.alone(rank, stream or 0, (region, False))
        self.add(steps.Fetch(rank, region, self.slots, stream))
        self.slots += 1
        if stream is None and region.count:
            self.clocks[rank].join(self.clocks[rank].host, self.clocks[rank].streams[0])

    def zero(self, rank, region):
        stream = self.stream()
        self.alone(rank, stream, (region, True))
        self.add(steps.Zero(rank, region, stream))

    def copy(self, rank, source, target):
        stream = self.stream()
        self.alone(rank, stream, (source, False), (target, True))
        self.add(steps.Copy(rank, source, target, stream))
        self.widen(rank, target, self.range_of(rank, source))

    def compute(self, rank, region):
        self.alone(rank, 0, (region, True))
        self.add(steps.Compute(rank, region, self.random.randrange(1000)))
        self.clocks[rank].join(self.clocks[rank].host, self.clocks[rank].streams[0])
        self.widen(rank, region, (3, 1))

    def pause(self):
        rank = self.random.choice(self.everyone)
        most = 500_000 if self.random.random() < 0.01 else 20_000
        self.add(
            steps.Sleep(
                rank, self.random.randint(0, most), self.random.choice([None, self.stream()])
            )
        )
        if self.program.steps[-1].stream is not None:
            self.clocks[rank].issue(self.program.steps[-1].stream)

    def communicate(self):
        found = self.call({rank: [] for rank in self.everyone})
        if found is not None:
            self.schedule([found])
            self.add(found)

    def group(self):
        busy = {rank: [] for rank in self.everyone}
        children = [self.call(busy, grouped=True) for _ in range(self.random.randint(2, 6))]
        children = [child for child in children if child is not None]
        if children:
            # NCCL launches communicators in the order in which a group names them first, which has
            # to be the same on all ranks.
            children.sort(key=lambda child: child.comm.number)
            self.schedule(children)
            self.add(steps.Group(tuple(children), self.random.randrange(1000)))

    def call(self, busy, grouped=False, pointers=False):
        """Return a collective or a message that touches nothing of ``busy``, or None."""
        comm = self.random.choice(self.comms)
        family = self.random.choice(self.families)
        if self.random.random() < 0.35 and (grouped or len(comm.members) > 1):
            return self.message(comm, family, busy, grouped, pointers)
        return self.collective(comm, family, busy, grouped, pointers)

    def part(self, send, recv, writes=True, pointers=False):
        stream = self.random.choice([None, self.stream(), self.stream()])
        as_array = not pointers and self.random.random() < 0.3
        return Part(send, recv, stream, as_array, writes)

    def message(self, comm, family, busy, grouped, pointers):
        source, target = self.random.choice(comm.members), self.random.choice(comm.members)
        if source == target and not grouped:
            return None
        count = self.count(family[1])
        send = self.region(source, family, count, busy[source])
        recv = self.region(target, family, count, busy[target])
        if send is None or recv is None:
            return None
        self.widen(target, recv, self.range_of(source, send))
        return steps.Message(
            comm,
            source,
            target,
            self.part(send, None, pointers=pointers),
            self.part(None, recv, pointers=pointers),
        )

    def collective(self, comm, family, busy, grouped, pointers):
        kind = self.random.choice(KINDS)
        n = len(comm.members)
        root = self.random.randrange(n) if kind in ROOTED else None
        counts = self.counts(kind, n, family[1])
        parts = {}
        in_place = self.random.random() < 0.3
        for index, rank in enumerate(comm.members):
            sizes = self.sizes(kind, index, n, counts, root)
            regions = self.regions(kind, index, rank, family, sizes, counts, in_place, busy, root)
            if regions is None:
                return None
            writes = kind != "reduce" or index == root
            parts[rank] = self.part(*regions, writes, pointers)
        op = self.settle_ranges(kind, family, parts, n)
        prepared = not kind.endswith("v") and self.random.random() < 0.2
        return steps.Collective(kind, comm, parts, counts, op, root, prepared)

    def counts(self, kind, n, capacity):
        if kind in ("allreduce", "reduce", "broadcast"):
            return (self.count(capacity),)
        if kind == "alltoall":
            return (self.count(capacity // n),) * (n * n)
        if kind.endswith("v"):
            number = n * n if kind == "alltoallv" else n
            return tuple(self.count(capacity // n) for _ in range(number))
        return (self.count(capacity // n),) * n

    def sizes(self, kind, index, n, counts, root):
        """Return how many elements a rank sends and receives; None where it passes nothing."""
        kind = kind.removesuffix("v")
        if kind in ("allreduce", "broadcast", "reduce"):
            return counts[0], counts[0]
        if kind == "alltoall":
            return sum(counts[index * n :][:n]), sum(counts[index::n])
        whole, mine = sum(counts), counts[index]
        if kind == "allgather":
            return mine, whole
        if kind == "gather":
            return mine, whole if index == root else None
        if kind == "scatter":
            return whole if index == root else None, mine
        return whole, mine

    def regions(self, kind, index, rank, family, sizes, counts, in_place, busy, root):
        send_size, recv_size = sizes
        largest = max(size for size in sizes if size is not None)
        whole = self.region(rank, family, largest, busy[rank])
        if whole is None:
            return None
        part = Region(whole.buffer, whole.start + sum(counts[:index]), counts[index % len(counts)])
        if kind in ("allreduce", "reduce", "broadcast") and in_place:
            return whole, whole
        if kind == "broadcast" and index != root and self.random.random() < 0.5:
            return None, whole
        if in_place and kind in ("allgather", "gather") and recv_size is not None:
            return part, whole
        if in_place and kind in ("reduce_scatter", "scatter") and send_size is not None:
            return whole, part
        if send_size is None:
            return None, whole
        if recv_size is None:
            return whole, None
        small = self.region(rank, family, min(sizes), busy[rank])
        if small is None:
            return None
        return (whole, small) if send_size >= recv_size else (small, whole)

    def settle_ranges(self, kind, family, parts, n):
        """Choose the reduction, and note what the receive buffers may now hold."""
        sent = [self.range_of(r, p.send) for r, p in parts.items() if p.send is not None]
        found = (max(bound for bound, _ in sent), min(step for _, step in sent))
        op = None
        if kind in REDUCTIONS:
            op, found = self.operator(family, found, n)
        for rank, part in parts.items():
            if part.recv is not None:
                self.widen(rank, part.recv, found)
        return op

    def uses(self, child, rank):
        """Return (part, region, write) of what a rank touches in a call."""
        if isinstance(child, steps.Message):
            found = [(child.send, child.send.send, False)] if rank == child.source else []
            return found + ([(child.recv, child.recv.recv, True)] if rank == child.target else [])
        part = child.parts[rank]
        found = [] if part.send is None else [(part, part.send, False)]
        if part.recv is not None and part.writes:
            found.append((part, part.recv, True))
        return found

    def turns(self, child, rank):
        """Return (part, region, write) of a call's turn on its communicator.

        NCCL keeps the order of a communicator's calls on any streams, but not with graphs.
        """
        if isinstance(child, steps.Message):
            mine = [
                p for p, r in ((child.send, child.source), (child.recv, child.target)) if r == rank
            ]
        else:
            mine = [child.parts[rank]]
        return [(part, turn_of(child.comm), False) for part in mine]

    def schedule(self, children):
        """Order what a call or group touches before it, and note it."""
        for rank in sorted({rank for child in children for rank in child.ranks}):
            mine = [
                (c.comm, *use)
                for c in children
                if rank in c.ranks
                for use in self.uses(c, rank) + self.turns(c, rank)
            ]
            for _, part, region, write in mine:
                self.before(rank, part.stream or 0, region, write)
            clocks = self.clocks[rank]
            times = {}
            for part in {id(part): part for _, part, _, _ in mine}.values():
                if part.as_array and part.stream not in (None, 0):
                    # An explicit stream is made to wait for where the array was made.
                    clocks.issue(0)
                    clocks.join(clocks.streams[part.stream], clocks.streams[0])
            for comm in sorted({c.comm for c in children}, key=lambda comm: comm.number):
                mates = [c for c in children if c.comm is comm]
                streams = {stream or 0 for c in mates for stream in c.streams.get(rank, ())}
                for stream in streams:
                    clocks.issue(stream)
                # One operation on all of its streams.
                merged = [max(column) for column in zip(*(clocks.streams[s] for s in streams))]
                for stream in streams:
                    clocks.streams[stream][:] = merged
                    times[comm, stream] = merged[stream]
            for comm, part, region, write in mine:
                stream = part.stream or 0
                self.touch(rank, stream, region, write, times.get((comm, stream), 0))

    # Communicators

    def make_comm(self):
        if len(self.comms) > 5:
            self.destroy_comm()
            return
        ways = ["split", "duplicate", "id", "shrink"]
        way = self.random.choice(ways)
        parent = self.random.choice(self.comms)
        if way == "split":
            self.split(parent)
        elif way == "duplicate":
            made = self.new_comm(parent.members, parent.blocking)
            self.add(steps.Make("split", parent, (made,), (0,) * len(parent.members)))
        elif way == "shrink":
            rest = [r for r in parent.members if self.random.random() < 0.7]
            if 1 < len(rest) < len(parent.members):
                made = self.new_comm(rest, parent.blocking)
                self.add(steps.Make("shrink", parent, (made,)))
        else:
            members = self.random.sample(
                parent.members, self.random.randint(1, len(parent.members))
            )
            made = self.new_comm(members, self.random.random() < 0.7)
            self.add(steps.Make("id", parent, (made,)))

    def split(self, parent):
        colors = {r: self.random.choice([None, 0, 0, 1, 2]) for r in parent.members}
        keys = tuple(self.random.randint(-2, 2) for _ in parent.members)
        ordered = sorted(range(len(keys)), key=lambda i: keys[i])
        made = []
        for color in sorted({c for c in colors.values() if c is not None}):
            members = [parent.members[i] for i in ordered if colors[parent.members[i]] == color]
            made.append(self.new_comm(members, parent.blocking))
        if made:
            self.add(steps.Make("split", parent, tuple(made), keys))

    def new_comm(self, members, blocking=True):
        made = Comm(self.made, tuple(members), blocking)
        self.made += 1
        self.comms.append(made)
        return made

    def destroy_comm(self):
        free = [c for c in self.comms if c.number and c not in self.windows]
        free = [c for c in free if not any(c in graph.comms for graph in self.graphs)]
        if free:
            gone = self.random.choice(free)
            self.comms.remove(gone)
            self.add(steps.Destroy(gone))

    # Puts and graphs

    def put(self):
        if not self.windows:
            self.windows.append(self.random.choice([c for c in self.comms if c.blocking]))
            self.add(steps.OpenWindow(self.windows[0]))
        comm = self.windows[0]
        family = self.random.choice(self.families)
        itemsize = DTYPES[family[0]].itemsize
        count = self.count(min(family[1], 4096 // itemsize))
        offset = self.random.randint(0, 4096 // itemsize - count) * itemsize
        sends, recvs, putting, waiting = {}, {}, {}, {}
        for rank in comm.members:
            busy = []
            sends[rank] = self.region(rank, family, count, busy)
            recvs[rank] = self.region(rank, family, count, busy)
            if recvs[rank] is None:
                return
        found = [self.range_of(rank, sends[rank]) for rank in comm.members]
        for rank in comm.members:
            # The right to put, and the right to wait, as if they were memory.
            turn, watch = Region(-1, 0, 1), Region(-2, 0, 1)
            putting[rank], waiting[rank] = self.stream(), self.stream()
            for region, write in ((sends[rank], False), (turn, True), (turn_of(comm), False)):
                self.before(rank, putting[rank], region, write)
            for region, write in ((recvs[rank], True), (watch, True), (turn_of(comm), False)):
                self.before(rank, waiting[rank], region, write)
            for stream, region, write in (
                (putting[rank], sends[rank], False),
                (putting[rank], turn, True),
                (waiting[rank], recvs[rank], True),
                (waiting[rank], watch, True),
                (putting[rank], turn_of(comm), False),
                (waiting[rank], turn_of(comm), False),
            ):
                self.touch(rank, stream, region, write, self.clocks[rank].issue(stream))
            widest = (max(bound for bound, _ in found), min(step for _, step in found))
            self.widen(rank, recvs[rank], widest)
        self.add(steps.Put(comm, sends, recvs, putting, waiting, offset))

    def graph(self):
        if self.graphs and self.random.random() < 0.8:
            self.launch(self.random.choice(self.graphs))
        elif len(self.graphs) < 2:
            self.capture()

    def capture(self):
        capturing = [i for i, kind in enumerate(self.program.streams) if kind != "legacy"]
        stream = self.random.choice(capturing)
        inner = []
        saved = self.comms
        self.comms = [c for c in saved if c.blocking]
        kept = [dict(ranges) for ranges in self.ranges]
        for _ in range(self.random.randint(1, 4)):
            found = self.call({rank: [] for rank in self.everyone}, pointers=True)
            # Replayed, sums would grow beyond what is exact.
            if found is not None and getattr(found, "op", None) in (None, "MAX", "MIN"):
                inner.append(on_stream(found, stream))
        self.comms, self.ranges = saved, kept
        if inner:
            graph = Graph(len(self.graphs), tuple(inner))
            self.graphs.append(graph)
            for step in inner:
                for rank in step.ranks:
                    self.captured |= {region.buffer for _, region, _ in self.uses(step, rank)}
            self.add(steps.Capture(graph.number, graph.inner, stream))

    def launch(self, graph):
        ranks = sorted({rank for step in graph.inner for rank in step.ranks})
        streams = {rank: self.stream() for rank in ranks}
        executable = Region(-3 - graph.number, 0, 1)
        for rank in ranks:
            uses = [(region, write) for step in graph.inner if rank in step.ranks
                    for _, region, write in self.uses(step, rank)]  # fmt: skip
            uses += [(turn_of(comm), True) for comm in graph.comms if rank in comm.members]
            self.alone(rank, streams[rank], (executable, True), *uses)
        # What may travel from one buffer to another in a replay.
        every = [self.range_of(r, region) for r in ranks for step in graph.inner if r in step.ranks
                 for _, region, _ in self.uses(step, r)]  # fmt: skip
        if every:
            widest = (max(bound for bound, _ in every), min(step for _, step in every))
            for step in graph.inner:
                for rank in step.ranks:
                    for _, region, write in self.uses(step, rank):
                        if write:
                            self.widen(rank, region, widest)
        self.add(steps.Launch(graph.number, graph.inner, streams))

    def finish(self):
        """Read everything at the end."""
        for rank in self.everyone:
            self.sync_device(rank)
            for number, (_, count) in self.buffers.items():
                self.add(steps.Fetch(rank, Region(number, 0, count), self.slots, None))
                self.slots += 1
        return self.program


@dataclass(frozen=True)
class Graph:
    number: int
    inner: tuple

    @property
    def comms(self):
        return {step.comm for step in self.inner}


def turn_of(comm):
    """Return what stands for a turn on a communicator, as if it were memory."""
    return Region(-1000 - comm.number, 0, 1)


def on_stream(step, stream):
    """Return a call with all of its parts on one stream."""
    if isinstance(step, steps.Message):
        send, recv = replace(step.send, stream=stream), replace(step.recv, stream=stream)
        return replace(step, send=send, recv=recv)
    parts = {rank: replace(part, stream=stream) for rank, part in step.parts.items()}
    return replace(step, parts=parts)


def overlap(one, other):
    return one.buffer == other.buffer and one.start < other.end and other.start < one.end


def exact(name, bound, step):
    """Tell whether multiples of ``step`` up to ``bound`` are numbers of a floating-point type."""
    bits, largest, smallest = FLOATS[name]
    return bound / step <= 2**bits and bound <= largest and step >= smallest


PIECES = {
    Builder.communicate: 12,
    Builder.local: 8,
    Builder.group: 5,
    Builder.make_comm: 2,
    Builder.destroy_comm: 1,
    Builder.pause: 1,
    Builder.put: 2,
    Builder.graph: 3,
}


def generate(seed, nranks, pieces=30):
    """Return the program of a seed.

    Args:
        pieces: about how many calls and groups it has
    """
    builder = Builder(seed, nranks)
    for _ in range(pieces):
        builder.random.choices(list(PIECES), list(PIECES.values()))[0](builder)
    return builder.finish()


def simulate(program):
    """Return the memory that the program leaves, and what it is to read."""
    memory = Memory()
    with numpy.errstate(over="ignore"):
        for step in program.steps:
            step.simulate(memory)
    return memory


def run(program, base, exchange):
    """Run one rank's part, and compare what it reads with numpy.

    Args:
        base: a communicator of the program's ranks
        exchange: called with a number, ranks, and this rank, gives those ranks the same new id
    """
    worker = Worker(program, base, exchange)
    for number, step in enumerate(program.steps):
        if worker.rank in step.ranks:
            program.reached[worker.rank] = number
            step.run(worker)
    worker.check(simulate(program))
    worker.close()
