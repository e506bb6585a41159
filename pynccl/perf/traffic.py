"""How much alltoallv sends from each rank to each: a formula, or a file's numbers."""

from __future__ import annotations

import os
from functools import lru_cache

__all__ = ["elements", "matrix_file"]

Table = tuple[tuple[int, ...], ...]


def matrix_file() -> str:
    """Return the file that gives the bytes between ranks, if any is named."""
    return os.environ.get("NCCL_TESTS_ALLTOALLV_MATRIX_FILE", "")


@lru_cache(maxsize=64)
def elements(part: int, itemsize: int, nranks: int) -> Table:
    """Return how many elements each rank (row) sends to each (column).

    A rank sends the more, the farther on the other is: in proportion to the distance in ranks, or
    evenly, as NCCL_TESTS_ALLTOALLV_SPREAD (1 to 0) says. Multiples of 16 bytes.

    Args:
        part: elements that a rank would send to each other one, were they shared evenly
    Raises:
        ValueError: the matrix in the file does not fit
    """
    if matrix_file():
        table = _from_file(nranks)
    else:
        spread = float(os.environ.get("NCCL_TESTS_ALLTOALLV_SPREAD", "1"))
        if not 0 <= spread <= 1:
            raise ValueError(f"NCCL_TESTS_ALLTOALLV_SPREAD={spread} must be from 0 to 1")
        total = part * nranks * itemsize
        by_distance = [_bytes_over(distance, nranks, total, spread) for distance in range(nranks)]
        table = tuple(
            tuple(by_distance[(other - rank) % nranks] for other in range(nranks))
            for rank in range(nranks)
        )
    return tuple(tuple(nbytes // itemsize for nbytes in row) for row in table)


def _bytes_over(distance: int, nranks: int, total: int, spread: float) -> int:
    if nranks == 1:
        return total & ~15
    even = total / nranks
    weighted = distance * total / (nranks * (nranks - 1) // 2)
    return int((1 - spread) * even + spread * weighted) & ~15


def _from_file(nranks: int) -> Table:
    scale = float(os.environ.get("NCCL_TESTS_ALLTOALLV_MATRIX_SCALE", "1"))
    with open(matrix_file(), encoding="utf-8") as lines:
        rows = [[float(word) for word in line.split()] for line in lines if line.strip()]
    if len(rows) < nranks or any(len(row) != len(rows) for row in rows):
        raise ValueError(
            f"{matrix_file()}: {len(rows)} rows; it must be a square of at least {nranks} numbers"
        )
    return tuple(tuple(int(word * scale) & ~15 for word in row[:nranks]) for row in rows[:nranks])
