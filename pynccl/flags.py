"""Flags of NCCL's functions."""

from __future__ import annotations

from enum import IntFlag

__all__ = ["CTAPolicy", "CommShrinkFlag", "CommSuspendFlag", "WindowFlag"]


class CTAPolicy(IntFlag):
    """How collectives use the GPU's multiprocessors (``NCCL_CTA_POLICY_…``)."""

    DEFAULT = 0x00
    EFFICIENCY = 0x01
    ZERO = 0x02


class CommShrinkFlag(IntFlag):
    """What ``shrink`` does first (``NCCL_SHRINK_…``)."""

    DEFAULT = 0x00
    ABORT = 0x01


class CommSuspendFlag(IntFlag):
    """What ``suspend`` gives back (``NCCL_SUSPEND_…``)."""

    MEM = 0x01


class WindowFlag(IntFlag):
    """How a window is registered (``NCCL_WIN_…``)."""

    DEFAULT = 0x00
    COLL_SYMMETRIC = 0x01
    STRICT_ORDERING = 0x02
    GIN_ONLY = 0x04
    CFT_COUNTED = 0x08
