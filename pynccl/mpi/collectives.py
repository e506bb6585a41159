"""MPI's collective buffer methods: through NCCL where the arrays are on a GPU, else as before."""
# ruff: noqa: N802 - the names are MPI's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from pynccl.mpi.buffers import go_to_nccl
from pynccl.mpi.launches import CollectiveLaunches, Launch, Launched
from pynccl.mpi.persistent import persistent
from pynccl.mpi.requests import request_for

__all__ = ["CollectiveMethods"]


class CollectiveMethods(CollectiveLaunches):
    """Collectives. Arrays on a GPU are this rank's; their stream order is kept by itself.

    A blocking method returns when its buffers may be used again; a nonblocking one returns a
    ``pynccl.mpi.Request``, and one that ends in ``_init`` a ``pynccl.mpi.Prequest``, which all
    ranks start in the same order among their collectives. Every rank's buffers are on GPUs, or
    none is.

    Raises:
        TypeError: NCCL lacks the operation or datatype, or a buffer is not on the GPU, or is on one
            rank and not on another (told where ``Shared.compares``)
        ValueError: counts do not fit
        NCCLError: NCCL failed
    """

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Send from one rank to all (``ncclBroadcast``)."""
        if not self._agreed(go_to_nccl(buf=buf)):
            return super().Bcast(buf, root)
        return self._block(self._bcast(buf, root))

    def Ibcast(self, buf: Any, root: int = 0) -> MPI.Request:
        """Send from one rank to all, nonblocking."""
        if not go_to_nccl(buf=buf):
            return super().Ibcast(buf, root)
        return self._begin(self._bcast(buf, root))

    def Bcast_init(self, buf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Send from one rank to all, persistent."""
        if not go_to_nccl(buf=buf):
            return super().Bcast_init(buf, root, info)
        return self._persist(self._bcast(buf, root))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce to all ranks (``ncclAllReduce``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Allreduce(sendbuf, recvbuf, op)
        return self._block(self._allreduce(sendbuf, recvbuf, op))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Reduce to all ranks, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Iallreduce(sendbuf, recvbuf, op)
        return self._begin(self._allreduce(sendbuf, recvbuf, op))

    def Allreduce_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Reduce to all ranks, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Allreduce_init(sendbuf, recvbuf, op, info)
        return self._persist(self._allreduce(sendbuf, recvbuf, op))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        """Reduce to one rank (``ncclReduce``)."""
        if not self._agreed(self._to_root(sendbuf, recvbuf, root)):
            return super().Reduce(sendbuf, recvbuf, op, root)
        return self._block(self._reduce(sendbuf, recvbuf, op, root))

    def Ireduce(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0
    ) -> MPI.Request:
        """Reduce to one rank, nonblocking."""
        if not self._to_root(sendbuf, recvbuf, root):
            return super().Ireduce(sendbuf, recvbuf, op, root)
        return self._begin(self._reduce(sendbuf, recvbuf, op, root))

    def Reduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Reduce to one rank, persistent."""
        if not self._to_root(sendbuf, recvbuf, root):
            return super().Reduce_init(sendbuf, recvbuf, op, root, info)
        return self._persist(self._reduce(sendbuf, recvbuf, op, root))

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce, and leave each rank an equal part (``ncclReduceScatter``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Reduce_scatter_block(sendbuf, recvbuf, op)
        return self._block(self._reduce_scatter_block(sendbuf, recvbuf, op))

    def Ireduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM
    ) -> MPI.Request:
        """Reduce, and leave each rank an equal part, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ireduce_scatter_block(sendbuf, recvbuf, op)
        return self._begin(self._reduce_scatter_block(sendbuf, recvbuf, op))

    def Reduce_scatter_block_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Reduce, and leave each rank an equal part, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Reduce_scatter_block_init(sendbuf, recvbuf, op, info)
        return self._persist(self._reduce_scatter_block(sendbuf, recvbuf, op))

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
    ) -> None:
        """Reduce, and leave each rank its part (grouped ``ncclReduce``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)
        return self._block(self._reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    def Ireduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
    ) -> MPI.Request:
        """Reduce, and leave each rank its part, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ireduce_scatter(sendbuf, recvbuf, recvcounts, op)
        return self._begin(self._reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    def Reduce_scatter_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Reduce, and leave each rank its part, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Reduce_scatter_init(sendbuf, recvbuf, recvcounts, op, info)
        return self._persist(self._reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather equal parts on all ranks (``ncclAllGather``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Allgather(sendbuf, recvbuf)
        return self._block(self._allgather(sendbuf, recvbuf))

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Gather equal parts on all ranks, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Iallgather(sendbuf, recvbuf)
        return self._begin(self._allgather(sendbuf, recvbuf))

    def Allgather_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Gather equal parts on all ranks, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Allgather_init(sendbuf, recvbuf, info)
        return self._persist(self._allgather(sendbuf, recvbuf))

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather parts of any size on all ranks (grouped ``ncclBroadcast``)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Allgatherv(sendbuf, recvbuf)
        return self._block(self._allgatherv(sendbuf, recvbuf))

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Gather parts of any size on all ranks, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Iallgatherv(sendbuf, recvbuf)
        return self._begin(self._allgatherv(sendbuf, recvbuf))

    def Allgatherv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Gather parts of any size on all ranks, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Allgatherv_init(sendbuf, recvbuf, info)
        return self._persist(self._allgatherv(sendbuf, recvbuf))

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather equal parts on one rank (``ncclGather``, or grouped messages)."""
        if not self._agreed(self._to_root(sendbuf, recvbuf, root)):
            return super().Gather(sendbuf, recvbuf, root)
        return self._block(self._gather(sendbuf, recvbuf, root))

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Gather equal parts on one rank, nonblocking."""
        if not self._to_root(sendbuf, recvbuf, root):
            return super().Igather(sendbuf, recvbuf, root)
        return self._begin(self._gather(sendbuf, recvbuf, root))

    def Gather_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Gather equal parts on one rank, persistent."""
        if not self._to_root(sendbuf, recvbuf, root):
            return super().Gather_init(sendbuf, recvbuf, root, info)
        return self._persist(self._gather(sendbuf, recvbuf, root))

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather parts of any size on one rank (grouped messages)."""
        if not self._agreed(self._to_root(sendbuf, recvbuf, root)):
            return super().Gatherv(sendbuf, recvbuf, root)
        return self._block(self._gatherv(sendbuf, recvbuf, root))

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Gather parts of any size on one rank, nonblocking."""
        if not self._to_root(sendbuf, recvbuf, root):
            return super().Igatherv(sendbuf, recvbuf, root)
        return self._begin(self._gatherv(sendbuf, recvbuf, root))

    def Gatherv_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Gather parts of any size on one rank, persistent."""
        if not self._to_root(sendbuf, recvbuf, root):
            return super().Gatherv_init(sendbuf, recvbuf, root, info)
        return self._persist(self._gatherv(sendbuf, recvbuf, root))

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give each rank an equal part (``ncclScatter``, or grouped messages)."""
        if not self._agreed(self._to_root(recvbuf, sendbuf, root)):
            return super().Scatter(sendbuf, recvbuf, root)
        return self._block(self._scatter(sendbuf, recvbuf, root))

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Give each rank an equal part, nonblocking."""
        if not self._to_root(recvbuf, sendbuf, root):
            return super().Iscatter(sendbuf, recvbuf, root)
        return self._begin(self._scatter(sendbuf, recvbuf, root))

    def Scatter_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Give each rank an equal part, persistent."""
        if not self._to_root(recvbuf, sendbuf, root):
            return super().Scatter_init(sendbuf, recvbuf, root, info)
        return self._persist(self._scatter(sendbuf, recvbuf, root))

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give each rank a part of any size (grouped messages)."""
        if not self._agreed(self._to_root(recvbuf, sendbuf, root)):
            return super().Scatterv(sendbuf, recvbuf, root)
        return self._block(self._scatterv(sendbuf, recvbuf, root))

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Give each rank a part of any size, nonblocking."""
        if not self._to_root(recvbuf, sendbuf, root):
            return super().Iscatterv(sendbuf, recvbuf, root)
        return self._begin(self._scatterv(sendbuf, recvbuf, root))

    def Scatterv_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Give each rank a part of any size, persistent."""
        if not self._to_root(recvbuf, sendbuf, root):
            return super().Scatterv_init(sendbuf, recvbuf, root, info)
        return self._persist(self._scatterv(sendbuf, recvbuf, root))

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange equal parts (``ncclAlltoAll``, or grouped messages)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Alltoall(sendbuf, recvbuf)
        return self._block(self._alltoall(sendbuf, recvbuf))

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Exchange equal parts, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ialltoall(sendbuf, recvbuf)
        return self._begin(self._alltoall(sendbuf, recvbuf))

    def Alltoall_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Exchange equal parts, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Alltoall_init(sendbuf, recvbuf, info)
        return self._persist(self._alltoall(sendbuf, recvbuf))

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange parts of any size (grouped messages)."""
        if not self._agreed(go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf)):
            return super().Alltoallv(sendbuf, recvbuf)
        return self._block(self._alltoallv(sendbuf, recvbuf))

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Exchange parts of any size, nonblocking."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Ialltoallv(sendbuf, recvbuf)
        return self._begin(self._alltoallv(sendbuf, recvbuf))

    def Alltoallv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Exchange parts of any size, persistent."""
        if not go_to_nccl(sendbuf=sendbuf, recvbuf=recvbuf):
            return super().Alltoallv_init(sendbuf, recvbuf, info)
        return self._persist(self._alltoallv(sendbuf, recvbuf))

    def _agreed(self, on_gpu: bool) -> bool:
        """Return it, after a comparison with the other ranks where that is switched on."""
        shared = self._shared
        if shared.compares:
            shared.compare(on_gpu)
        return on_gpu

    def _to_root(self, everywhere: Any, at_root: Any, root: int) -> bool:
        """Tell whether buffers are on a GPU, where one counts on the root only."""
        return go_to_nccl(sendbuf=everywhere, recvbuf=at_root if self.rank == root else None)

    def _block(self, launch: Launch) -> None:
        """Launch a collective, and return when its buffers may be used."""
        kept = launch()
        self._shared.wait_for_collectives()
        del kept

    def _begin(self, launch: Launch) -> MPI.Request:
        """Launch a collective, and return a request for it."""
        return request_for(self._shared, Launched(launch))

    def _persist(self, launch: Launch) -> MPI.Prequest:
        """Return a persistent request for a collective."""
        launch.prepare()
        return persistent(self._shared, lambda: Launched(launch))
