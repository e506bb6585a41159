"""Where in the user's program a call was made, found again at little cost."""

from __future__ import annotations

import ctypes
import os
from types import CodeType, FrameType

__all__ = ["NOWHERE", "Site", "find", "sites"]

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Programs that compile code without end would fill the table; it is begun anew then.
LIMIT = 1 << 16


class Site:
    """A file and line.

    Attributes:
        text: ``train.py:42``, relative to the working directory where the file is below it
        address: where the same lies in memory, ended by a zero byte, as long as the process lives
    """

    __slots__ = ("address", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.address = ctypes.addressof(_buffer(text))


# (id of the code object, offset of the instruction) -> Site; None inside this package. The offset
# tells calls of one line apart, and needs no search for the line. `_codes` keeps the ids' objects.
sites: dict[tuple[int, int], Site | None] = {}
_codes: dict[int, CodeType] = {}
_buffers: dict[str, ctypes.Array[ctypes.c_char]] = {}


def _buffer(text: str) -> ctypes.Array[ctypes.c_char]:
    """Return a buffer that is never freed: a library may read it at any later time."""
    buffer = _buffers.get(text)
    if buffer is None:
        buffer = _buffers[text] = ctypes.create_string_buffer(os.fsencode(text))
        # Also not by the interpreter's end, after which work may still be on the way.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))
    return buffer


NOWHERE = Site("?")


def find(frame: FrameType | None) -> Site:
    """Return the site of the innermost frame, from this one outwards, that is not the package's.

    A program that is itself part of the package, such as ``perf``, is named by its own line.
    """
    innermost = frame
    if frame is not None:
        site = sites.get((id(frame.f_code), frame.f_lasti))
        if site is not None:
            return site
    while frame is not None:
        key = id(frame.f_code), frame.f_lasti
        if key not in sites:
            _add(key, frame)
        site = sites[key]
        if site is not None:
            return site
        frame = frame.f_back
    return Site(_text(innermost)) if innermost is not None else NOWHERE


def _add(key: tuple[int, int], frame: FrameType) -> None:
    code = frame.f_code
    if len(sites) >= LIMIT:
        sites.clear()
        _codes.clear()
    _codes[id(code)] = code
    name = code.co_filename
    inside = name.startswith((PACKAGE, "<frozen "))
    sites[key] = None if inside else Site(_text(frame))


def _text(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    try:
        here = os.getcwd() + os.sep
    except OSError:  # the folder is gone
        here = os.sep
    if len(here) > 1 and name.startswith(here):
        name = name[len(here) :]
    return f"{name}:{frame.f_lineno}"
