"""The package on older releases of NCCL, which the emulator stands in for."""

import pytest
from helpers.processes import python

from pynccl.functions import FUNCTIONS
from pynccl.types import version_code

RELEASES = ["2.18.1", "2.21.5", "2.27.3", "2.30.4"]

FOUR_RANKS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy
import pynccl
from pynccl import Communicator, NCCLNotSupported

unique_id = pynccl.get_unique_id()

def work(rank):
    with Communicator.init(4, rank, unique_id, device=rank) as comm:
        return ranks_do(comm)

def on_all():
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(work, rank) for rank in range(4)]
        return [future.result(timeout=60) for future in futures]
"""


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_has_its_functions_and_no_later_ones(release):
    program = """
from pynccl import bindings, errors, get_version
from pynccl.functions import FUNCTIONS
print(get_version())
for name in FUNCTIONS:
    if not bindings.available(name):
        try:
            getattr(bindings, name)()
        except errors.NCCLNotSupported as error:
            assert name in str(error) and FUNCTIONS[name].since in str(error), error
            assert str(get_version()) in str(error) and "libnccl.so.2" in str(error), error
            print(name)
"""
    told = python(program, PYNCCL_EMULATOR_NCCL_VERSION=release).stdout.split()
    absent = [n for n, row in FUNCTIONS.items() if version_code(row.since) > version_code(release)]
    assert told == [release, *absent]
    assert absent


@pytest.mark.parametrize("release", RELEASES)
def test_alltoall_gather_and_scatter_fall_back_to_messages(release):
    program = FOUR_RANKS + """
def ranks_do(comm):
    n, rank = comm.nranks, comm.rank
    send = comm.asarray(numpy.arange(n * 5, dtype="float32") + 100 * rank)
    recv = comm.empty(n * 5)
    comm.alltoall(send, recv)
    expected = [numpy.arange(5) + 5 * rank + 100 * peer for peer in range(n)]
    assert (recv.get() == numpy.concatenate(expected)).all()
    comm.prepare("alltoall", send, recv)()
    gathered = comm.empty(n * 20 * n) if rank == 2 else None
    comm.gather(recv, comm.empty(n * n * 5) if rank == 2 else None, root=2)
    part = comm.empty(5)
    comm.scatter(send if rank == 1 else None, part, root=1)
    assert (part.get() == numpy.arange(5) + 5 * rank + 100).all()
    return True

assert on_all() == [True] * 4
"""
    python(program, PYNCCL_EMULATOR_NCCL_VERSION=release)


def test_what_a_release_lacks_is_refused_naming_the_release_that_has_it():
    program = FOUR_RANKS + """
def refused(call, *words):
    try:
        call()
    except NCCLNotSupported as error:
        missing = [word for word in (*words, "2.21.5") if word not in str(error)]
        assert not missing, (missing, str(error))
    else:
        raise AssertionError(words)

def ranks_do(comm):
    array = comm.asarray(numpy.ones(4, "float32"))
    refused(lambda: comm.allreduce(array, config=pynccl.CollConfig(min_ctas=1)), "ncclCollConfig_t")
    refused(lambda: comm.shrink([(comm.rank + 1) % 4]), "ncclCommShrink", "2.27.3")
    refused(comm.get_unique_id, "ncclCommGetUniqueId", "2.29.2")
    refused(lambda: comm.signal(0), "ncclSignal", "2.29.2")
    refused(lambda: comm.split(0, config=pynccl.Config(traffic_class=1)), "trafficClass", "2.26.2")
    refused(lambda: comm.allreduce(comm.empty(4, "float8_e4m3fn")), "ncclFloat8e4m3", "2.24.3")
    refused(comm.suspend, "ncclCommSuspend", "2.29.7")
    with comm.split(0, config=pynccl.Config(split_share=True, blocking=True)) as part:
        part.allreduce(part.asarray(numpy.ones(4))).get()
    return True

assert on_all() == [True] * 4
refused(lambda: pynccl.params["NCCL_DEBUG"], "ncclParam", "2.30.4")
refused(lambda: pynccl.set_encryption(pynccl.EncryptionMode.NONE), "ncclSetEncryption", "2.32.3")
refused(lambda: Communicator.init(2, 0, [unique_id, unique_id], device=0), "Scalable", "2.23.4")
refused(lambda: pynccl.group_end(simulate=True) if pynccl.group_start() is None else 0, "Simulate")
"""
    python(program, PYNCCL_EMULATOR_NCCL_VERSION="2.21.5")


@pytest.mark.parametrize("wrong", ["2.17.1", "2.99.0", "new", "2.21"])
def test_a_release_that_the_emulator_cannot_be_is_refused(wrong):
    done = python(
        "import pynccl; pynccl.get_version()", check=False, PYNCCL_EMULATOR_NCCL_VERSION=wrong
    )
    assert done.returncode != 0
    assert f"PYNCCL_EMULATOR_NCCL_VERSION is '{wrong}'" in done.stderr
