"""A drop-in for mpi4py's communicators that takes arrays on GPUs."""

from pynccl.mpi.comm import Cartcomm, Comm, Distgraphcomm, Graphcomm
from pynccl.mpi.persistent import Prequest
from pynccl.mpi.requests import Request

__all__ = ["Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "Prequest", "Request"]
