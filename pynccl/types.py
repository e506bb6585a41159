"""Enumerations, structures and constants of ``nccl.h``, each with the release that brought it."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

__all__ = [
    "API_MAGIC",
    "CONFIG_UNDEF_INT",
    "ELEMENT_TYPES",
    "ENUMS",
    "LATEST",
    "MACROS",
    "SPLIT_NOCOLOR",
    "STRUCTURES",
    "UNIQUE_ID_BYTES",
    "CommMemStat",
    "DataType",
    "ElementType",
    "EncryptionMode",
    "HostCftMode",
    "NvlsHostMode",
    "RedOp",
    "Result",
    "ScalarResidence",
    "StructureField",
    "UniqueIdStruct",
    "initialized",
    "structure",
    "version_code",
    "version_text",
]

LATEST = (2, 32, 3)
"""The release whose ``nccl.h`` this module describes in full."""


def version_code(release: str) -> int:
    """Return NCCL's number for a release such as ``"2.18.1"``."""
    major, minor, patch = (int(part) for part in release.split("."))
    if (major, minor) <= (2, 8):
        return major * 1000 + minor * 100 + patch
    return major * 10000 + minor * 100 + patch


def version_text(code: int) -> str:
    """Return the release that ``ncclGetVersion``'s number stands for."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


UNIQUE_ID_BYTES = 128
CONFIG_UNDEF_INT = -(2**31)
SPLIT_NOCOLOR = -1
API_MAGIC = 0xCAFEBEEF
SIM_INFO_MAGIC = 0x74685283
UNDEF_FLOAT = -1.0

MACROS: dict[str, tuple[int, str]] = {
    "NCCL_UNIQUE_ID_BYTES": (UNIQUE_ID_BYTES, "2.3.5"),
    "NCCL_CONFIG_UNDEF_INT": (CONFIG_UNDEF_INT, "2.17.1"),
    "NCCL_SPLIT_NOCOLOR": (SPLIT_NOCOLOR, "2.18.1"),
    "NCCL_WIN_DEFAULT": (0x00, "2.27.3"),
    "NCCL_WIN_COLL_SYMMETRIC": (0x01, "2.27.3"),
    "NCCL_CTA_POLICY_DEFAULT": (0x00, "2.27.3"),
    "NCCL_CTA_POLICY_EFFICIENCY": (0x01, "2.27.3"),
    "NCCL_SHRINK_DEFAULT": (0x00, "2.27.3"),
    "NCCL_SHRINK_ABORT": (0x01, "2.27.3"),
    "NCCL_WIN_REQUIRED_ALIGNMENT": (4096, "2.28.3"),
    "NCCL_CTA_POLICY_ZERO": (0x02, "2.28.3"),
    "NCCL_REVOKE_DEFAULT": (0x00, "2.28.7"),
    "NCCL_API_MAGIC": (API_MAGIC, "2.29.2"),
    "NCCL_WIN_STRICT_ORDERING": (0x02, "2.29.7"),
    "NCCL_SUSPEND_MEM": (0x01, "2.29.7"),
    "NCCL_WIN_GIN_ONLY": (0x04, "2.32.3"),
    "NCCL_WIN_CFT_COUNTED": (0x08, "2.32.3"),
}
"""Integer macros: value, and the release that brought the name."""


class Result(IntEnum):
    """``ncclResult_t``."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7
    TIMEOUT = 8


class RedOp(IntEnum):
    """``ncclRedOp_t``: the built-in reductions."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


class DataType(IntEnum):
    """``ncclDataType_t``."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8_E4M3 = 10
    FLOAT8_E5M2 = 11

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ELEMENT_TYPES[self].itemsize


class ScalarResidence(IntEnum):
    """``ncclScalarResidence_t``: where a reduction's scalar is read."""

    DEVICE = 0
    HOST_IMMEDIATE = 1


class CommMemStat(IntEnum):
    """``ncclCommMemStat_t``: what ``ncclCommMemStats`` tells, in bytes."""

    GPU_MEM_SUSPEND = 0
    GPU_MEM_SUSPENDED = 1
    GPU_MEM_PERSIST = 2
    GPU_MEM_TOTAL = 3


class HostCftMode(IntEnum):
    """``ncclHostCftMode_t``."""

    DEFAULT = CONFIG_UNDEF_INT
    ENABLE = 1
    DISABLE = 2
    FALLBACK = 3


class NvlsHostMode(IntEnum):
    """``ncclNvlsHostMode_t``."""

    DEFAULT = CONFIG_UNDEF_INT
    ENABLE = 0
    DISABLE_TRANSPORT = 1
    DISABLE_SYMMETRIC_MULTIMEM = 2
    DISABLE = 2**31 - 1


class EncryptionMode(IntEnum):
    """``ncclEncryptionMode_t``."""

    NONE = 0
    PSK = 1


