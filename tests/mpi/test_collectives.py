"""Every collective, with every element type, in place and not, against numpy."""

import zlib

import numpy
import pytest
from helpers.values import DTYPES, SIZES, as_numbers, pattern, reduced

import pynccl

OPS = ("SUM", "PROD", "MAX", "MIN", "AVG")


def everyones(comm, count, dtype):
    return [pattern(rank, count, dtype) for rank in range(comm.nranks)]


def equal(array, expected):
    numpy.testing.assert_array_equal(as_numbers(array.get()), as_numbers(expected))


def average_tolerance(dtype, op):
    """AVG of floating types multiplies by 1/n first, which rounds; of integers it truncates."""
    if op != "AVG":
        return 0
    return 0.3 if dtype.itemsize == 1 else 0.02 if dtype.itemsize == 2 else 1e-6


def same_reduction(array, op, contributions):
    expected = reduced(op, contributions)
    dtype = array.dtype
    if op == "AVG" and dtype.kind in "iu":
        expected = numpy.trunc(expected)
    got = as_numbers(array.get())
    tolerance = average_tolerance(dtype, op)
    numpy.testing.assert_allclose(got, expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_allreduce_of_every_type_and_size(comm, dtype, count):
    contributions = everyones(comm, count, dtype)
    send = comm.asarray(contributions[comm.rank])
    recv = comm.empty(count, dtype)
    assert comm.allreduce(send, recv) is recv
    same_reduction(recv, "SUM", contributions)
    equal(send, contributions[comm.rank])
    assert comm.allreduce(send) is send
    same_reduction(send, "SUM", contributions)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_reduction_of_every_type(comm, dtype, op):
    contributions = everyones(comm, 3000, dtype)
    if op == "PROD":  # of powers of two, exact in eight bits as well
        contributions = [array.clip(1, 2) for array in map(as_numbers, contributions)]
    array = comm.asarray(contributions[comm.rank], dtype)
    comm.allreduce(array, op=getattr(pynccl, op))
    same_reduction(array, op, contributions)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_reduce_leaves_the_result_on_the_root_alone(comm, dtype, count, in_place):
    root = comm.nranks - 1
    contributions = everyones(comm, count, dtype)
    send = comm.asarray(contributions[comm.rank])
    recv = send if in_place else comm.asarray(numpy.zeros(count), dtype)
    comm.reduce(send, None if in_place else recv, root=root)
    if comm.rank == root:
        same_reduction(recv, "SUM", contributions)
    else:
        equal(recv, contributions[comm.rank] if in_place else numpy.zeros(count))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_broadcast_copies_the_roots_elements(comm, dtype, count, in_place):
    for root in range(comm.nranks):
        send = comm.asarray(pattern(comm.rank, count, dtype))
        recv = send if in_place else comm.empty(count, dtype)
        comm.broadcast(send, None if in_place else recv, root=root)
        equal(recv, pattern(root, count, dtype))


def test_broadcast_needs_no_sendbuf_but_on_the_root(comm):
    recv = comm.empty(5, "int32")
    send = comm.asarray(pattern(0, 5, "int32")) if comm.rank == 0 else None
    comm.broadcast(send, recv)
    equal(recv, pattern(0, 5, "int32"))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_allgather_puts_the_ranks_in_order(comm, dtype, count, in_place):
    recv = comm.empty((comm.nranks, count), dtype)
    if in_place:
        send = recv[comm.rank]
        send.set(pattern(comm.rank, count, dtype))
    else:
        send = comm.asarray(pattern(comm.rank, count, dtype))
    comm.allgather(send, recv)
    equal(recv, numpy.stack(everyones(comm, count, dtype)))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_reduce_scatter_leaves_each_rank_its_part(comm, dtype, count, in_place):
    total = comm.nranks * count
    contributions = everyones(comm, total, dtype)
    send = comm.asarray(contributions[comm.rank].reshape(comm.nranks, count))
    recv = send[comm.rank] if in_place else comm.empty(count, dtype)
    comm.reduce_scatter(send, recv)
    mine = slice(comm.rank * count, (comm.rank + 1) * count)
    same_reduction(recv, "SUM", [array[mine] for array in contributions])


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_alltoall_transposes_the_parts(comm, dtype, count):
    parts = [pattern(comm.rank + 2 * peer, count, dtype) for peer in range(comm.nranks)]
    send = comm.asarray(numpy.stack(parts))
    recv = comm.empty((comm.nranks, count), dtype)
    comm.alltoall(send, recv)
    expected = [pattern(peer + 2 * comm.rank, count, dtype) for peer in range(comm.nranks)]
    equal(recv, numpy.stack(expected))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_gather_collects_on_the_root(comm, dtype, count, in_place):
    root = comm.nranks // 2
    here = comm.rank == root
    recv = comm.empty((comm.nranks, count), dtype) if here else None
    if here and in_place:
        send = recv[comm.rank]
        send.set(pattern(comm.rank, count, dtype))
    else:
        send = comm.asarray(pattern(comm.rank, count, dtype))
    comm.gather(send, recv, root=root)
    if here:
        equal(recv, numpy.stack(everyones(comm, count, dtype)))
    else:
        comm.synchronize()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_scatter_hands_out_the_roots_parts(comm, dtype, count, in_place):
    root = comm.nranks - 1
    parts = numpy.stack(everyones(comm, count, dtype))
    send = comm.asarray(parts) if comm.rank == root else None
    recv = send[comm.rank] if send is not None and in_place else comm.empty(count, dtype)
    comm.scatter(send, recv, root=root)
    equal(recv, pattern(comm.rank, count, dtype))


def test_complex_numbers_are_summed_and_averaged_as_pairs(comm):
    mine = (numpy.arange(10) + 1j * (comm.rank + 1)).astype("complex64")
    total = sum(numpy.arange(10) + 1j * (rank + 1) for rank in range(comm.nranks))
    array = comm.asarray(mine)
    numpy.testing.assert_allclose(comm.allreduce(array).get(), total)
    array.set(mine)
    average = comm.allreduce(array, op=pynccl.AVG).get()
    numpy.testing.assert_allclose(average, total / comm.nranks, rtol=1e-6)
    with pytest.raises(TypeError, match="SUM and AVG only"):
        comm.allreduce(array, op=pynccl.MAX)


def test_bool_travels_as_bytes(comm):
    mine = numpy.arange(10) % comm.nranks == comm.rank
    array = comm.allreduce(comm.asarray(mine), op=pynccl.MAX)
    assert array.dtype == bool
    assert array.get().all()


def test_reduction_by_a_scalar_of_each_rank(comm):
    scale = float(comm.rank + 1)
    expected = sum(range(1, comm.nranks + 1)) * numpy.arange(100)
    array = comm.asarray(numpy.arange(100, dtype="float32"))
    with comm.create_pre_mul_sum(scale, "float32") as op:
        comm.allreduce(array, op=op)
        numpy.testing.assert_allclose(array.get(), expected)
    with pytest.raises(ValueError, match="closed"):
        comm.allreduce(array, op=op)


def test_scalar_on_the_gpu_is_read_when_the_collective_runs(comm):
    scalar = comm.asarray(numpy.float64([1]))
    op = comm.create_pre_mul_sum(scalar)
    scalar.set([comm.rank + 1])
    array = comm.allreduce(comm.asarray(numpy.ones(9000)), op=op)
    assert (array.get() == sum(range(1, comm.nranks + 1))).all()
    op.close()


def test_results_are_the_same_bits_on_all_ranks_and_in_every_run(comm, world):
    generator = numpy.random.default_rng(comm.rank)
    values = generator.standard_normal(50001).astype("float32")
    first = comm.allreduce(comm.asarray(values)).get()
    again = comm.allreduce(comm.asarray(values)).get()
    assert first.tobytes() == again.tobytes()
    assert len(set(world.allgather(zlib.crc32(first.tobytes())))) == 1


def test_prepared_operations_do_the_same_as_the_methods(comm):
    ones = comm.asarray(numpy.ones(64, "float32"))
    total = comm.empty(64)
    gathered = comm.empty(64 * comm.nranks)
    reduce_all = comm.prepare("allreduce", ones, total, op=pynccl.SUM)
    gather_all = comm.prepare("allgather", ones, gathered)
    for _ in range(3):
        assert reduce_all() is total
        assert gather_all() is gathered
    assert (total.get() == comm.nranks).all()
    assert (gathered.get() == 1).all()
    with pytest.raises(ValueError, match="allreduce"):
        comm.prepare("all_reduce", ones)


def test_a_group_fuses_collectives(comm):
    arrays = [comm.asarray(pattern(comm.rank, 100 * i, "int32")) for i in range(5)]
    with pynccl.group():
        for array in arrays:
            comm.allreduce(array)
    for i, array in enumerate(arrays):
        same_reduction(array, "SUM", everyones(comm, 100 * i, "int32"))


def test_an_exception_in_a_group_is_raised_and_launches_nothing(comm):
    array = comm.asarray(numpy.ones(10, "int32"))
    def fails_halfway():
        with pynccl.group():
            comm.allreduce(array)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails_halfway()
    assert (array.get() == 1).all()
    comm.allreduce(array)
    assert (array.get() == comm.nranks).all()


def test_arithmetic_is_ordered_with_collectives(comm):
    array = comm.asarray(numpy.ones(200000))
    for _ in range(3):
        comm.allreduce(array)
        with comm.compute() as xp:
            xp.asarray(array)[:] /= comm.nranks
    assert (array.get() == 1).all()


def test_a_stream_of_the_callers_orders_an_operation(comm):
    stream = comm.device.create_stream()
    array = comm.asarray(numpy.ones(100000))
    comm.allreduce(array, stream=stream)
    stream.sync()
    assert (array.get() == comm.nranks).all()
    stream.close()


def test_alltoall_of_a_count_that_does_not_divide_is_refused(comm):
    if comm.nranks == 1:
        return
    array = comm.empty(comm.nranks + 1)
    with pytest.raises(ValueError, match="alltoallv"):
        comm.alltoall(array, comm.empty(comm.nranks + 1))


def test_reduce_scatter_of_a_count_that_does_not_divide_is_refused(comm):
    if comm.nranks == 1:
        return
    send, recv = comm.empty(2 * comm.nranks + 1), comm.empty(2)
    with pytest.raises(ValueError, match="reduce_scatterv"):
        comm.reduce_scatter(send, recv)
