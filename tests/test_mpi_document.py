"""docs/mpi.md says of every buffer method of mpi4py what becomes of it, and says the truth."""

import re

import pytest
from helpers.launch import REPOSITORY
from mpi4py import MPI

from pynccl.mpi import Cartcomm, Comm, Distgraphcomm, Graphcomm
from pynccl.mpi.comm import REFUSED

TEXT = (REPOSITORY / "docs" / "mpi.md").read_text()
ROWS = re.findall(r"^\| (`[^|]+) \| ([^|]*) \| MPI \|$", TEXT, re.MULTILINE)


def named(kind):
    """Return the methods in the table's rows of which the second column begins so."""
    return {
        name
        for methods, what in ROWS
        if what.startswith("refused") == (kind == "refused") and what.strip()
        for name in re.findall(r"`(\w+)`", methods)
    }


def is_overridden(name):
    return getattr(Comm, name) is not getattr(MPI.Intracomm, name)


# Whatever mpi4py documents to take a buffer.
BUFFER_METHODS = sorted(
    name
    for name in dir(MPI.Intracomm)
    if name[0].isupper() and "BufSpec" in (getattr(MPI.Intracomm, name).__doc__ or "")
)


def test_mpi4py_tells_its_buffer_methods():
    assert {"Allreduce", "Isend", "Alltoallw", "Psend_init"} <= set(BUFFER_METHODS)


@pytest.mark.parametrize("name", BUFFER_METHODS)
def test_every_buffer_method_is_done_by_nccl_or_refused(name):
    assert is_overridden(name)
    assert name in named("refused" if name in REFUSED else "nccl")


def test_table_names_nothing_else():
    neighbours = {name for name in named("nccl") if name.startswith("Neighbor")}
    assert named("nccl") - neighbours == set(BUFFER_METHODS) - set(REFUSED)
    assert named("refused") == set(REFUSED)


@pytest.mark.parametrize("kind", [Cartcomm, Graphcomm, Distgraphcomm])
def test_every_collective_between_neighbours_is_done_by_nccl(kind):
    methods = {name for name in dir(MPI.Topocomm) if "eighbor_all" in name and name[0] in "NI"}
    assert len(methods) == 15
    for name in methods:
        assert getattr(kind, name) is not getattr(MPI.Topocomm, name)
    named_ones = {name for name in named("nccl") if name.startswith("Neighbor")}
    assert named_ones == {name for name in methods if name[0] == "N" and "_init" not in name}


def test_functions_of_nccl_in_the_table_exist():
    from pynccl.functions import FUNCTIONS

    names = set(re.findall(r"`(nccl\w+)`", TEXT))
    assert {"ncclAllReduce", "ncclSend"} <= names <= set(FUNCTIONS)
