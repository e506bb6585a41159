"""The processes and GPUs that take part in a measurement."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import numpy

import pynccl
from pynccl import bootstrap, library
from pynccl.streams import check_driver

__all__ = ["Job"]


class Job:
    """All ranks of a measurement: one for each GPU of each process.

    Runs alone, or with the other processes of an mpirun. NCCL_TESTS_SPLIT divides the processes
    into groups, which measure side by side.

    Args:
        gpus: GPUs that each process drives
        config: of the communicators
        stream_null: use CUDA's default stream in place of one for each GPU
    Attributes:
        comms: communicators of this process's GPUs
        nranks: ranks of this process's group
        process: number of this process, from 0
        leads: whether this is the process that reports
    """

    def __init__(self, gpus: int, config: pynccl.Config | None, stream_null: bool) -> None:
        self._mpi = _world()
        self.process = 0 if self._mpi is None else self._mpi.rank
        self.processes = 1 if self._mpi is None else self._mpi.size
        self.leads = self.process == 0
        self.group = _color(self.process)
        self._members = None if self._mpi is None else self._mpi.Split(self.group, self.process)
        self.nranks = gpus * (1 if self._members is None else self._members.size)
        self.first_rank = gpus * (0 if self._members is None else self._members.rank)
        self.devices = self._choose(gpus)
        self.free_at_start = self.free_memory()
        self.comms = self._connect(config, stream_null)

    def free_memory(self) -> list[int]:
        """Return the free bytes of each of this process's GPUs."""
        from cuda.bindings import driver
        from cuda.core import Device

        free = []
        for ordinal in self.devices:
            Device(ordinal).set_current()
            answer = driver.cuMemGetInfo()
            check_driver(answer, "cuMemGetInfo")
            free.append(int(answer[1]))
        return free

    def barrier(self) -> None:
        """Wait for all processes."""
        if self._mpi is not None:
            self._mpi.Barrier()

    def combine(self, values: list[float], how: int) -> float:
        """Return the first, the average, the minimum or the maximum over all ranks' values.

        Args:
            values: those of this process's ranks
            how: 0 to 3, as ``--average`` has them; 4 is the sum
        """
        local = numpy.array(values, dtype=numpy.float64)
        everyone = local if self._mpi is None else numpy.empty(local.size * self.processes)
        if self._mpi is not None:
            self._mpi.Allgather(local, everyone)
        choices = (everyone[0], everyone.mean(), everyone.min(), everyone.max(), everyone.sum())
        return float(choices[how])

    def by_process(self, values: list[float]) -> Any:
        """Return the values of each process, a row for one, on all of them."""
        local = numpy.array(values, dtype=numpy.float64)
        everyone = numpy.empty((self.processes, local.size))
        if self._mpi is None:
            everyone[0] = local
        else:
            self._mpi.Allgather(local, everyone)
        return everyone

    def describe(self) -> list[dict[str, Any]]:
        """Return who runs where, by rank."""
        mine = [
            {
                "rank": self.first_rank + index,
                "group": self.group,
                "pid": os.getpid(),
                "hostname": socket.gethostname(),
                "device": comm.device.device_id,
                "device_hex": _bus_id(comm.device.device_id),
                "device_info": comm.device.name,
            }
            for index, comm in enumerate(self.comms)
        ]
        if self._mpi is None:
            return mine
        everyone = bootstrap.gather_facts(self._mpi, {"ranks": mine})
        return [rank for process in everyone for rank in process["ranks"]]

    def close(self) -> None:
        """Destroy the communicators, all ranks together."""
        with pynccl.group():
            for comm in self.comms:
                comm.finalize()
        for comm in self.comms:
            comm.destroy()
        if self._members is not None:
            self._members.Free()

    def stop(self, status: int) -> None:
        """End the other processes too: they would wait for this one."""
        if self._mpi is not None and self.processes > 1:
            self._mpi.Abort(status)

    def _choose(self, gpus: int) -> list[int]:
        """Return the GPUs of this process.

        Raises:
            RuntimeError: there are fewer, on any node
        """
        from cuda.core import Device

        place = 0 if self._mpi is None else bootstrap.local_place(self._mpi)[0]
        named = os.environ.get("NCCL_TESTS_DEVICE")
        problem = ""
        try:
            library.require_gpu()
            have = len(Device.get_all_devices())
        except Exception as error:  # whatever it is, the other ranks must hear of it
            problem, have = str(error), 0
        first = int(named) if named else place * gpus
        if not named and have == gpus:
            first = 0  # the scheduler shows each process its own
        if not problem and first + gpus > have:
            problem = (
                f"process {self.process} on {socket.gethostname()} is to drive GPUs {first} to "
                f"{first + gpus - 1}, and {have} are visible; start fewer processes per node, or "
                "pass a smaller -g"
            )
        everyone = [{"problem": problem}]
        if self._mpi is not None:
            everyone = bootstrap.gather_facts(self._mpi, everyone[0])
        for fact in everyone:
            if fact["problem"]:
                raise RuntimeError(fact["problem"])
        return list(range(first, first + gpus))

    def _connect(
        self, config: pynccl.Config | None, stream_null: bool
    ) -> list[pynccl.Communicator]:
        from cuda.core import Device

        if self._members is None:
            unique_id = pynccl.get_unique_id()
        else:
            bytes_ = bytearray(128)
            if self._members.rank == 0:
                bytes_[:] = bytes(pynccl.get_unique_id())
            self._members.Bcast(bytes_, root=0)
            unique_id = pynccl.UniqueId.from_bytes(bytes(bytes_))
        streams = []
        for ordinal in self.devices:
            device = Device(ordinal)
            device.set_current()
            streams.append(None if stream_null else device.create_stream())
        with pynccl.group():
            return [
                pynccl.Communicator.init(
                    self.nranks,
                    self.first_rank + index,
                    unique_id,
                    config,
                    device=ordinal,
                    stream=stream,
                )
                for index, (ordinal, stream) in enumerate(zip(self.devices, streams))
            ]


