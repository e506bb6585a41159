"""Collectives between neighbours on GPU arrays: who is next to whom is computed here again."""

import numpy as np
import pytest
from mpi4py import MPI

from pynccl.mpi import Cartcomm, Comm, Distgraphcomm, Graphcomm, Prequest, Request

COUNT = 3
FORMS = ["blocking", "nonblocking", "persistent"]


@pytest.fixture(scope="module")
def gpu(world):
    """The world, for arrays on GPUs."""
    return Comm(world)


def grids(size):
    """Dimensions, and which of them are periodic."""
    yield [size], [True]
    yield [size], [False]
    yield [1, size], [True, True]
    if size % 2 == 0:
        yield [2, size // 2], [True, False]
        yield [size // 2, 2], [False, True]


def across(comm, rank, dimension, step):
    """The rank a step away in a dimension of a grid, or None beyond its edge."""
    dims, periods, _ = comm.Get_topo()
    coords = list(comm.Get_coords(rank))
    coords[dimension] += step
    if not periods[dimension] and not 0 <= coords[dimension] < dims[dimension]:
        return None
    coords[dimension] %= dims[dimension]
    return comm.Get_cart_rank(coords)


def sources(comm):
    """For each place of the receive buffer, whose part of the send buffer arrives, and which."""
    if isinstance(comm, Cartcomm):
        places = [(dimension, step) for dimension in range(comm.ndim) for step in (-1, 1)]
        return [
            (across(comm, comm.rank, dimension, step), places.index((dimension, -step)))
            for dimension, step in places
        ]
    # The n-th edge from a rank to this one is the n-th of those in that rank's list.
    incoming, outgoing = comm.inoutedges
    lists = comm.allgather(outgoing)
    found = []
    for place, rank in enumerate(incoming):
        nth = incoming[:place].count(rank)
        edges = [index for index, to in enumerate(lists[rank]) if to == comm.rank]
        found.append((rank, edges[nth]))
    return found


def topologies(gpu):
    size, rank = gpu.size, gpu.rank
    for dims, periods in grids(size):
        yield gpu.Create_cart(dims, periods)
    index = [2 * (one + 1) for one in range(size)]
    edges = [step % size for one in range(size) for step in (one - 1, one + 1)]
    yield gpu.Create_graph(index, edges)
    yield gpu.Create_dist_graph_adjacent([(rank - 1) % size], [(rank + 1) % size])
    # Rank 0 names all edges: everyone sends to it, and it to no one.
    everyone = list(range(size)) if rank == 0 else []
    yield gpu.Create_dist_graph(everyone, [1] * len(everyone), [0] * len(everyone))


def call(comm, form, name, *buffers):
    if form == "blocking":
        getattr(comm, f"Neighbor_{name}")(*buffers)
    elif form == "nonblocking":
        request = getattr(comm, f"Ineighbor_{name}")(*buffers)
        assert isinstance(request, Request)
        request.Wait()
    else:
        request = getattr(comm, f"Neighbor_{name}_init")(*buffers)
        assert isinstance(request, Prequest)
        for _ in range(2):
            request.Start()
            request.Wait()
        request.Free()


def placed(comm, sent, edge):
    """What arrives, by place, where ``edge(sent[rank], index)`` is what a rank sends."""
    everyone = comm.allgather(sent)
    return [None if rank is None else edge(everyone[rank], at) for rank, at in sources(comm)]


def check(comm, form, name):
    """Exchange parts, of equal size or one element larger from place to place."""
    equal = name == "alltoall"
    lengths = [COUNT if equal else 1 + at for at in range(len(comm.inoutedges[1]))]
    parts = [np.arange(n) + 100 * comm.rank + 10 * at for at, n in enumerate(lengths)]
    send = np.concatenate([*parts, np.empty(0)]).astype("f8")
    wanted = placed(comm, parts, lambda theirs, at: theirs[at])
    nothing = np.full(COUNT if equal else 0, -1.0)
    wanted = [nothing if part is None else part for part in wanted]
    there = comm.nccl.asarray(send)
    recv = comm.nccl.asarray(np.full(sum(map(len, wanted)), -1.0))
    sizes = [len(part) for part in parts], [len(part) for part in wanted]
    starts = [[0, *np.cumsum(one)][:-1] for one in sizes]
    if name == "alltoall":
        buffers = there, recv
    elif name == "alltoallv":
        buffers = [there, (sizes[0], starts[0])], [recv, (sizes[1], starts[1])]
    else:
        types = [[MPI.DOUBLE] * len(one) for one in sizes]
        at = [[8 * start for start in one] for one in starts]
        buffers = (there, (sizes[0], at[0]), types[0]), (recv, (sizes[1], at[1]), types[1])
    call(comm, form, name, *buffers)
    np.testing.assert_array_equal(recv.get(), np.concatenate([*wanted, np.empty(0)]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["alltoall", "alltoallv", "alltoallw"])
def test_each_neighbour_gets_its_part(gpu, name, form):
    for comm in topologies(gpu):
        check(comm, form, name)
        comm.Free()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["allgather", "allgatherv"])
def test_every_neighbours_array_is_gathered(gpu, name, form):
    for comm in topologies(gpu):
        length = COUNT if name == "allgather" else 1 + comm.rank
        mine = np.arange(length) + 10.0 * comm.rank
        nothing = np.full(COUNT if name == "allgather" else 0, -1.0)
        wanted = placed(comm, mine, lambda theirs, at: theirs)
        wanted = [nothing if part is None else part for part in wanted]
        recv = comm.nccl.asarray(np.full(sum(map(len, wanted)), -1.0))
        sizes = [len(part) for part in wanted]
        buffer = recv if name == "allgather" else [recv, (sizes, [0, *np.cumsum(sizes)][:-1])]
        call(comm, form, name, comm.nccl.asarray(mine), buffer)
        np.testing.assert_array_equal(recv.get(), np.concatenate([*wanted, np.empty(0)]))
        comm.Free()


def test_host_arrays_go_through_mpi(gpu):
    comm = gpu.Create_cart([gpu.size], [True])
    recv = np.zeros(2, "i4")
    comm.Neighbor_allgather(np.full(1, comm.rank, "i4"), recv)
    assert recv.tolist() == [(comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size]
    comm.Free()


def test_copies_of_a_topology_take_gpu_arrays_too(gpu):
    for comm in topologies(gpu):
        for made in (comm.Dup(), comm.Clone()):
            assert type(made) in (Cartcomm, Graphcomm, Distgraphcomm)
            assert made.inoutedges == comm.inoutedges
            check(made, "blocking", "alltoall")
            made.Free()
        comm.Free()


def test_wrong_counts_are_refused_with_the_reason(gpu):
    comm = gpu.Create_cart([gpu.size], [True])
    array = comm.nccl.empty(3, "f8")
    with pytest.raises(ValueError, match="2 equal blocks"):
        comm.Neighbor_alltoall(array, array)
    with pytest.raises(ValueError, match="3 for 2 neighbours"):
        comm.Neighbor_alltoallv([array, [1, 1, 1]], [array, [1, 1]])
    comm.Free()


def test_columns_of_a_matrix_are_exchanged(gpu):
    """The borders of a grid, without their corners: datatypes with gaps on both sides."""
    comm = gpu.Create_cart([gpu.size], [False])
    column = MPI.DOUBLE.Create_vector(4, 1, 5).Commit()
    matrix = np.arange(20.0).reshape(4, 5) + 100 * comm.rank
    there = comm.nccl.asarray(matrix)
    places = [8 * at for at in (1, 3)], [8 * at for at in (0, 4)]
    comm.Neighbor_alltoallw(*[(there, ([1, 1], at), [column, column]) for at in places])
    wanted = matrix.copy()
    if comm.rank > 0:
        wanted[:, 0] = matrix[:, 3] - 100
    if comm.rank < comm.size - 1:
        wanted[:, 4] = matrix[:, 1] + 100
    np.testing.assert_array_equal(there.get(), wanted)
    comm.Free()
    column.Free()
