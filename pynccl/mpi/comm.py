"""MPI communicators whose buffer methods take arrays on GPUs."""
# ruff: noqa: N802 - the names are MPI's

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from pynccl.communicator import Communicator
from pynccl.mpi.buffers import is_on_gpu
from pynccl.mpi.composed import ComposedMethods
from pynccl.mpi.neighbours import NeighbourMethods
from pynccl.mpi.point_to_point import MessageMethods
from pynccl.mpi.shared import forget, shared_of

__all__ = ["REFUSED", "Cartcomm", "Comm", "Distgraphcomm", "Graphcomm"]

REFUSED: dict[str, str] = dict.fromkeys(
    ("Psend_init", "Precv_init"),
    "NCCL sends whole messages; use Send_init and Recv_init, with a request for each partition",
)
"""Methods that take no array on a GPU, with the reason; on host memory they are MPI's."""


def refusing(kind: type) -> type:
    """Let methods of a class refuse arrays on GPUs, which MPI must never be given."""
    for name, reason in REFUSED.items():
        if hasattr(kind, name):
            setattr(kind, name, _guarded(kind, name, reason))
    return kind


def _guarded(kind: type, name: str, reason: str) -> Callable[..., Any]:
    original = getattr(kind, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(is_on_gpu(given) for given in (*args, *kwargs.values())):
            raise TypeError(f"{name} takes no array on a GPU: {reason}")
        return original(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, original.__doc__
    return method


class GpuMethods(ComposedMethods, MessageMethods):
    """What is added to a communicator of MPI."""

    def _adopt(self, comm: Any) -> None:
        if comm is not None and comm != MPI.COMM_NULL:
            self._shared = shared_of(comm)

    def __getattr__(self, name: str) -> Any:
        # mpi4py makes objects of the class without a communicator, and then gives them one (Idup).
        if name == "_shared" and self != MPI.COMM_NULL:
            self._adopt(self)
            return self._shared
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def nccl(self) -> Communicator:
        """NCCL's communicator, for arrays and for what MPI has no name for.

        Collective where it is the first use of a GPU: all ranks ask for it together.
        """
        return self._shared.need(None, collective=True)

    def Dup(self, info: MPI.Info | None = None) -> Any:
        """Duplicate the communicator."""
        return self._same(MPI.Intracomm(self).Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Any:
        """Duplicate the communicator with hints."""
        return self._same(MPI.Intracomm(self).Dup_with_info(info))

    def Clone(self) -> Any:
        """Duplicate the communicator."""
        return self._same(MPI.Intracomm(self).Clone())

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Divide by color, ordered by key; ``MPI.COMM_NULL`` where the color is undefined."""
        return _wrapped(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        """Divide by a property of the machine."""
        return _wrapped(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Any:
        """Make a communicator of a group. Collective over this one."""
        return _wrapped(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        """Make a communicator of a group. Collective over the group."""
        return _wrapped(super().Create_group(group, tag))

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Any:
        """Arrange the ranks in a grid."""
        made = super().Create_cart(dims, periods, reorder)
        return made if made == MPI.COMM_NULL else Cartcomm(made)

    def Create_graph(
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> Any:
        """Arrange the ranks in a graph that every rank knows."""
        made = super().Create_graph(index, edges, reorder)
        return made if made == MPI.COMM_NULL else Graphcomm(made)

    def Create_dist_graph(self, *args: Any, **kwargs: Any) -> Any:
        """Arrange the ranks in a graph of which each rank knows any edges."""
        return Distgraphcomm(super().Create_dist_graph(*args, **kwargs))

    def Create_dist_graph_adjacent(self, *args: Any, **kwargs: Any) -> Any:
        """Arrange the ranks in a graph of which each rank knows its own edges."""
        return Distgraphcomm(super().Create_dist_graph_adjacent(*args, **kwargs))

    def Free(self) -> None:
        """Free the communicator, and NCCL's. Collective."""
        self._forget()
        super().Free()

    def Disconnect(self) -> None:
        """Free the communicator once its messages are done. Collective."""
        self._forget()
        super().Disconnect()

    def _forget(self) -> None:
        forget(self)
        self.__dict__.pop("_shared", None)

    def _same(self, made: MPI.Intracomm) -> Any:
        return type(self)(made)


@refusing
class Comm(GpuMethods, MPI.Intracomm):
    """An MPI intracommunicator whose buffer methods take arrays on GPUs.

    Arrays on a GPU go through NCCL, everything else through MPI as before. Making it is collective
    over ``comm``, which it does not copy: both are the same communicator to MPI, and two made of
    the same one share NCCL's, which is made at the first operation on GPU arrays. ``Free`` frees
    all; what is not freed ends with the process.

    Args:
        comm: an mpi4py intracommunicator, or the handle of one (``MPI_Comm``) as an integer
    Raises:
        TypeError: it is an intercommunicator
    """

    def __new__(cls, comm: MPI.Comm | int | None = None) -> Comm:
        if isinstance(comm, int):
            comm = MPI.Comm.fromhandle(comm)
        made: Comm = super().__new__(cls, comm)
        made._adopt(comm)
        return made


class TopologyMethods(NeighbourMethods, GpuMethods):
    """What is added to a communicator of MPI that has a topology."""

    def __new__(cls, comm: MPI.Comm | None = None) -> Any:
        made: Any = super().__new__(cls, comm)
        made._adopt(comm)
        return made

    def Dup(self, info: MPI.Info | None = None) -> Any:
        """Duplicate the communicator."""
        return type(self)(self._plain(self).Dup(info))

    _plain: type[MPI.Topocomm]


@refusing
class Cartcomm(TopologyMethods, MPI.Cartcomm):
    """A grid of ranks whose buffer methods take arrays on GPUs; made by ``Comm.Create_cart``."""

    _plain = MPI.Cartcomm

    def Sub(self, remain_dims: Sequence[bool]) -> Any:
        """Divide the grid into grids of fewer dimensions."""
        made = super().Sub(remain_dims)
        return made if made == MPI.COMM_NULL else Cartcomm(made)


@refusing
class Graphcomm(TopologyMethods, MPI.Graphcomm):
    """Ranks in a graph, for arrays on GPUs; made by ``Comm.Create_graph``."""

    _plain = MPI.Graphcomm


@refusing
class Distgraphcomm(TopologyMethods, MPI.Distgraphcomm):
    """Ranks in a graph, for arrays on GPUs; made by ``Comm.Create_dist_graph`` and the like."""

    _plain = MPI.Distgraphcomm


def _wrapped(made: MPI.Comm) -> Any:
    return made if made == MPI.COMM_NULL else Comm(made)
