"""Text that every machine has: the sources of Python's own library, as bytes."""

import pathlib
import sysconfig

import numpy as np

BYTES = 1_000_000


def library_sources():
    """The first megabyte of the library's modules, in the order of their names."""
    modules = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b""
    for module in modules:
        text += module.read_bytes()
        if len(text) >= BYTES:
            break
    return np.frombuffer(text[:BYTES], np.uint8)


def shared_text(comm):
    """Rank 0's text on every rank, since another node may have another Python."""
    text = comm.asarray(library_sources() if comm.rank == 0 else np.zeros(BYTES, np.uint8))
    return comm.broadcast(text, root=0).get()


def batch(text, step, seed, rows, length):
    """Rows of the text, and the byte that follows each byte; the same for all who ask.

    Returns two integer arrays of shape (rows, length).
    """
    starts = np.random.default_rng((seed, step)).integers(0, len(text) - length, rows)
    windows = text[starts[:, None] + np.arange(length + 1)].astype(np.int32)
    return windows[:, :-1], windows[:, 1:]
