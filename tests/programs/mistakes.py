"""Programs that make one mistake each: ``mistakes.py NAME...``, on two or more ranks.

Every rank prints, as JSON, what was raised and after how many seconds.
"""

import json
import sys
import threading
import time

import numpy
from cuda.core import Device
from mpi4py import MPI

import pynccl
from pynccl import bindings
from pynccl.types import DataType, RedOp

world = MPI.COMM_WORLD
kept = []


def page(comm):
    """Memory that may be a window; kept, as the mistake is another one."""
    kept.append(pynccl.mem_alloc(4096))
    return int(kept[-1].handle), 1024, "float32"


def allreduce_in_c(comm, send, receive):
    """As ``pynccl.bindings`` do it, which check nothing by themselves."""
    arguments = (send, receive, 4, DataType.FLOAT32, RedOp.SUM, comm, 0)
    pynccl.errors.check(bindings.ncclAllReduce(*arguments), "ncclAllReduce", comm)


def ones(comm, count=4, dtype="float32"):
    return comm.asarray(numpy.ones(count, dtype))


def other_operation(comm):
    x = ones(comm)
    if comm.rank == 0:
        comm.broadcast(x)
    else:
        comm.allreduce(x)
    comm.synchronize()


def other_count(comm):
    comm.allreduce(ones(comm, 4 + comm.rank))
    comm.synchronize()


def other_type(comm):
    comm.allreduce(ones(comm, 4, "float32" if comm.rank == 0 else "int32"))
    comm.synchronize()


def other_reduction(comm):
    comm.allreduce(ones(comm), op=pynccl.SUM if comm.rank == 0 else pynccl.MAX)
    comm.synchronize()


def other_root(comm):
    comm.broadcast(ones(comm), root=min(comm.rank, 1))
    comm.synchronize()


def other_message_size(comm):
    if comm.rank == 0:
        comm.send(ones(comm, 4), 1)
    elif comm.rank == 1:
        comm.recv(ones(comm, 5), 0)
    comm.synchronize()


def send_without_receive(comm):
    if comm.rank == 0:
        comm.send(ones(comm), 1)
        comm.synchronize()
    comm.allreduce(ones(comm))
    comm.synchronize()


def receive_without_send(comm):
    if comm.rank == 0:
        comm.recv(ones(comm), 1)
        comm.synchronize()
    comm.allreduce(ones(comm))
    comm.synchronize()


def second_receive_without_send(comm):
    if comm.rank == 1:
        comm.send(ones(comm), 0)
    elif comm.rank == 0:
        for _ in range(2):
            comm.recv(ones(comm), 1)
        comm.synchronize()
    comm.allreduce(ones(comm))
    comm.synchronize()


def other_message_type(comm):
    if comm.rank == 0:
        comm.send(ones(comm, 4, "float32"), 1)
    elif comm.rank == 1:
        comm.recv(ones(comm, 2, "float64"), 0)
    comm.synchronize()


def other_type_of_the_same_size(comm):
    comm.broadcast(ones(comm, 2, "float64") if comm.rank == 0 else ones(comm, 4, "float32"))
    comm.synchronize()


def signal_never_sent(comm):
    if comm.rank == 0:
        comm.wait_signal(pynccl.WaitSignalDesc(1))
        comm.synchronize()
    comm.allreduce(ones(comm))
    comm.synchronize()


def too_few_signals(comm):
    window = comm.register_window(page(comm))
    if comm.rank == 1:
        comm.put_signal(ones(comm), 0, window)
    elif comm.rank == 0:
        comm.wait_signal([pynccl.WaitSignalDesc(2, 0), pynccl.WaitSignalDesc(1, 2)])
        comm.synchronize()
    comm.allreduce(ones(comm))
    comm.synchronize()


def split_against_a_collective(comm):
    if comm.rank == 0:
        comm.split(0, 7)
    else:
        comm.allreduce(ones(comm))
        comm.synchronize()


def split_against_a_window(comm):
    if comm.rank == 0:
        comm.split()
    else:
        comm.register_window(page(comm))


def unfused_exchange(comm):
    x, y = ones(comm), ones(comm)
    comm.send(x, (comm.rank + 1) % comm.nranks)
    comm.recv(y, (comm.rank - 1) % comm.nranks)
    comm.synchronize()


def opposite_order(comm):
    other = comm.split(0, comm.rank)
    for one in (other, comm) if comm.rank == 0 else (comm, other):
        one.allreduce(ones(one))
        one.synchronize()


def leaves_early(comm):
    comm.allreduce(ones(comm))
    comm.synchronize()
    if comm.rank == 0:
        comm.destroy()
        return
    comm.allreduce(ones(comm))
    comm.synchronize()


def never_comes(comm):
    comm.allreduce(ones(comm))
    comm.synchronize()
    if comm.rank == 0:
        time.sleep(5)
        return
    comm.allreduce(ones(comm))
    comm.synchronize()


def skips_an_operation(comm):
    x = ones(comm)
    for step in range(3):
        if comm.rank == 0 and step == 1:
            continue
        comm.allreduce(x)
    comm.synchronize()


def host_memory(comm):
    x = numpy.ones(4, numpy.float32)
    comm.allreduce(ones(comm))
    allreduce_in_c(comm.ptr, x.ctypes.data, x.ctypes.data)


def recvbuf_in_host_memory(comm):
    comm.allreduce(ones(comm), numpy.ones(4, numpy.float32))


def recvbuf_in_host_memory_in_c(comm):
    x, y = ones(comm), numpy.ones(4, numpy.float32)
    allreduce_in_c(comm.ptr, x.ptr, y.ctypes.data)