ENUMS: dict[str, dict[str, tuple[IntEnum, str]]] = {
    "ncclResult_t": {
        "ncclSuccess": (Result.SUCCESS, "2.3.5"),
        "ncclUnhandledCudaError": (Result.UNHANDLED_CUDA_ERROR, "2.3.5"),
        "ncclSystemError": (Result.SYSTEM_ERROR, "2.3.5"),
        "ncclInternalError": (Result.INTERNAL_ERROR, "2.3.5"),
        "ncclInvalidArgument": (Result.INVALID_ARGUMENT, "2.3.5"),
        "ncclInvalidUsage": (Result.INVALID_USAGE, "2.3.5"),
        "ncclRemoteError": (Result.REMOTE_ERROR, "2.13.4"),
        "ncclInProgress": (Result.IN_PROGRESS, "2.14.3"),
        "ncclTimeout": (Result.TIMEOUT, "2.30.4"),
    },
    "ncclRedOp_t": {
        "ncclSum": (RedOp.SUM, "2.3.5"),
        "ncclProd": (RedOp.PROD, "2.3.5"),
        "ncclMax": (RedOp.MAX, "2.3.5"),
        "ncclMin": (RedOp.MIN, "2.3.5"),
        "ncclAvg": (RedOp.AVG, "2.10.3"),
    },
    "ncclDataType_t": {
        "ncclInt8": (DataType.INT8, "2.3.5"),
        "ncclUint8": (DataType.UINT8, "2.3.5"),
        "ncclInt32": (DataType.INT32, "2.3.5"),
        "ncclUint32": (DataType.UINT32, "2.3.5"),
        "ncclInt64": (DataType.INT64, "2.3.5"),
        "ncclUint64": (DataType.UINT64, "2.3.5"),
        "ncclFloat16": (DataType.FLOAT16, "2.3.5"),
        "ncclFloat32": (DataType.FLOAT32, "2.3.5"),
        "ncclFloat64": (DataType.FLOAT64, "2.3.5"),
        "ncclBfloat16": (DataType.BFLOAT16, "2.10.3"),
        "ncclFloat8e4m3": (DataType.FLOAT8_E4M3, "2.24.3"),
        "ncclFloat8e5m2": (DataType.FLOAT8_E5M2, "2.24.3"),
    },
    "ncclScalarResidence_t": {
        "ncclScalarDevice": (ScalarResidence.DEVICE, "2.11.4"),
        "ncclScalarHostImmediate": (ScalarResidence.HOST_IMMEDIATE, "2.11.4"),
    },
    "ncclCommMemStat_t": {
        "ncclStatGpuMemSuspend": (CommMemStat.GPU_MEM_SUSPEND, "2.29.7"),
        "ncclStatGpuMemSuspended": (CommMemStat.GPU_MEM_SUSPENDED, "2.29.7"),
        "ncclStatGpuMemPersist": (CommMemStat.GPU_MEM_PERSIST, "2.29.7"),
        "ncclStatGpuMemTotal": (CommMemStat.GPU_MEM_TOTAL, "2.29.7"),
    },
    "ncclHostCftMode_t": {
        "ncclHostCftDefault": (HostCftMode.DEFAULT, "2.31.2"),
        "ncclHostCftEnable": (HostCftMode.ENABLE, "2.31.2"),
        "ncclHostCftDisable": (HostCftMode.DISABLE, "2.31.2"),
        "ncclHostCftFallback": (HostCftMode.FALLBACK, "2.31.2"),
    },
    "ncclNvlsHostMode_t": {
        "ncclNvlsHostModeDefault": (NvlsHostMode.DEFAULT, "2.32.3"),
        "ncclNvlsHostModeEnable": (NvlsHostMode.ENABLE, "2.32.3"),
        "ncclNvlsHostModeDisableTransport": (NvlsHostMode.DISABLE_TRANSPORT, "2.32.3"),
        "ncclNvlsHostModeDisableSymmetricMultimem": (
            NvlsHostMode.DISABLE_SYMMETRIC_MULTIMEM,
            "2.32.3",
        ),
        "ncclNvlsHostModeDisable": (NvlsHostMode.DISABLE, "2.32.3"),
    },
    "ncclEncryptionMode_t": {
        "NCCL_ENCRYPTION_MODE_NONE": (EncryptionMode.NONE, "2.32.3"),
        "NCCL_ENCRYPTION_MODE_PSK": (EncryptionMode.PSK, "2.32.3"),
    },
}
"""C name of every enumerator: its value here, and the release that brought it."""


class ElementType(NamedTuple):
    """How numpy (with ``ml_dtypes``) calls an NCCL data type."""

    dtype: str
    itemsize: int


ELEMENT_TYPES: dict[DataType, ElementType] = {
    DataType.INT8: ElementType("int8", 1),
    DataType.UINT8: ElementType("uint8", 1),
    DataType.INT32: ElementType("int32", 4),
    DataType.UINT32: ElementType("uint32", 4),
    DataType.INT64: ElementType("int64", 8),
    DataType.UINT64: ElementType("uint64", 8),
    DataType.FLOAT16: ElementType("float16", 2),
    DataType.FLOAT32: ElementType("float32", 4),
    DataType.FLOAT64: ElementType("float64", 8),
    DataType.BFLOAT16: ElementType("bfloat16", 2),
    DataType.FLOAT8_E4M3: ElementType("float8_e4m3fn", 1),
    DataType.FLOAT8_E5M2: ElementType("float8_e5m2", 1),
}


