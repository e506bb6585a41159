"""Which ranks share a node, and which GPU each of them takes."""

from __future__ import annotations

import json
import os
import socket
import zlib
from typing import Any

from pynccl import library

__all__ = ["choose_gpu", "emulator_hint", "gather_facts", "host_name", "local_place", "node_of"]


def node_of(comm: Any) -> tuple[Any, str]:
    """Return a communicator of the ranks on this rank's node, to be freed, and the node's name.

    MPI's shared-memory split tells who they are; where it puts ranks of one host apart, as some
    launchers make it do, the hosts' names do. A node has one name, also where its ranks run in
    containers with names of their own. Collective. A rank holds eight bytes of each other one,
    inside MPI's split, and records only of those on its node.

    Args:
        comm: an mpi4py intracommunicator
    """
    from mpi4py import MPI

    shared = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    name = gather_facts(shared, {"host": host_name()})[0]["host"]
    shared.Free()
    alike = comm.Split(zlib.crc32(name.encode()) & 0x7FFFFFFF, comm.rank)
    names = [fact["host"] for fact in gather_facts(alike, {"host": name})]
    if len(set(names)) == 1:
        return alike, name
    node = alike.Split(names.index(name), comm.rank)  # two names with the same checksum
    alike.Free()
    return node, name


def local_place(comm: Any) -> tuple[int, int]:
    """Return this rank's place on its node, and how many ranks the node has. Collective.

    Args:
        comm: an mpi4py intracommunicator
    """
    node, _ = node_of(comm)
    place, size = node.rank, node.size
    node.Free()
    return place, size


def choose_gpu(device: Any, place: int, ranks_here: list[int]) -> tuple[int, str]:
    """Return the ordinal of this rank's GPU, and the GPU's own identity.

    Args:
        device: the GPU asked for: a ``cuda.core.Device``, an ordinal, or None for the one at the
            rank's place
        place: this rank's place on its node
        ranks_here: ranks on the node
    Raises:
        RuntimeError: there are fewer GPUs than ranks
        ValueError: the GPU does not exist
    """
    from cuda.core import Device

    count = _visible_gpus()
    if device is None:
        ordinal = 0 if count == 1 else place
        if ordinal >= count:
            without = _listed(ranks_here[count:])
            shown = os.environ.get("CUDA_VISIBLE_DEVICES")
            raise RuntimeError(
                f"there is no GPU for {without}: the node has {len(ranks_here)} ranks, and {count} "
                f"GPUs are visible (CUDA_VISIBLE_DEVICES={shown!r}); start fewer ranks per node, "
                "or show more GPUs" + emulator_hint(library.backend(), shown, len(ranks_here))
            )
    elif isinstance(device, Device):
        ordinal = device.device_id
    else:
        ordinal = int(device)
        if not 0 <= ordinal < count:
            raise ValueError(f"device {ordinal} does not exist: this process sees {count} GPUs")
    return ordinal, Device(ordinal).uuid


def _visible_gpus() -> int:
    """Return how many GPUs this process sees: one at least, or RuntimeError."""
    from cuda.core import Device

    reason = ""
    try:
        count = len(Device.get_all_devices())
    except Exception as error:  # the driver's, or cuda.core's
        count, reason = 0, f" ({type(error).__name__}: {error})"
    if not count:
        names = ("CUDA_VISIBLE_DEVICES", "PYNCCL_EMULATOR_DEVICES")
        told = [f"{name} is {os.environ[name]!r}" for name in names if name in os.environ]
        raise RuntimeError("the CUDA driver shows no GPU: " + ", ".join(told) + reason)
    return count


def emulator_hint(backend: str, shown: str | None, ranks_here: int) -> str:
    """Return how to have the emulator show a GPU for each rank, where that is what is lacking.

    Args:
        shown: CUDA_VISIBLE_DEVICES; None where it is not set
    """
    if backend != "emulator" or shown is not None:
        return ""
    return f"; the emulator shows more with PYNCCL_EMULATOR_DEVICES={ranks_here}"


def gather_facts(comm: Any, fact: dict[str, Any]) -> list[dict[str, Any]]:
    """Gather a small record of every rank, as JSON: nothing is unpickled."""
    import numpy

    mine = numpy.frombuffer(json.dumps(fact).encode(), dtype=numpy.uint8)
    lengths = numpy.empty(comm.size, dtype=numpy.int32)
    comm.Allgather(numpy.array([mine.size], dtype=numpy.int32), lengths)
    everything = numpy.empty(int(lengths.sum()), dtype=numpy.uint8)
    comm.Allgatherv(mine, (everything, lengths))
    texts = numpy.split(everything, numpy.cumsum(lengths)[:-1])
    return [json.loads(bytes(text)) for text in texts]


def host_name() -> str:
    """Return this host's name."""
    return socket.gethostname()


def _listed(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
