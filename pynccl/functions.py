"""The functions of ``nccl.h``, one row each: the table from which everything else follows."""

from __future__ import annotations

from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int8,
    c_int16,
    c_int32,
    c_int64,
    c_size_t,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, NamedTuple

from pynccl.types import UniqueIdStruct

__all__ = ["FUNCTIONS", "Function"]


class Function(NamedTuple):
    """A row of the table: release that brought the function, result type, arguments by name."""

    since: str
    restype: Any
    arguments: dict[str, Any]


Arguments = dict[str, Any]

_comm: Arguments = {"comm": c_void_p}
_comm_stream: Arguments = {"comm": c_void_p, "stream": c_void_p}
_move: Arguments = {
    "sendbuff": c_void_p,
    "recvbuff": c_void_p,
    "count": c_size_t,
    "datatype": c_int,
}
_op: Arguments = {"op": c_int}
_root: Arguments = {"root": c_int}
_config: Arguments = {"config": c_void_p}  # a versioned structure: which, types.structure() says
_new: Arguments = {"newcomm": POINTER(c_void_p), "config": c_void_p}
_window: Arguments = {"comm": c_void_p, "win": c_void_p}
_signal: Arguments = {"sigIdx": c_int, "ctx": c_int, "flags": c_uint}
_id: Arguments = {"uniqueId": POINTER(UniqueIdStruct)}
_rank: Arguments = {"comm": POINTER(c_void_p), "nranks": c_int, "commId": UniqueIdStruct}
_all: Arguments = {"comm": POINTER(c_void_p), "ndev": c_int, "devlist": POINTER(c_int)}
_scalable: Arguments = {"newcomm": POINTER(c_void_p), "nranks": c_int, "myrank": c_int}
_exclude: Arguments = {"comm": c_void_p, "excludeRanksList": POINTER(c_int)}
_register: Arguments = {"comm": c_void_p, "buff": c_void_p, "size": c_size_t}
_scalar: Arguments = {"op": POINTER(c_int), "scalar": c_void_p, "datatype": c_int}
_put: Arguments = {"localbuff": c_void_p, "count": c_size_t, "datatype": c_int, "peer": c_int}
_param: Arguments = {"h": c_void_p}

