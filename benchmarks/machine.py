"""What the numbers of a benchmark were measured on, in a line."""

import os
import platform

import numpy as np

import pynccl.library


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.machine()
    loaded = pynccl.library.load()
    return (
        f"{len(os.sched_getaffinity(0))} cores, {processor}, Linux {platform.release()}, "
        f"backend {loaded.backend}, NCCL interface {pynccl.types.version_text(loaded.version)}, "
        f"Python {platform.python_version()}, numpy {np.__version__}"
    )
