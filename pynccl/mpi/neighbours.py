"""MPI's collectives between neighbours in a topology, on arrays on a GPU."""
# ruff: noqa: N802 - the names are MPI's

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from pynccl.communicator import Communicator
from pynccl.mpi.buffers import Parts, block, go_to_nccl, parts, parts_by_type
from pynccl.mpi.collectives import CollectiveMethods
from pynccl.mpi.launches import Data, Launch
from pynccl.types import DataType

__all__ = ["NeighbourMethods"]

if TYPE_CHECKING:

    class Base(CollectiveMethods, MPI.Topocomm):
        """What the methods are mixed into."""

else:
    Base = object

Message = tuple[int, int, int, int]


class NeighbourMethods(Base):
    """Collectives between neighbours: grouped ``ncclSend`` and ``ncclRecv``.

    The order of neighbours is MPI's: that of ``inoutedges``. In a grid, what is sent to the lower
    neighbour of a dimension arrives there as what comes from the upper one, also where both are
    the same rank.

    Raises:
        As the other collectives
    """

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send to every neighbour, and gather from each an equal part."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Neighbor_allgather(sendbuf, recvbuf)
        return self._block(self._neighbor_allgather(sendbuf, recvbuf))

    def Ineighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Send to every neighbour, and gather from each an equal part, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ineighbor_allgather(sendbuf, recvbuf)
        return self._begin(self._neighbor_allgather(sendbuf, recvbuf))

    def Neighbor_allgather_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Send to every neighbour, and gather from each an equal part, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Neighbor_allgather_init(sendbuf, recvbuf, info)
        return self._persist(self._neighbor_allgather(sendbuf, recvbuf))

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send to every neighbour, and gather from each a part of any size."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Neighbor_allgatherv(sendbuf, recvbuf)
        return self._block(self._neighbor_allgatherv(sendbuf, recvbuf))

    def Ineighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Send to every neighbour, and gather from each a part of any size, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ineighbor_allgatherv(sendbuf, recvbuf)
        return self._begin(self._neighbor_allgatherv(sendbuf, recvbuf))

    def Neighbor_allgatherv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Send to every neighbour, and gather from each a part of any size, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Neighbor_allgatherv_init(sendbuf, recvbuf, info)
        return self._persist(self._neighbor_allgatherv(sendbuf, recvbuf))

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange equal parts with the neighbours."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Neighbor_alltoall(sendbuf, recvbuf)
        return self._block(self._neighbor_alltoall(sendbuf, recvbuf))

    def Ineighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Exchange equal parts with the neighbours, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ineighbor_alltoall(sendbuf, recvbuf)
        return self._begin(self._neighbor_alltoall(sendbuf, recvbuf))

    def Neighbor_alltoall_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Exchange equal parts with the neighbours, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Neighbor_alltoall_init(sendbuf, recvbuf, info)
        return self._persist(self._neighbor_alltoall(sendbuf, recvbuf))

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange parts of any size with the neighbours."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Neighbor_alltoallv(sendbuf, recvbuf)
        return self._block(self._neighbor_alltoallv(sendbuf, recvbuf))

    def Ineighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Exchange parts of any size with the neighbours, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ineighbor_alltoallv(sendbuf, recvbuf)
        return self._begin(self._neighbor_alltoallv(sendbuf, recvbuf))

    def Neighbor_alltoallv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Exchange parts of any size with the neighbours, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Neighbor_alltoallv_init(sendbuf, recvbuf, info)
        return self._persist(self._neighbor_alltoallv(sendbuf, recvbuf))

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange parts of any size, with a datatype for each neighbour."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Neighbor_alltoallw(sendbuf, recvbuf)
        return self._block(self._neighbor_alltoallw(sendbuf, recvbuf))

    def Ineighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Exchange parts of any size, with a datatype for each neighbour, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ineighbor_alltoallw(sendbuf, recvbuf)
        return self._begin(self._neighbor_alltoallw(sendbuf, recvbuf))

    def Neighbor_alltoallw_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Exchange parts of any size, with a datatype for each neighbour, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Neighbor_alltoallw_init(sendbuf, recvbuf, info)
        return self._persist(self._neighbor_alltoallw(sendbuf, recvbuf))

    def _neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> Launch:
        sources, _ = self.inoutedges
        send, recv = block(sendbuf, "sendbuf"), block(recvbuf, "recvbuf", len(sources))
        return self._neighborhood(send, recv)

    def _neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> Launch:
        sources, _ = self.inoutedges
        send, recv = block(sendbuf, "sendbuf"), parts(recvbuf, "recvbuf", len(sources), "neighbour")
        return self._neighborhood(send, recv)

    def _neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> Launch:
        sources, destinations = self.inoutedges
        send = block(sendbuf, "sendbuf", len(destinations))
        return self._neighborhood(send, block(recvbuf, "recvbuf", len(sources)), apart=True)

    def _neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> Launch:
        sources, destinations = self.inoutedges
        send = parts(sendbuf, "sendbuf", len(destinations), "neighbour")
        return self._neighborhood(send, parts(recvbuf, "recvbuf", len(sources), "neighbour"))

    def _neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> Launch:
        sources, destinations = self.inoutedges
        send = parts_by_type(sendbuf, "sendbuf", len(destinations), "neighbour")
        return self._neighborhood(
            send, parts_by_type(recvbuf, "recvbuf", len(sources), "neighbour")
        )

    def _neighborhood(self, send: Data, recv: Data, apart: bool = False) -> Launch:
        """Return the launch of an exchange with the neighbours.

        Args:
            apart: a block is sent to each; else, where it is one, the same to all
        """
        sources, destinations = self.inoutedges
        order = list(range(len(sources)))
        if self.topology == MPI.CART:
            # NCCL matches the messages of two ranks by their order.
            order = [index ^ 1 for index in order]

        def call(nccl: Communicator, queue: int, source: Data, target: Data) -> Any:
            sent, received = _places(source, destinations, apart), _places(target, sources, True)
            outgoing = [_message(*part) for part in zip(sent, destinations)]
            incoming = [_message(received[index], sources[index]) for index in order]
            return nccl._exchange(_existing(outgoing), _existing(incoming), queue, None)

        return self._move(call, send, recv, partly=MPI.PROC_NULL in sources)


def _places(data: Data, ranks: list[int], apart: bool) -> list[tuple[int, int]]:
    """Return where the part of each rank lies, and its bytes."""
    if isinstance(data, Parts):
        return [(data.ptr + displ, size) for displ, size in zip(data.displs, data.counts)]
    step = data.nbytes if apart else 0
    return [(data.ptr + index * step, data.nbytes) for index in range(len(ranks))]


def _message(place: tuple[int, int], rank: int) -> Message:
    return (*place, DataType.UINT8, rank)


def _existing(messages: list[Message]) -> list[Message]:
    """Leave out those beyond the edge of a grid, and those of nothing."""
    return [one for one in messages if one[1] and one[3] != MPI.PROC_NULL]
