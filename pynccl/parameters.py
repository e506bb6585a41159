"""NCCL's own runtime parameters, and settings of the whole process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import POINTER, byref, c_char_p, c_int

from pynccl import bindings, errors, library
from pynccl.types import EncryptionMode, initialized

__all__ = ["dump_params", "params", "set_encryption"]


class _Parameters(Mapping[str, str]):
    """The parameters that NCCL's documentation publishes, by name (NCCL 2.30.4).

    Read only; a value is what NCCL uses, from its configuration or the environment.
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
