"""From MPI to a communicator: the rank's GPU, and the same error on every rank."""

import numpy
import pytest
from helpers.ranks import outcomes

import pynccl
from pynccl import Communicator, bootstrap, placement


def raised_by_all(world, function):
    """Return the type and text of the error that every rank has raised; the same on all."""
    errors = outcomes(world, function)
    assert None not in errors, errors
    assert len(set(errors)) == 1, errors
    return errors[0]


def test_each_rank_has_the_gpu_of_its_place_on_the_node(world, comm):
    place, size = placement.local_place(world)
    assert (place, size) == (world.rank, world.size)
    assert comm.device.device_id == place
    assert (comm.rank, comm.nranks, comm.size) == (world.rank, world.size, world.size)
    assert comm.is_valid
    assert comm.ptr


def test_the_gpu_may_be_chosen(world):
    wanted = world.size - 1 - world.rank
    with Communicator.from_mpi(world, device=wanted) as made:
        assert made.device.device_id == wanted
        check_sum(made)


def test_the_gpu_may_be_an_object_of_cuda_core(world, comm):
    with Communicator.from_mpi(world, device=comm.device) as made:
        assert made.device.device_id == comm.device.device_id
        check_sum(made)


def test_the_stream_may_be_chosen(world, comm):
    stream = comm.device.create_stream()
    with Communicator.from_mpi(world, stream=stream) as made:
        assert made.stream is stream
        check_sum(made)


def test_parts_of_the_world_make_communicators_of_their_own(world):
    part = world.Split(world.rank % 2, -world.rank)
    with Communicator.from_mpi(part) as made:
        assert (made.rank, made.nranks) == (part.rank, part.size)
        check_sum(made)
    part.Free()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": 99}, "ValueError: device 99 does not exist: this process sees"),
        ({"device": "first"}, "ValueError"),
        ({"stream": "fast"}, "TypeError: stream is a str"),
        ({"config": "fast"}, "TypeError: config is a str"),
        ({"timeout": -1}, "ValueError: timeout -1 must not be negative"),
        ({"ranks_per_id": 0}, "ValueError: ranks_per_id is 0; it must be at least 1"),
        ({"ranks_per_id": 2.0}, "TypeError: ranks_per_id is 2.0; it must be an integer"),
        ({"ranks_per_id": True}, "TypeError: ranks_per_id is True; it must be an integer"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, dict) else "",
)
def test_what_one_rank_got_wrong_is_raised_by_all_naming_it(world, arguments, message):
    last = world.size - 1
    mine = arguments if world.rank == last else {}
    kind, text = raised_by_all(world, lambda: Communicator.from_mpi(world, **mine))
    assert kind == "RuntimeError"
    assert text.startswith(f"rank {last} on ")
    assert message in text


def test_two_ranks_on_one_gpu_are_told_who_they_are_and_why(world):
    if world.size == 1:
        Communicator.from_mpi(world, device=0).destroy()
        return
    shared = [min(rank, world.size - 2) for rank in range(world.size)]
    kind, text = raised_by_all(
        world, lambda: Communicator.from_mpi(world, device=shared[world.rank])
    )
    assert kind == "RuntimeError"
    assert f"ranks {world.size - 2}, {world.size - 1} on " in text
    assert f"GPU {world.size - 2}" in text
    assert "CUDA_VISIBLE_DEVICES" in text


