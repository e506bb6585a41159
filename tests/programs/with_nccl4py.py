"""Uses NVIDIA's nccl4py alone, as on GPUs: every rank a thread with a GPU of its own."""

import sys
from concurrent.futures import ThreadPoolExecutor

import nccl.core as nccl
import numpy as np
from cuda.bindings import driver
from cuda.core import Device
from cuda.core.utils import StridedMemoryView

RANKS = 4
COUNT = 1024


def filled(buffer, value):
    """Return the buffer as an array of float32 that holds the value."""
    host = np.full(COUNT, value, np.float32)
    driver.cuMemcpyHtoD(int(buffer.handle), host.ctypes.data, host.nbytes)
    return StridedMemoryView.from_buffer(buffer, (COUNT,), dtype=np.dtype("float32"))


def contents(array):
    host = np.empty(COUNT, np.float32)
    driver.cuMemcpyDtoH(host.ctypes.data, array.ptr, host.nbytes)
    return host


def rank_does(rank, unique_id):
    device = Device(rank)
    device.set_current()
    stream = device.create_stream()
    comm = nccl.Communicator.init(RANKS, rank, unique_id)
    assert (comm.rank, comm.nranks, comm.device.device_id) == (rank, RANKS, rank)
    memory = [nccl.mem_alloc(4 * COUNT) for _ in range(2)]
    send, recv = filled(memory[0], rank + 1), filled(memory[1], 0)

    comm.allreduce(send, recv, nccl.SUM, stream=stream)
    comm.reduce(send, recv, nccl.MAX, root=0, stream=stream)
    comm.broadcast(send, send, root=RANKS - 1, stream=stream)
    stream.sync()
    assert (contents(recv) == (RANKS if rank == 0 else 10)).all(), contents(recv)[0]
    assert (contents(send) == RANKS).all()

    with nccl.group():
        comm.send(send, (rank + 1) % RANKS, stream=stream)
        comm.recv(recv, (rank - 1) % RANKS, stream=stream)
    stream.sync()
    op = comm.create_pre_mul_sum(0.5, nccl.FLOAT32)
    comm.allreduce(send, recv, op, stream=stream)
    stream.sync()
    assert (contents(recv) == RANKS * RANKS / 2).all()

    window = comm.register_window(recv, nccl.WindowFlag.COLL_SYMMETRIC)
    assert window.user_ptr == recv.ptr
    comm.put_signal(send, (rank + 1) % RANKS, window, stream=stream)
    comm.wait_signal(nccl.WaitSignalDesc(peer=(rank - 1) % RANKS), stream=stream)
    stream.sync()
    assert (contents(recv) == RANKS).all()

    half = comm.split(rank % 2, rank)
    assert half.nranks == RANKS // 2
    half.destroy()
    if rank != 0:
        rest = comm.shrink([0])
        assert (rest.rank, rest.nranks) == (rank - 1, RANKS - 1)
        rest.destroy()
    window.close()
    comm.destroy()
    return True


def main():
    assert "NCCL_DEBUG" in nccl.params
    unique_id = nccl.get_unique_id()
    with ThreadPoolExecutor(RANKS) as pool:
        done = [pool.submit(rank_does, rank, unique_id) for rank in range(RANKS)]
        assert all(future.result(timeout=60) for future in done)
    print("nccl4py", nccl.__version__, "ran with arguments", sys.argv[1:])


if __name__ == "__main__":
    main()
