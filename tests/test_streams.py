"""What is taken for a stream, and the order between streams."""

import ctypes
import threading

import numpy
import pytest

import pynccl
from pynccl import Communicator
from pynccl.streams import handle_of, on_device, same

COUNT = 1 << 20


@pytest.fixture(scope="module")
def comm():
    with Communicator.init(1, 0, pynccl.get_unique_id(), device=0) as made:
        yield made


@pytest.fixture
def stream(comm):
    """A stream that the default stream does not wait for."""
    from cuda.core import StreamOptions

    made = comm.device.create_stream(options=StreamOptions(nonblocking=True))
    yield made
    made.sync()


class Protocol:
    """Speaks cuda.core's protocol: as a method, or as an attribute as the first version did."""

    def __init__(self, handle, version=0, as_attribute=False):
        answer = (version, handle)
        self.__cuda_stream__ = answer if as_attribute else lambda: answer


class CupyLike:
    ptr = 5


class TorchLike:
    cuda_stream = 6


class Array:
    """An array of a library that makes its contents on a stream, and says so."""

    def __init__(self, array, stream):
        self.keep = array
        self.interface = {**array.__cuda_array_interface__, "stream": stream}

    @property
    def __cuda_array_interface__(self):
        return self.interface


class Capsule:
    """An array that speaks DLPack only; remembers for which stream it was asked."""

    def __init__(self, array, producer=None):
        self.array = array
        self.producer = producer
        self.asked = []

    def __dlpack__(self, stream=None, **arguments):
        self.asked.append(stream)
        if self.producer is not None:
            pynccl.streams.make_wait(stream, int(self.producer.handle))
        return self.array.__dlpack__(stream=-1, **arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def hold(stream):
    """Keep a stream busy until the event that is returned is set."""
    from cuda.bindings import driver

    release = threading.Event()

    def wait(_):
        release.wait(10)

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(wait)
    release.function = function  # lives as long as the event, which the test holds
    address = ctypes.cast(function, ctypes.c_void_p).value
    answer = driver.cuLaunchHostFunc(stream.handle, driver.CUhostFn(address), 0)
    assert answer[0] == 0, answer
    return release


@pytest.mark.parametrize(
    ("given", "handle"),
    [(0, 0), (7, 7), (Protocol(3), 3), (Protocol(4, as_attribute=True), 4), (CupyLike(), 5),
     (TorchLike(), 6)],
    ids=["default", "handle", "method", "attribute", "cupy", "torch"],
)  # fmt: skip
def test_streams_of_all_kinds_have_a_handle(given, handle):
    assert handle_of(given) == handle


def test_a_stream_of_cuda_core_has_its_handle(stream):
    assert handle_of(stream) == int(stream.handle)


@pytest.mark.parametrize("wrong", ["default", 1.5, object(), numpy.ones(2)])
def test_what_is_no_stream_is_refused(comm, wrong):
    with pytest.raises(TypeError, match=r"stream is a \w+; it must be"):
        comm.allreduce(comm.empty(3), stream=wrong)


def test_an_unknown_version_of_the_protocol_is_refused():
    with pytest.raises(TypeError, match="version 9"):
        handle_of(Protocol(3, version=9))


def test_the_default_stream_has_two_handles():
    assert same(0, 1) and same(1, 0) and same(5, 5)
    assert not same(0, 2) and not same(5, 6)


def test_a_communicator_works_on_the_default_stream_unless_given_another(comm, stream):
    assert same(int(comm.stream.handle), 0)
    unique_id = pynccl.get_unique_id()
    with Communicator.init(1, 0, unique_id, device=0, stream=stream) as other:
        assert other.stream is stream
        array = other.asarray(numpy.arange(3))
        release = hold(stream)
        other.allreduce(array)
        assert array.__cuda_array_interface__["stream"] == int(stream.handle)
        assert not is_done(stream)
        release.set()
        other.synchronize()
        assert is_done(stream)
        assert (array.get() == numpy.arange(3)).all()


def test_an_operation_goes_to_the_stream_that_its_array_names(comm, stream):
    array = comm.asarray(numpy.ones(COUNT, "float32"))
    out = comm.asarray(numpy.zeros(COUNT, "float32"))
    comm.synchronize()
    contents = numpy.asarray(out)
    release = hold(stream)
    comm.allreduce(Array(array, int(stream.handle)), Array(out, int(stream.handle)))
    comm.synchronize()
    assert not contents.any()  # the default stream is done, and this was not on it
    release.set()
    stream.sync()
    assert contents.all()


def test_an_explicit_stream_waits_for_what_makes_the_array(comm, stream):
    from cuda.core import StreamOptions

    maker = comm.device.create_stream(options=StreamOptions(nonblocking=True))
    array = comm.asarray(numpy.ones(COUNT, "float32"))
    out = comm.asarray(numpy.zeros(COUNT, "float32"))
    comm.synchronize()
    release = hold(maker)
    fill(array, 2.0, maker)
    comm.allreduce(Array(array, int(maker.handle)), Array(out, None), stream=stream)
    release.set()
    stream.sync()
    assert (numpy.asarray(out) == 2).all()


def test_a_prepared_operation_waits_for_what_makes_the_array_each_time(comm, stream):
    from cuda.core import StreamOptions

    maker = comm.device.create_stream(options=StreamOptions(nonblocking=True))
    array = comm.asarray(numpy.ones(COUNT, "float32"))
    out = comm.asarray(numpy.zeros(COUNT, "float32"))
    comm.synchronize()
    issue = comm.prepare(
        "allreduce", Array(array, int(maker.handle)), Array(out, None), stream=stream
    )
    for value in (2.0, 3.0):
        release = hold(maker)
        fill(array, value, maker)
        issue()
        release.set()
        stream.sync()
        assert (numpy.asarray(out) == value).all()


def test_what_makes_an_array_of_dlpack_is_waited_for(comm, stream):
    array = comm.asarray(numpy.ones(COUNT, "float32"))
    comm.synchronize()
    capsule = Capsule(array, producer=stream)
    release = hold(stream)
    fill(array, 2.0, stream)
    out = comm.empty(COUNT)
    comm.allreduce(capsule, out)
    release.set()
    assert (out.get() == 2).all()
    assert capsule.asked == [1]


def test_an_explicit_stream_may_be_used_where_no_gpu_is_current(comm, stream):
    array = comm.asarray(numpy.arange(4.0))
    failures = []

    def work():
        try:
            comm.allreduce(array, stream=stream)
            comm.empty(5).get()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []


def test_calls_leave_the_current_gpu_as_it_was(comm, stream):
    from cuda.core import Device

    Device(1).set_current()
    array = comm.asarray(numpy.arange(4.0))
    comm.allreduce(array, stream=stream)
    stream.sync()
    array.get()
    comm.synchronize()
    del array
    assert Device().device_id == 1
    with on_device(0):
        assert Device().device_id == 0
    assert Device().device_id == 1
    Device(0).set_current()


def is_done(stream):
    from cuda.bindings import driver

    return driver.cuStreamQuery(stream.handle)[0] == 0


def fill(array, value, stream):
    """Set every element of a float32 array, on a stream."""
    from cuda.bindings import driver

    word = int(numpy.float32(value).view("uint32"))
    answer = driver.cuMemsetD32Async(array.ptr, word, array.size, stream.handle)
    assert answer[0] == 0, answer
