"""What the loaded library is, in words."""

from __future__ import annotations

from typing import NamedTuple

from pynccl import bindings, library
from pynccl.types import version_text

__all__ = ["Version", "get_error_string", "get_version"]


class Version(NamedTuple):
    """A release of NCCL."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def get_version() -> Version:
    """Return the release of the loaded libnccl (``ncclGetVersion``, NCCL 2.3.5)."""
    return Version(*map(int, version_text(library.load().version).split(".")))


def get_error_string(result: int) -> str:
    """Return NCCL's words for a result code (``ncclGetErrorString``, NCCL 2.3.5)."""
    return (bindings.ncclGetErrorString(result) or b"").decode()