def _world() -> Any:
    """Return MPI's world where MPI is there to be used, else None."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    bootstrap.check_launcher(MPI.COMM_WORLD)
    return MPI.COMM_WORLD


def _bus_id(ordinal: int) -> str:
    """Return a GPU's place on the PCI bus, such as 0000:3b:00."""
    from cuda.bindings import driver

    attributes = driver.CUdevice_attribute
    numbers = [
        check_driver(driver.cuDeviceGetAttribute(attribute, ordinal), "cuDeviceGetAttribute")
        for attribute in (
            attributes.CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
            attributes.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
            attributes.CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
        )
    ]
    return "{:04x}:{:02x}:{:02x}".format(*numbers)


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "AND": lambda rank, value: rank & value,
    "&": lambda rank, value: rank & value,
    "OR": lambda rank, value: rank | value,
    "|": lambda rank, value: rank | value,
    "MOD": lambda rank, value: rank % value,
    "%": lambda rank, value: rank % value,
    "DIV": lambda rank, value: rank // value,
    "/": lambda rank, value: rank // value,
}


def _color(process: int) -> int:
    """Return the group that NCCL_TESTS_SPLIT or NCCL_TESTS_SPLIT_MASK puts a process in.

    Raises:
        ValueError: the variable's contents are not understood
    """
    mask = os.environ.get("NCCL_TESTS_SPLIT_MASK")
    text = os.environ.get("NCCL_TESTS_SPLIT") if mask is None else f"&0x{mask.removeprefix('0x')}"
    if not text:
        return 0
    for name, operator in _OPERATORS.items():
        if text.upper().startswith(name):
            try:
                return operator(process, int(text[len(name) :].strip(), 0))
            except (ValueError, ZeroDivisionError):
                break
    raise ValueError(
        f"NCCL_TESTS_SPLIT={text!r}: must be AND, OR, MOD or DIV (or & | % /) and a number"
    )
