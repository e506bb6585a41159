"""The C interface of NCCL under its own names, one callable per function of ``nccl.h``.

``pynccl.bindings.ncclAllReduce(...)`` takes what the C function takes, as plain integers (pointers
and handles included) or ctypes objects, and returns what it returns: the result code as an ``int``,
which nobody has looked at. Calls release the GIL. A function is looked up in libnccl when it is
first used; one that the loaded library lacks raises ``NCCLNotSupported`` when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pynccl import library
from pynccl.errors import NCCLNotSupported
from pynccl.functions import FUNCTIONS
from pynccl.types import version_text

__all__ = ["available"]


def available(name: str) -> bool:
    """Tell whether the loaded libnccl has a function of ``nccl.h``."""
    if name not in FUNCTIONS:
        raise ValueError(f"{name} is no function of nccl.h")
    return hasattr(library.load().cdll, name)


def _absent(name: str, since: str) -> Callable[..., Any]:
    def refuse(*arguments: Any) -> Any:
        loaded = library.load()
        raise NCCLNotSupported(name, since, version_text(loaded.version), loaded.path)

    refuse.__name__ = name
    return refuse


def _bind(name: str) -> Callable[..., Any]:
    since, restype, arguments = FUNCTIONS[name]
    try:
        function = getattr(library.load().cdll, name)
    except AttributeError:
        return _absent(name, since)
    function.restype = restype
    function.argtypes = list(arguments.values())
    return function  # type: ignore[no-any-return]


def __getattr__(name: str) -> Any:
    if name not in FUNCTIONS:
        raise AttributeError(f"nccl.h has no function {name!r}")
    bound = globals()[name] = _bind(name)
    return bound


def __dir__() -> list[str]:
    return sorted([*__all__, *FUNCTIONS])