def past_the_end(comm):
    x = ones(comm)
    comm.allreduce((x.ptr, 10**6, "float32"))


def freed_memory(comm):
    x = ones(comm)
    pointer = x.ptr
    del x
    comm.synchronize()
    comm.allreduce((pointer, 4, "float32"))


def freed_in_a_group(comm):
    with pynccl.group():
        comm.send(ones(comm), (comm.rank + 1) % comm.nranks)  # freed as the call returns
        x = ones(comm)
        comm.recv(x, (comm.rank - 1) % comm.nranks)


def freed_in_a_group_and_allocated_anew(comm):
    with pynccl.group():
        x = ones(comm, 1000)
        pointer = x.ptr
        comm.allreduce(x)
        del x
        anew = [ones(comm, 1000)]
        while anew[-1].ptr != pointer:
            anew.append(ones(comm, 1000))


def overlap(comm):
    x = ones(comm, 8)
    comm.allreduce(x[0:6], x[2:8])


def after_finalize(comm):
    comm.finalize()
    comm.allreduce(ones(comm))


def after_destroy(comm):
    x = ones(comm)
    comm.destroy()
    comm.allreduce(x)


def after_abort(comm):
    x = ones(comm)
    comm.allreduce(x)
    comm.abort()
    comm.allreduce(x)


def after_abort_in_c(comm):
    x, handle = ones(comm), comm.ptr
    comm.allreduce(x)
    comm.abort()
    allreduce_in_c(handle, x.ptr, x.ptr)


def buffer_of_another_gpu_in_c(comm):
    with pynccl.Communicator.init(1, 0, pynccl.get_unique_id(), device=comm.nranks) as other:
        x, y = ones(comm), ones(other)
        allreduce_in_c(comm.ptr, x.ptr, y.ptr)


def window_of_another_gpu(comm):
    Device(comm.nranks).set_current()
    comm.register_window(page(comm))


def buffer_of_another_gpu(comm):
    with pynccl.Communicator.init(1, 0, pynccl.get_unique_id(), device=comm.nranks) as other:
        x = ones(other)
        comm.allreduce(x)


def mixed_group(comm):
    x = ones(comm)
    with pynccl.group():
        comm.allreduce(x)
        comm.split(0, comm.rank)


def destroyed_in_a_group(comm):
    x = ones(comm)
    with pynccl.group():
        comm.allreduce(x)
        comm.destroy()


def destroyed_in_a_group_in_c(comm):
    x = ones(comm)
    with pynccl.group():
        comm.allreduce(x)
        pynccl.errors.check(bindings.ncclCommDestroy(comm.ptr), "ncclCommDestroy")


def aborted_in_a_group(comm):
    x = ones(comm)
    with pynccl.group():
        comm.allreduce(x)
        comm.abort()


def open_group(comm, x):
    pynccl.group_start()
    comm.allreduce(x)


def group_left_open(comm):
    x = ones(comm)
    if comm.rank == 0:
        open_group(comm, x)
        comm.synchronize()
        time.sleep(3)  # much longer than the others take to find out
        pynccl.groups.discard()
    else:
        comm.allreduce(x)
        comm.synchronize()


def second_group_left_open(comm):
    """Two threads fill groups at once, and that which was begun first is ended."""
    x, y = ones(comm), ones(comm)
    if comm.rank != 0:
        comm.allreduce(x)
        comm.broadcast(y)
        comm.synchronize()
        return
    pynccl.group_start()
    comm.allreduce(x)
    waited_for = threading.Event()

    def other_group():
        with pynccl.group():
            comm.broadcast(y)
            opened.set()
            waited_for.wait()

    opened = threading.Event()
    thread = threading.Thread(target=other_group)
    thread.start()
    opened.wait()
    pynccl.group_end()
    time.sleep(3)  # much longer than the others take to find out
    waited_for.set()
    thread.join()
    comm.synchronize()


def group_left_open_by_a_thread(comm):
    x = ones(comm)
    if comm.rank == 0:
        thread = threading.Thread(target=open_group, args=(comm, x))
        thread.start()
        thread.join()
    else:
        comm.allreduce(x)
    comm.synchronize()


def spread_id():
    return world.bcast(pynccl.get_unique_id() if world.rank == 0 else None)


def one_gpu_for_two(comm):
    pynccl.Communicator.init(comm.nranks, comm.rank, spread_id(), device=0)


def one_rank_twice(comm):
    pynccl.Communicator.init(comm.nranks, 0, spread_id(), device=comm.rank)


def other_number_of_ranks(comm):
    size = comm.nranks if comm.rank == 0 else comm.nranks + 1
    pynccl.Communicator.init(size, comm.rank, spread_id(), device=comm.rank)


def id_used_twice(comm):
    unique_id = spread_id()
    with pynccl.Communicator.init(comm.nranks, comm.rank, unique_id, device=comm.rank):
        pynccl.Communicator.init(comm.nranks, comm.rank, unique_id, device=comm.rank)


def make(name):
    """Make the mistake on a communicator of its own and print what came of it."""
    comm = pynccl.Communicator.from_mpi(world)
    world.Barrier()
    start = time.monotonic()
    said = {"name": name, "rank": comm.rank, "kind": "", "text": ""}
    try:
        globals()[name](comm)
    except (pynccl.NCCLError, ValueError, TypeError) as error:
        said.update(kind=type(error).__name__, text=str(error))
    said["seconds"] = time.monotonic() - start
    # One write: lines of different ranks must not mix.
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    comm.abort()
    world.Barrier()


for mistake in sys.argv[1:]:
    make(mistake)
