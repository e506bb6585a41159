"""Arguments that do not fit: refused before NCCL is called, with what was wrong and what is right.

The ranks are never asked to communicate: a call that came through would be seen by the other's
absence, as a hang.
"""

import gc
import weakref

import numpy
import pytest

import pynccl
from pynccl import Communicator

NRANKS = 4


@pytest.fixture(scope="module")
def comms():
    made = Communicator.init_all(NRANKS)
    yield made
    for comm in made:
        comm.abort()


@pytest.fixture
def comm(comms):
    return comms[0]


@pytest.fixture
def lone():
    made = Communicator.init(1, 0, pynccl.get_unique_id(), device=0)
    yield made
    made.abort()


@pytest.mark.parametrize(
    ("operation", "send", "recv", "message"),
    [
        ("allreduce", 8, 7, "sendbuf has 8 and recvbuf 7 elements: they must have as many"),
        ("reduce", 8, 7, "sendbuf has 8 and recvbuf 7"),
        ("broadcast", 8, 7, "sendbuf has 8 and recvbuf 7"),
        ("allgather", 2, 7, "recvbuf must have 4 times as many"),
        ("reduce_scatter", 7, 1, "sendbuf must have 4 times as many.*reduce_scatterv"),
        ("alltoall", 8, 4, "sendbuf has 8 and recvbuf 4"),
        ("alltoall", 7, 7, "7 elements, which 4 ranks cannot share evenly; alltoallv"),
        ("gather", 2, 7, "recvbuf must have 4 times as many"),
        ("scatter", 7, 2, "sendbuf must have 4 times as many.*scatterv"),
    ],
)
def test_counts_that_do_not_fit_are_refused(comm, operation, send, recv, message):
    arguments = {"root": 0} if operation == "reduce" else {}
    with pytest.raises(ValueError, match=message):
        getattr(comm, operation)(comm.empty(send), comm.empty(recv), **arguments)


@pytest.mark.parametrize(
    "operation", ["allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "gather"]
)
def test_two_types_in_one_call_are_refused(comm, operation):
    with pytest.raises(TypeError, match="sendbuf has float32 and recvbuf int32: they must be eq"):
        getattr(comm, operation)(comm.empty(8), comm.empty(8, "int32"))


def test_complex_numbers_and_their_parts_are_two_types(comm):
    with pytest.raises(TypeError, match="complex of float32 and recvbuf float32"):
        comm.allreduce(comm.empty(4, "complex64"), comm.empty(8))


@pytest.mark.parametrize("op", [pynccl.PROD, pynccl.MAX, pynccl.MIN])
def test_complex_numbers_are_not_ordered_or_multiplied(comm, op):
    with pytest.raises(TypeError, match="complex numbers are reduced with SUM and AVG only"):
        comm.allreduce(comm.empty(4, "complex64"), op=op)


@pytest.mark.parametrize("root", [-1, NRANKS, "0", 0.0, None])
@pytest.mark.parametrize("operation", ["broadcast", "gather", "scatter"])
def test_a_root_that_is_no_rank_is_refused(comm, operation, root):
    with pytest.raises(ValueError, match=r"root .*: must be a rank from 0 to 3"):
        getattr(comm, operation)(comm.empty(8), comm.empty(8), root=root)


@pytest.mark.parametrize("peer", [-1, NRANKS, "0", None])
def test_a_peer_that_is_no_rank_is_refused(comm, peer):
    array = comm.empty(8)
    calls = {
        "peer": (lambda: comm.send(array, peer), lambda: comm.recv(array, peer)),
        "dest": (lambda: comm.sendrecv(array, peer, array, 0),),
        "source": (lambda: comm.sendrecv(array, 0, array, peer),),
    }
    for name, refused in calls.items():
        for call in refused:
            with pytest.raises(ValueError, match=f"{name} .*: must be a rank from 0 to 3"):
                call()


@pytest.mark.parametrize("op", ["sum", 0, None, numpy.add])
def test_an_op_that_is_none_is_refused(comm, op):
    with pytest.raises(TypeError, match="op .*: must be SUM, PROD, MAX, MIN, AVG"):
        comm.allreduce(comm.empty(8), op=op)


def test_the_root_needs_the_buffer_that_others_may_leave_out(comms):
    with pytest.raises(TypeError, match="sendbuf is None on the root"):
        comms[0].broadcast(None, comms[0].empty(4))
    with pytest.raises(TypeError, match="recvbuf is None on the root"):
        comms[2].gather(comms[2].empty(4), root=2)
    with pytest.raises(TypeError, match="sendbuf is None on the root"):
        comms[1].scatter(None, comms[1].empty(4), root=1)


@pytest.mark.parametrize("argument", ["sendbuf", "recvbuf"])
def test_a_wrong_buffer_is_named(comm, argument):
    good, wrong = comm.empty(4), numpy.ones(4, "float32")
    pair = (wrong, good) if argument == "sendbuf" else (good, wrong)
    with pytest.raises(TypeError, match=rf"^{argument} is a numpy.*comm\.asarray\({argument}\)"):
        comm.allreduce(*pair)


def test_a_config_of_another_kind_is_refused(comm, lone):
    for wrong in ("fast", {}, pynccl.Config()):
        with pytest.raises(TypeError, match="must be a pynccl.CollConfig, or None"):
            comm.allreduce(comm.empty(4), config=wrong)
        with pytest.raises(TypeError, match="must be a pynccl.CollConfig, or None"):
            comm.prepare("allreduce", comm.empty(4), config=wrong)
    with pytest.raises(TypeError, match="must be a pynccl.Config, or None"):
        lone.split(0, config=pynccl.CollConfig())


@pytest.mark.parametrize("color", [-1, "0", 1.0])
def test_a_color_that_is_none_is_refused(comm, color):
    with pytest.raises(ValueError, match="color .* must be an integer of 0 or more, or None"):
        comm.split(color)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"nranks": 0}, ValueError, "rank 0 of 0"),
        ({"rank": 1}, ValueError, "rank 1 of 1: rank must be from 0 to nranks - 1"),
        ({"rank": -1}, ValueError, "rank -1 of 1"),
        ({"nranks": "1"}, TypeError, "must be integers"),
        ({"unique_id": bytes(128)}, TypeError, "must be a pynccl.UniqueId"),
        ({"unique_id": []}, TypeError, "must be a pynccl.UniqueId"),
        ({"device": 99}, ValueError, "device 99 does not exist: this process sees 8 GPUs"),
        ({"device": -1}, ValueError, "device -1 does not exist"),
        ({"config": "fast"}, TypeError, "config is a str; it must be a pynccl.Config, or None"),
        ({"timeout": "1"}, TypeError, "timeout is a str; it must be seconds"),
        ({"timeout": -1}, ValueError, "timeout -1 must not be negative"),
        ({"stream": "s"}, TypeError, "stream is a str"),
    ],
)
def test_a_communicator_that_cannot_be_made_is_refused(arguments, error, message):
    given = {"nranks": 1, "rank": 0, "unique_id": pynccl.get_unique_id(), **arguments}
    with pytest.raises(error, match=message):
        Communicator.init(**given)


