"""The parts of parallel training: what is split, how, and what the ranks tell each other for it.

Everything is a plain function or class over a ``Communicator``, with its communication and its
source in its docstring. The programs in ``examples`` are made of these.
"""

from pynccl.parallel.buckets import GradientBuckets
from pynccl.parallel.dispatch import Dispatch, places_in_order
from pynccl.parallel.functional import all_gathered, all_reduced, reduce_scattered, staged
from pynccl.parallel.ring import RingAttention
from pynccl.parallel.schedules import (
    Action,
    Schedule,
    exchange,
    gpipe,
    interleaved,
    one_forward_one_backward,
)
from pynccl.parallel.shards import FlatLayout, ShardedLayers
from pynccl.parallel.tensor import (
    SequenceParallel,
    TensorParallel,
    joined,
    part_of,
    split_cross_entropy,
)
from pynccl.parallel.traffic import CountedCommunicator, Traffic

__all__ = [
    "Action",
    "CountedCommunicator",
    "Dispatch",
    "FlatLayout",
    "GradientBuckets",
    "RingAttention",
    "Schedule",
    "SequenceParallel",
    "ShardedLayers",
    "TensorParallel",
    "Traffic",
    "all_gathered",
    "all_reduced",
    "exchange",
    "gpipe",
    "interleaved",
    "joined",
    "one_forward_one_backward",
    "part_of",
    "places_in_order",
    "reduce_scattered",
    "split_cross_entropy",
    "staged",
]
