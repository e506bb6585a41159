"""NCCL for Python on HPC machines, with nothing to compile.

``Communicator.from_mpi(MPI.COMM_WORLD)`` makes a communicator of the ranks of an MPI job; its
methods are NCCL's operations. ``pynccl.bindings`` is the C interface. With
``PYNCCL_BACKEND=emulator`` all of it runs on the CPU.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pynccl.errors import (
    EmulatorBuildError,
    NCCLCudaError,
    NCCLError,
    NCCLInternalError,
    NCCLInvalidArgument,
    NCCLInvalidUsage,
    NCCLLibraryNotFound,
    NCCLNotSupported,
    NCCLRemoteError,
    NCCLSystemError,
    NCCLTimeout,
)
from pynccl.types import (
    CommMemStat,
    DataType,
    EncryptionMode,
    HostCftMode,
    NvlsHostMode,
    RedOp,
    Result,
)

if TYPE_CHECKING:
    from pynccl import bindings as bindings
    from pynccl import emulator as emulator
    from pynccl.communicator import Communicator
    from pynccl.config import CollConfig, Config
    from pynccl.device_array import DeviceArray
    from pynccl.flags import CommShrinkFlag, CommSuspendFlag, CTAPolicy, WindowFlag
    from pynccl.groups import GroupSimInfo, group, group_end, group_start
    from pynccl.memory import mem_alloc, mem_free
    from pynccl.one_sided import WaitSignalDesc
    from pynccl.parameters import (
        dump_params,
        get_param,
        get_param_bytes,
        params,
        set_encryption,
    )
    from pynccl.resources import CustomRedOp, RegisteredBuffer, RegisteredWindow
    from pynccl.unique_id import UniqueId, get_unique_id
    from pynccl.versions import get_error_string, get_version

__version__ = "0.1.0"

SUM, PROD, MAX, MIN, AVG = RedOp.SUM, RedOp.PROD, RedOp.MAX, RedOp.MIN, RedOp.AVG

INT8, UINT8, INT32, UINT32 = DataType.INT8, DataType.UINT8, DataType.INT32, DataType.UINT32
INT64, UINT64 = DataType.INT64, DataType.UINT64
FLOAT16, FLOAT32, FLOAT64 = DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64
BFLOAT16 = DataType.BFLOAT16
FLOAT8_E4M3, FLOAT8_E5M2 = DataType.FLOAT8_E4M3, DataType.FLOAT8_E5M2

# What NVIDIA's nccl.core calls by another name, so that code written for it runs.
NcclDataType, NcclRedOp, NcclCommMemStat = DataType, RedOp, CommMemStat
NcclHostCftMode, NcclNvlsHostMode = HostCftMode, NvlsHostMode
NcclInvalid = ValueError
CHAR, INT, HALF, FLOAT, DOUBLE = INT8, INT32, FLOAT16, FLOAT32, FLOAT64
FLOAT8E4M3, FLOAT8E5M2 = FLOAT8_E4M3, FLOAT8_E5M2
_ALIASES = {
    "NCCLConfig": "Config",
    "NCCLCollConfig": "CollConfig",
    "RegisteredBufferHandle": "RegisteredBuffer",
    "RegisteredWindowHandle": "RegisteredWindow",
}

# Loaded when first asked for, so that importing the package stays quick.
_LAZY = {
    "CTAPolicy": "flags",
    "CollConfig": "config",
    "CommShrinkFlag": "flags",
    "CommSuspendFlag": "flags",
    "Communicator": "communicator",
    "Config": "config",
    "CustomRedOp": "resources",
    "DeviceArray": "device_array",
    "GroupSimInfo": "groups",
    "RegisteredBuffer": "resources",
    "RegisteredWindow": "resources",
    "UniqueId": "unique_id",
    "WaitSignalDesc": "one_sided",
    "WindowFlag": "flags",
    "dump_params": "parameters",
    "get_error_string": "versions",
    "get_param": "parameters",
    "get_param_bytes": "parameters",
    "get_unique_id": "unique_id",
    "get_version": "versions",
    "group": "groups",
    "group_end": "groups",
    "group_start": "groups",
    "mem_alloc": "memory",
    "mem_free": "memory",
    "params": "parameters",
    "set_encryption": "parameters",
}
_MODULES = ("bindings", "emulator", "library", "mpi", "types")

__all__ = [
    "AVG",
    "BFLOAT16",
    "FLOAT8_E4M3",
    "FLOAT8_E5M2",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "INT8",
    "INT32",
    "INT64",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "UINT8",
    "UINT32",
    "UINT64",
    "CTAPolicy",
    "CollConfig",
    "CommMemStat",
    "CommShrinkFlag",
    "CommSuspendFlag",
    "Communicator",
    "Config",
    "CustomRedOp",
    "DataType",
    "DeviceArray",
    "EmulatorBuildError",
    "EncryptionMode",
    "GroupSimInfo",
    "HostCftMode",
    "NCCLCudaError",
    "NCCLError",
    "NCCLInternalError",
    "NCCLInvalidArgument",
    "NCCLInvalidUsage",
    "NCCLLibraryNotFound",
    "NCCLNotSupported",
    "NCCLRemoteError",
    "NCCLSystemError",
    "NCCLTimeout",
    "NvlsHostMode",
    "RedOp",
    "RegisteredBuffer",
    "RegisteredWindow",
    "Result",
    "UniqueId",
    "WaitSignalDesc",
    "WindowFlag",
    "__version__",
    "bindings",
    "dump_params",
    "emulator",
    "get_error_string",
    "get_param",
    "get_param_bytes",
    "get_unique_id",
    "get_version",
    "group",
    "group_end",
    "group_start",
    "mem_alloc",
    "mem_free",
    "params",
    "set_encryption",
]


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name in _MODULES:
        return import_module(f"pynccl.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'pynccl' has no attribute {name!r}")
    module = import_module(f"pynccl.{_LAZY[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