def test_a_communicator_is_not_made_by_its_class():
    with pytest.raises(TypeError, match=r"Communicator\.from_mpi"):
        Communicator(1, 0)


def test_ranks_of_numpy_are_ranks(lone):
    array = lone.asarray(numpy.arange(3.0))
    zero = numpy.int64(0)
    lone.broadcast(array, root=zero)
    lone.reduce(array, root=zero)
    with pynccl.group():
        lone.send(array, zero)
        lone.recv(array, zero)
    assert (array.get() == numpy.arange(3)).all()
    assert lone.split(numpy.int64(0)).nranks == 1


def test_a_unique_id_travels_as_bytes_and_pickles():
    import pickle

    made = pynccl.get_unique_id()
    assert len(bytes(made)) == 128
    assert pynccl.UniqueId.from_bytes(bytes(made)) == made == pickle.loads(pickle.dumps(made))
    assert made != pynccl.get_unique_id()
    with pytest.raises(ValueError, match="128 bytes, not 3"):
        pynccl.UniqueId.from_bytes(b"abc")


def test_what_cannot_be_prepared_is_refused(comm):
    with pytest.raises(ValueError, match="operation 'send': must be one of allreduce"):
        comm.prepare("send", comm.empty(3), 0)
    with pytest.raises(ValueError, match="sendbuf has 3 and recvbuf 4"):
        comm.prepare("allreduce", comm.empty(3), comm.empty(4))


@pytest.mark.parametrize("root", [{}, {"root": None}])
def test_a_prepared_reduction_without_a_root_is_an_allreduce(comms, root):
    arrays = [comm.asarray(numpy.full(5, comm.rank + 1.0)) for comm in comms]
    issues = [comm.prepare("reduce", array, **root) for comm, array in zip(comms, arrays)]
    with pynccl.group():
        for issue in issues:
            issue()
    for array in arrays:
        assert (array.get() == 10).all()


def test_a_prepared_operation_keeps_its_buffers_however_they_were_passed(lone):
    array = lone.asarray(numpy.arange(3.0))
    out = lone.empty(3, "float64")
    alive = weakref.ref(array)
    issue = lone.prepare("allreduce", sendbuf=array, recvbuf=out)
    del array
    gc.collect()
    assert alive() is not None
    assert (issue().get() == numpy.arange(3)).all()
    del issue
    gc.collect()
    assert alive() is None


def test_a_prepared_operation_of_a_communicator_that_is_gone_is_refused(lone):
    issue = lone.prepare("allreduce", lone.empty(3))
    lone.destroy()
    with pytest.raises(ValueError, match="the communicator was destroyed "):
        issue()


def test_groups_nest_and_an_exception_in_the_inner_one_launches_nothing(lone):
    ones, twos = lone.asarray(numpy.ones(4)), lone.asarray(numpy.full(4, 2.0))

    def fail_in_the_inner_group():
        with pynccl.group():
            lone.allreduce(ones, twos)
            with pynccl.group():
                raise KeyError("inner")

    with pytest.raises(KeyError, match="inner"):
        fail_in_the_inner_group()
    assert (twos.get() == 2).all()
    with pynccl.group(), pynccl.group():
        lone.allreduce(ones, twos)
    assert (twos.get() == 1).all()


def test_a_refused_argument_in_a_group_launches_nothing_and_is_what_is_raised(lone):
    ones, twos = lone.asarray(numpy.ones(4)), lone.asarray(numpy.full(4, 2.0))

    def pass_a_wrong_root():
        with pynccl.group():
            lone.allreduce(ones, twos)
            lone.broadcast(ones, root=7)

    with pytest.raises(ValueError, match="root 7"):
        pass_a_wrong_root()
    assert (twos.get() == 2).all()
    lone.allreduce(ones, twos)
    assert (twos.get() == 1).all()