# fmt: off
FUNCTIONS: dict[str, Function] = {
    "ncclGetVersion": Function("2.3.5", c_int, {"version": POINTER(c_int)}),
    "ncclGetUniqueId": Function("2.3.5", c_int, {**_id}),
    "ncclCommInitRank": Function("2.3.5", c_int, {**_rank, "rank": c_int}),
    "ncclCommInitAll": Function("2.3.5", c_int, {**_all}),
    "ncclCommDestroy": Function("2.3.5", c_int, {**_comm}),
    "ncclGetErrorString": Function("2.3.5", c_char_p, {"result": c_int}),
    "ncclCommCount": Function("2.3.5", c_int, {**_comm, "count": POINTER(c_int)}),
    "ncclCommCuDevice": Function("2.3.5", c_int, {**_comm, "device": POINTER(c_int)}),
    "ncclCommUserRank": Function("2.3.5", c_int, {**_comm, "rank": POINTER(c_int)}),
    "ncclReduce": Function("2.3.5", c_int, {**_move, **_op, **_root, **_comm_stream}),
    "ncclBcast": Function("2.3.5", c_int, {"buff": c_void_p, "count": c_size_t, "datatype": c_int, **_root, **_comm_stream}),
    "ncclBroadcast": Function("2.3.5", c_int, {**_move, **_root, **_comm_stream}),
    "ncclAllReduce": Function("2.3.5", c_int, {**_move, **_op, **_comm_stream}),
    "ncclReduceScatter": Function("2.3.5", c_int, {"sendbuff": c_void_p, "recvbuff": c_void_p, "recvcount": c_size_t, "datatype": c_int, **_op, **_comm_stream}),
    "ncclAllGather": Function("2.3.5", c_int, {"sendbuff": c_void_p, "recvbuff": c_void_p, "sendcount": c_size_t, "datatype": c_int, **_comm_stream}),
    "ncclGroupStart": Function("2.3.5", c_int, {}),
    "ncclGroupEnd": Function("2.3.5", c_int, {}),
    "ncclCommAbort": Function("2.4.2", c_int, {**_comm}),
    "ncclCommGetAsyncError": Function("2.4.2", c_int, {**_comm, "asyncError": POINTER(c_int)}),
    "ncclSend": Function("2.7.3", c_int, {"sendbuff": c_void_p, "count": c_size_t, "datatype": c_int, "peer": c_int, **_comm_stream}),
    "ncclRecv": Function("2.7.3", c_int, {"recvbuff": c_void_p, "count": c_size_t, "datatype": c_int, "peer": c_int, **_comm_stream}),
    "ncclRedOpCreatePreMulSum": Function("2.11.4", c_int, {**_scalar, "residence": c_int, **_comm}),
    "ncclRedOpDestroy": Function("2.11.4", c_int, {**_op, **_comm}),
    "ncclGetLastError": Function("2.13.4", c_char_p, {**_comm}),
    "ncclCommInitRankConfig": Function("2.14.3", c_int, {**_rank, "rank": c_int, **_config}),
    "ncclCommFinalize": Function("2.14.3", c_int, {**_comm}),
    "ncclCommSplit": Function("2.18.1", c_int, {**_comm, "color": c_int, "key": c_int, **_new}),
    "ncclMemAlloc": Function("2.19.1", c_int, {"ptr": POINTER(c_void_p), "size": c_size_t}),
    "ncclMemFree": Function("2.19.1", c_int, {"ptr": c_void_p}),
    "ncclCommRegister": Function("2.19.1", c_int, {**_register, "handle": POINTER(c_void_p)}),
    "ncclCommDeregister": Function("2.19.1", c_int, {**_comm, "handle": c_void_p}),
    "ncclGroupSimulateEnd": Function("2.22.3", c_int, {"simInfo": c_void_p}),
    "ncclCommInitRankScalable": Function("2.23.4", c_int, {**_scalable, "nId": c_int, "commIds": POINTER(UniqueIdStruct), **_config}),
    "ncclResetDebugInit": Function("2.24.3", None, {}),
    "ncclCommShrink": Function("2.27.3", c_int, {**_exclude, "excludeRanksCount": c_int, **_new, "shrinkFlags": c_int}),
    "ncclCommWindowRegister": Function("2.27.3", c_int, {**_register, "win": POINTER(c_void_p), "winFlags": c_int}),
    "ncclCommWindowDeregister": Function("2.27.3", c_int, {**_window}),
    "ncclAlltoAll": Function("2.28.3", c_int, {**_move, **_comm_stream}),
    "ncclGather": Function("2.28.3", c_int, {**_move, **_root, **_comm_stream}),
    "ncclScatter": Function("2.28.3", c_int, {**_move, **_root, **_comm_stream}),
    "ncclCommRevoke": Function("2.28.7", c_int, {**_comm, "revokeFlags": c_int}),
    "ncclCommGetUniqueId": Function("2.29.2", c_int, {**_comm, **_id}),
    "ncclCommGrow": Function("2.29.2", c_int, {**_comm, "nRanks": c_int, **_id, "rank": c_int, **_new}),
    "ncclWinGetUserPtr": Function("2.29.2", c_int, {**_window, "outUserPtr": POINTER(c_void_p)}),
    "ncclPutSignal": Function("2.29.2", c_int, {**_put, "peerWin": c_void_p, "peerWinOffset": c_size_t, **_signal, **_comm_stream}),
    "ncclSignal": Function("2.29.2", c_int, {"peer": c_int, **_signal, **_comm_stream}),
    "ncclWaitSignal": Function("2.29.2", c_int, {"nDesc": c_int, "signalDescs": c_void_p, **_comm_stream}),
    "ncclCommSuspend": Function("2.29.7", c_int, {**_comm, "flags": c_int}),
    "ncclCommResume": Function("2.29.7", c_int, {**_comm}),
    "ncclCommMemStats": Function("2.29.7", c_int, {**_comm, "stat": c_int, "value": POINTER(c_uint64)}),
    "ncclParamBind": Function("2.30.4", c_int, {"out": POINTER(c_void_p), "key": c_char_p}),
    "ncclParamGetI8": Function("2.30.4", c_int, {**_param, "out": POINTER(c_int8)}),
    "ncclParamGetI16": Function("2.30.4", c_int, {**_param, "out": POINTER(c_int16)}),
    "ncclParamGetI32": Function("2.30.4", c_int, {**_param, "out": POINTER(c_int32)}),
    "ncclParamGetI64": Function("2.30.4", c_int, {**_param, "out": POINTER(c_int64)}),
    "ncclParamGetU8": Function("2.30.4", c_int, {**_param, "out": POINTER(c_uint8)}),
    "ncclParamGetU16": Function("2.30.4", c_int, {**_param, "out": POINTER(c_uint16)}),
    "ncclParamGetU32": Function("2.30.4", c_int, {**_param, "out": POINTER(c_uint32)}),
    "ncclParamGetU64": Function("2.30.4", c_int, {**_param, "out": POINTER(c_uint64)}),
    "ncclParamGetStr": Function("2.30.4", c_int, {**_param, "out": POINTER(c_char_p)}),
    "ncclParamGet": Function("2.30.4", c_int, {**_param, "out": c_void_p, "maxLen": c_int, "len": POINTER(c_int)}),
    "ncclParamGetParameter": Function("2.30.4", c_int, {"key": c_char_p, "value": POINTER(c_char_p), "valueLen": POINTER(c_int)}),
    "ncclParamGetAllParameterKeys": Function("2.30.4", c_int, {"table": POINTER(POINTER(c_char_p)), "tableLen": POINTER(c_int)}),
    "ncclParamDumpAll": Function("2.30.4", None, {}),
    "ncclAllReduceConfig": Function("2.31.2", c_int, {**_move, **_op, **_comm_stream, **_config}),
    "ncclBroadcastConfig": Function("2.31.2", c_int, {**_move, **_root, **_comm_stream, **_config}),
    "ncclReduceConfig": Function("2.31.2", c_int, {**_move, **_op, **_root, **_comm_stream, **_config}),
    "ncclAllGatherConfig": Function("2.31.2", c_int, {"sendbuff": c_void_p, "recvbuff": c_void_p, "sendcount": c_size_t, "datatype": c_int, **_comm_stream, **_config}),
    "ncclReduceScatterConfig": Function("2.31.2", c_int, {"sendbuff": c_void_p, "recvbuff": c_void_p, "recvcount": c_size_t, "datatype": c_int, **_op, **_comm_stream, **_config}),
    "ncclAlltoAllConfig": Function("2.31.2", c_int, {**_move, **_comm_stream, **_config}),
    "ncclGatherConfig": Function("2.31.2", c_int, {**_move, **_root, **_comm_stream, **_config}),
    "ncclScatterConfig": Function("2.31.2", c_int, {**_move, **_root, **_comm_stream, **_config}),
    "ncclSetEncryption": Function("2.32.3", c_int, {**_config}),
}
# fmt: on