@pytest.mark.parametrize("ranks_per_id", [1, 2, 10**12])
def test_ranks_may_meet_by_several_ids(world, monkeypatch, ranks_per_id):
    made_here, passed = [], []
    make, init = bootstrap.get_unique_id, Communicator.init

    def count():
        made_here.append(make())
        return made_here[-1]

    def note(nranks, rank, ids, *rest, **options):
        passed.extend([ids] if isinstance(ids, pynccl.UniqueId) else ids)
        return init(nranks, rank, ids, *rest, **options)

    monkeypatch.setattr(bootstrap, "get_unique_id", count)
    monkeypatch.setattr(Communicator, "init", note)
    with Communicator.from_mpi(world, ranks_per_id=ranks_per_id) as made:
        check_sum(made)
    makers = [rank for rank, count in enumerate(world.allgather(len(made_here))) if count]
    assert len(passed) == len(makers) == max(1, -(-world.size // ranks_per_id))
    assert makers[0] == 0
    assert len({tuple(map(bytes, ids)) for ids in world.allgather(passed)}) == 1
    assert len(set(passed)) == len(passed)


def test_different_numbers_of_ranks_for_an_id_are_refused(world):
    if world.size == 1:
        pytest.skip("needs 2 ranks or more")
    kind, text = raised_by_all(
        world, lambda: Communicator.from_mpi(world, ranks_per_id=1 + (world.rank == 1))
    )
    assert kind == "RuntimeError"
    assert "ranks_per_id is 1 on rank 0 and 2 on rank 1; it must be the same on all" in text


def test_a_unique_id_that_cannot_be_made_is_told_to_all(world, monkeypatch):
    def fail():
        raise pynccl.NCCLSystemError(2, "ncclGetUniqueId", "no interface to listen on")

    if world.rank == 0:
        monkeypatch.setattr(bootstrap, "get_unique_id", fail)
    kind, text = raised_by_all(world, lambda: Communicator.from_mpi(world))
    assert kind == "RuntimeError"
    assert "rank 0 could not make a unique id: NCCLSystemError" in text
    assert "no interface to listen on" in text


def test_different_releases_of_nccl_are_refused(world, monkeypatch):
    if world.size == 1:
        pytest.skip("needs 2 ranks or more")

    prepare = bootstrap._prepare

    def prepare_with_an_older_one(*arguments):
        return {**prepare(*arguments), "version": 21800}

    if world.rank == 1:
        monkeypatch.setattr(bootstrap, "_prepare", prepare_with_an_older_one)
    kind, text = raised_by_all(world, lambda: Communicator.from_mpi(world))
    assert kind == "RuntimeError"
    assert "the ranks have different releases of NCCL" in text
    assert "rank 1 on " in text
    assert "2.18.0" in text


def test_ranks_that_mpi_puts_on_nodes_of_their_own_are_counted_by_host_name(world):
    from mpi4py import MPI

    class Apart(MPI.Intracomm):
        def Split_type(self, *_):  # noqa: N802 - MPI's name
            return MPI.COMM_SELF.Dup()

    apart = Apart(world)
    assert placement.local_place(apart) == (world.rank, world.size)
    with Communicator.from_mpi(apart) as made:
        assert made.device.device_id == world.rank


def test_ranks_of_one_node_with_names_of_their_own_are_counted_by_mpi(world, monkeypatch):
    monkeypatch.setattr(placement, "host_name", lambda: f"container{world.rank}")
    assert placement.local_place(world) == (world.rank, world.size)
    with Communicator.from_mpi(world) as made:
        assert made.device.device_id == world.rank


def test_hosts_whose_names_have_the_same_checksum_are_told_apart(world, monkeypatch):
    from mpi4py import MPI

    monkeypatch.setattr(placement.zlib, "crc32", lambda _: 1)
    monkeypatch.setattr(placement, "host_name", lambda: f"n{world.rank % 2}")

    class Apart(MPI.Intracomm):
        def Split_type(self, *_):  # noqa: N802 - MPI's name
            return MPI.COMM_SELF.Dup()

    mine = range(world.rank % 2, world.size, 2)
    assert placement.local_place(Apart(world)) == (mine.index(world.rank), len(mine))


@pytest.mark.parametrize("wrong", [None, 0, "world"])
def test_what_is_no_communicator_of_mpi_is_refused(wrong):
    with pytest.raises(TypeError, match="comm is .*; it must be an mpi4py intracommunicator"):
        Communicator.from_mpi(wrong)


def test_the_null_communicator_is_refused():
    from mpi4py import MPI

    with pytest.raises(TypeError, match="intracommunicator"):
        Communicator.from_mpi(MPI.COMM_NULL)


def check_sum(comm):
    array = comm.asarray(numpy.array([comm.rank, 1], "int32"))
    comm.allreduce(array)
    assert array.get().tolist() == [comm.nranks * (comm.nranks - 1) // 2, comm.nranks]
