"""The id by which the ranks of a new communicator find each other."""

from __future__ import annotations

from ctypes import byref

from pynccl import bindings, errors
from pynccl.types import UNIQUE_ID_BYTES, UniqueIdStruct

__all__ = ["UniqueId", "get_unique_id"]


class UniqueId:
    """``ncclUniqueId``: made by one rank, handed to all, used for one communicator.

    ``bytes(id)`` and ``from_bytes`` carry it over any channel; it can be pickled.
    """

    __slots__ = ("_struct",)

    def __init__(self, content: bytes = bytes(UNIQUE_ID_BYTES)) -> None:
        if len(content) != UNIQUE_ID_BYTES:
            raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, not {len(content)}")
        self._struct = UniqueIdStruct.from_buffer_copy(content)

    @classmethod
    def from_bytes(cls, content: bytes | bytearray | memoryview) -> UniqueId:
        """Return the id that ``bytes(id)`` was made of.

        Raises:
            ValueError: the length is not 128
        """
        return cls(bytes(content))

    @property
    def struct(self) -> UniqueIdStruct:
        """The ctypes structure, to pass to ``pynccl.bindings``."""
        return self._struct

    @property
    def as_bytes(self) -> bytes:
        """The same as ``bytes(id)``."""
        return bytes(self)

    def __bytes__(self) -> bytes:
        return bytes(self._struct)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UniqueId) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self))

    def __reduce__(self) -> tuple[type[UniqueId], tuple[bytes]]:
        return UniqueId, (bytes(self),)

    def __repr__(self) -> str:
        return f"<UniqueId {bytes(self)[:8].hex()}…>"


def get_unique_id(empty: bool = False) -> UniqueId:
    """Return a new id (``ncclGetUniqueId``, NCCL 2.3.5), or one to be filled from elsewhere.

    Args:
        empty: return 128 zero bytes, as a place for another rank's id
    Raises:
        NCCLSystemError: NCCL finds no network interface to listen on
    """
    if empty:
        return UniqueId()
    made = UniqueId()
    errors.check(bindings.ncclGetUniqueId(byref(made.struct)), "ncclGetUniqueId")
    return made