class StructureField(NamedTuple):
    """A field: C name, type, the release that brought it, and the value it is initialized with."""

    name: str
    ctype: Any
    since: str
    initial: Any = CONFIG_UNDEF_INT


class UniqueIdStruct(ctypes.Structure):
    """``ncclUniqueId``, which functions take by value."""

    _fields_ = [("internal", c_char * UNIQUE_ID_BYTES)]


def _header(since: str, magic: int) -> tuple[StructureField, ...]:
    """The three fields with which every versioned structure of NCCL begins."""
    return (
        StructureField("size", c_size_t, since, None),
        StructureField("magic", c_uint, since, magic),
        StructureField("version", c_uint, since, None),
    )


STRUCTURES: dict[str, tuple[StructureField, ...]] = {
    "ncclConfig_t": (
        *_header("2.14.3", API_MAGIC),
        StructureField("blocking", c_int, "2.14.3"),
        StructureField("cgaClusterSize", c_int, "2.17.1"),
        StructureField("minCTAs", c_int, "2.17.1"),
        StructureField("maxCTAs", c_int, "2.17.1"),
        StructureField("netName", c_char_p, "2.17.1", None),
        StructureField("splitShare", c_int, "2.18.1"),
        StructureField("trafficClass", c_int, "2.26.2"),
        StructureField("commName", c_char_p, "2.27.3", None),
        StructureField("collnetEnable", c_int, "2.27.3"),
        StructureField("CTAPolicy", c_int, "2.27.3"),
        StructureField("shrinkShare", c_int, "2.27.3"),
        StructureField("nvlsCTAs", c_int, "2.27.3"),
        StructureField("nChannelsPerNetPeer", c_int, "2.28.3"),
        StructureField("nvlinkCentricSched", c_int, "2.28.3"),
        StructureField("graphUsageMode", c_int, "2.29.2"),
        StructureField("numRmaCtx", c_int, "2.29.2"),
        StructureField("maxP2pPeers", c_int, "2.30.4"),
        StructureField("graphStreamOrdering", c_int, "2.30.4"),
        StructureField("launchOrderImplicit", c_int, "2.31.2"),
        StructureField("numRmaSig", c_int, "2.31.2"),
        StructureField("rmaEagerInit", c_int, "2.31.2"),
        StructureField("hostCftMode", c_int, "2.31.2"),
        StructureField("nvlsHostMode", c_int, "2.32.3"),
    ),
    "ncclSimInfo_t": (
        *_header("2.22.3", SIM_INFO_MAGIC),
        StructureField("estimatedTime", c_float, "2.22.3", UNDEF_FLOAT),
    ),
    "ncclWaitSignalDesc_t": (
        StructureField("opCnt", c_int, "2.29.2", 0),
        StructureField("peer", c_int, "2.29.2", 0),
        StructureField("sigIdx", c_int, "2.29.2", 0),
        StructureField("ctx", c_int, "2.29.2", 0),
    ),
    "ncclCollConfig_t": (
        *_header("2.31.2", API_MAGIC),
        StructureField("ext", c_void_p, "2.31.2", None),
        StructureField("minCTAs", c_int, "2.31.2"),
        StructureField("maxCTAs", c_int, "2.31.2"),
        StructureField("nvlsCTAs", c_int, "2.31.2"),
        StructureField("cgaClusterSize", c_int, "2.31.2"),
        StructureField("algSelection", c_char_p, "2.31.2", None),
        StructureField("forceAlgSelection", c_int, "2.31.2", 1),
        StructureField("CTAPolicy", c_int, "2.31.2"),
        StructureField("userProfilerTag", c_uint64, "2.31.2", 0),
        StructureField("launchCompletionEvent", c_void_p, "2.32.3", None),
    ),
    "ncclEncryptionConfig_t": (
        *_header("2.32.3", API_MAGIC),
        StructureField("mode", c_int, "2.32.3", EncryptionMode.NONE),
        StructureField("psk", c_char_p, "2.32.3", None),
    ),
}
"""Every versioned structure of ``nccl.h``, field by field."""


@cache
def structure(name: str, version: int) -> type[ctypes.Structure]:
    """Return the ctypes class of a structure as a release of NCCL knows it.

    Args:
        name: the C name, a key of ``STRUCTURES``
        version: the release's number, as ``ncclGetVersion`` gives it
    Raises:
        ValueError: the release has no such structure
    """
    fields = [
        (field.name, field.ctype)
        for field in STRUCTURES[name]
        if version_code(field.since) <= version
    ]
    if not fields:
        raise ValueError(f"NCCL {version_text(version)} has no {name}")
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def initialized(name: str, version: int) -> ctypes.Structure:
    """Return a structure as NCCL's own ``…_INITIALIZER`` makes it for a release."""
    made = structure(name, version)()
    for field in STRUCTURES[name]:
        if version_code(field.since) <= version and field.initial is not None:
            setattr(made, field.name, field.initial)
    if hasattr(made, "magic"):
        made.size = ctypes.sizeof(made)
        made.version = version
    return made
