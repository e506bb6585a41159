"""NCCL's own runtime parameters, and settings of the whole process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_int8,
    c_int16,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    create_string_buffer,
)
from typing import Any

from pynccl import bindings, errors, library
from pynccl.types import EncryptionMode, Result, initialized

__all__ = ["dump_params", "get_param", "get_param_bytes", "params", "set_encryption"]


class _Parameters(Mapping[str, str]):
    """The parameters that NCCL's documentation publishes, by name (NCCL 2.30.4).

    ``ncclParamGetAllParameterKeys`` and ``ncclParamGetParameter``. Read only; a
    value is what NCCL uses, from its configuration or the environment.
    """

    def __getitem__(self, key: str) -> str:
        value = c_char_p()
        length = c_int()
        code = bindings.ncclParamGetParameter(key.encode(), byref(value), byref(length))
        if code:
            if key not in list(self):
                raise KeyError(key)
            errors.check(code, "ncclParamGetParameter")
        return (value.value or b"").decode()

    def __iter__(self) -> Iterator[str]:
        table = POINTER(c_char_p)()
        length = c_int()
        errors.check(
            bindings.ncclParamGetAllParameterKeys(byref(table), byref(length)),
            "ncclParamGetAllParameterKeys",
        )
        return iter([table[i].decode() for i in range(length.value)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


params = _Parameters()

# The getters of numbers, by their types: NCCL accepts that of the parameter's own type alone.
_NUMBERS = {
    "ncclParamGetI8": c_int8,
    "ncclParamGetI16": c_int16,
    "ncclParamGetI32": c_int32,
    "ncclParamGetI64": c_int64,
    "ncclParamGetU8": c_uint8,
    "ncclParamGetU16": c_uint16,
    "ncclParamGetU32": c_uint32,
    "ncclParamGetU64": c_uint64,
}


def get_param(key: str) -> int | str:
    """Return a parameter as a number where it is one, else as text (NCCL 2.30.4).

    Asks through a handle of ``ncclParamBind``: ``ncclParamGetI8``, ``ncclParamGetI16``,
    ``ncclParamGetI32``, ``ncclParamGetI64``, ``ncclParamGetU8``, ``ncclParamGetU16``,
    ``ncclParamGetU32``, ``ncclParamGetU64``, then ``ncclParamGetStr``.

    Raises:
        KeyError: there is no such parameter
    """
    handle = _bound(key)
    for name, kind in _NUMBERS.items():
        number: Any = kind()
        if getattr(bindings, name)(handle, byref(number)) == Result.SUCCESS:
            return int(number.value)
    text = c_char_p()
    if bindings.ncclParamGetStr(handle, byref(text)) == Result.SUCCESS:
        return (text.value or b"").decode()
    return params[key]  # of a type that no getter has


def get_param_bytes(key: str) -> bytes:
    """Return a parameter's value as NCCL keeps it (``ncclParamGet``, NCCL 2.30.4).

    Raises:
        KeyError: there is no such parameter
    """
    handle = _bound(key)
    room = create_string_buffer(4096)
    length = c_int()
    errors.check(bindings.ncclParamGet(handle, room, len(room), byref(length)), "ncclParamGet")
    return room.raw[: length.value]


def _bound(key: str) -> int:
    handle = c_void_p()
    code = bindings.ncclParamBind(byref(handle), key.encode())
    if code == Result.INVALID_ARGUMENT:
        raise KeyError(key)
    errors.check(code, "ncclParamBind")
    return handle.value or 0


def dump_params() -> None:
    """Let NCCL print its parameters (``ncclParamDumpAll``, NCCL 2.30.4)."""
    bindings.ncclParamDumpAll()


def set_encryption(mode: EncryptionMode, psk: str | bytes | None = None) -> None:
    """Ask for encryption of NCCL's TCP connections (``ncclSetEncryption``, NCCL 2.32.3).

    Call it before the first communicator is made, alike on all ranks.

    Args:
        mode: NONE, or PSK for a shared key
        psk: the key, for PSK
    Raises:
        ValueError: PSK without a key
    """
    if mode == EncryptionMode.PSK and not psk:
        raise ValueError("psk: encryption by a shared key needs the key")
    struct = initialized("ncclEncryptionConfig_t", max(library.load().version, 23203))
    struct.mode = mode
    struct.psk = psk.encode() if isinstance(psk, str) else psk
    errors.check(bindings.ncclSetEncryption(byref(struct)), "ncclSetEncryption")
