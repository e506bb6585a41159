"""Communicators made from a communicator: parts of it, and larger ones."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int, c_void_p
from typing import TYPE_CHECKING, Any

import numpy

from pynccl import bindings, errors, recorder
from pynccl.condition import Condition
from pynccl.config import Config, structure_of
from pynccl.flags import CommShrinkFlag
from pynccl.groups import after_group
from pynccl.types import SPLIT_NOCOLOR
from pynccl.unique_id import UniqueId
from pynccl.waiting import StreamWait

if TYPE_CHECKING:
    from pynccl.communicator import Communicator

__all__ = ["Subcommunicators"]


class Subcommunicators(Condition):
    """Dividing a communicator, leaving ranks out, and taking in new ones."""

    _stream: Any
    _wait: StreamWait

    if TYPE_CHECKING:  # the communicator's

        @classmethod
        def _make(
            cls, value: int, nranks: int, rank: int, ordinal: int, queue: int, timeout: float | None
        ) -> Communicator: ...

    def split(
        self, color: int | None = None, key: int = 0, config: Config | None = None
    ) -> Communicator | None:
        """Divide the communicator (``ncclCommSplit``, NCCL 2.18.1). Collective; blocks.

        Args:
            color: ranks of the same color, 0 or more, make up a communicator; None for none
            key: orders the ranks there; equal keys keep their order
            config: None to inherit
        Returns:
            The new communicator; None where ``color`` is
        Raises:
            ValueError: the color is negative
        """
        comm = self._handle.value or self._gone()
        if color is not None and (not isinstance(color, (int, numpy.integer)) or color < 0):
            raise ValueError(f"color {color!r} must be an integer of 0 or more, or None")
        none = color is None
        return self._child(
            "ncclCommSplit",
            config,
            lambda new, struct: bindings.ncclCommSplit(
                comm, SPLIT_NOCOLOR if none else color, key, new, struct
            ),
            none,
            part=f".{color}",
        )

    def shrink(
        self,
        exclude: Sequence[int],
        config: Config | None = None,
        flag: CommShrinkFlag = CommShrinkFlag.DEFAULT,
    ) -> Communicator:
        """Make a communicator without some ranks (``ncclCommShrink``, NCCL 2.27.3). Blocks.

        Called by the ranks that stay, and by no other.

        Args:
            exclude: ranks that are left out
            flag: ``CommShrinkFlag.ABORT`` stops the work of this communicator first, as is needed
                after a failure
        Raises:
            ValueError: this rank is excluded, or a rank does not exist
        """
        comm = self._handle.value or self._gone()
        for rank in exclude:
            self._check_root(rank, "exclude: rank")
        if self.rank in exclude:
            raise ValueError(f"exclude {list(exclude)}: rank {self.rank} must not call shrink")
        ranks = (c_int * len(exclude))(*exclude)
        made = self._child(
            "ncclCommShrink",
            config,
            lambda new, struct: bindings.ncclCommShrink(
                comm, ranks, len(exclude), new, struct, flag
            ),
        )
        assert made is not None
        return made

    def get_unique_id(self) -> UniqueId:
        """Return the id for one ``grow`` (``ncclCommGetUniqueId``, NCCL 2.29.2)."""
        comm = self._handle.value or self._gone()
        made = UniqueId()
        errors.check(
            bindings.ncclCommGetUniqueId(comm, byref(made.struct)), "ncclCommGetUniqueId", comm
        )
        return made

    def grow(
        self, nranks: int, unique_id: UniqueId | None = None, config: Config | None = None
    ) -> Communicator:
        """Make a larger communicator with new ranks (``ncclCommGrow``, NCCL 2.29.2). Blocks.

        All ranks of this communicator call it; those that join call ``Communicator.join``. Ranks
        keep their numbers, and the new ones follow.

        Args:
            nranks: size of the new communicator
            unique_id: on the one rank that got it from ``get_unique_id``; None on others
        Raises:
            ValueError: ``nranks`` is not larger than this communicator
        """
        comm = self._handle.value or self._gone()
        if nranks <= self.nranks:
            raise ValueError(f"nranks {nranks} must be more than the {self.nranks} that there are")
        pointer = None if unique_id is None else byref(unique_id.struct)
        made = self._child(
            "ncclCommGrow",
            config,
            lambda new, struct: bindings.ncclCommGrow(comm, nranks, pointer, -1, new, struct),
        )
        assert made is not None
        if unique_id is not None:
            made._log.alias = recorder.identity_of([unique_id])
        return made

    def _child(
        self, name: str, config: Config | None, call: Any, none: bool = False, part: str = ""
    ) -> Communicator | None:
        from cuda.core import Device

        Device(self._ordinal).set_current()
        struct = structure_of(config, Config)
        target = c_void_p()
        identity = self._log.child(name, part)
        code = call(byref(target), None if struct is None else byref(struct))
        errors.check(code, name, self._handle.value)
        self._log.returned()
        if none:
            return None
        made = self._make(0, -1, -1, self._ordinal, self._queue, self._wait.timeout)
        made._stream = self._stream
        made._log.identity = identity
        made._pending = target
        after_group(made._settle)
        return made
