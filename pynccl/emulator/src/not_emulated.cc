// Functions of NCCL 2.32 that the emulator does not do: each says so.

#include "error.h"

#define NOT_EMULATED(function)                                                        \
  extern "C" __attribute__((visibility("default"))) ncclResult_t function() {         \
    return emu::fail(ncclInvalidUsage, #function " is not part of the emulator");     \
  }

NOT_EMULATED(ncclMemAlloc)
NOT_EMULATED(ncclMemFree)
NOT_EMULATED(ncclCommRegister)
NOT_EMULATED(ncclCommDeregister)
NOT_EMULATED(ncclGroupSimulateEnd)
NOT_EMULATED(ncclCommInitRankScalable)
extern "C" __attribute__((visibility("default"))) void ncclResetDebugInit() {}
NOT_EMULATED(ncclCommShrink)
NOT_EMULATED(ncclCommWindowRegister)
NOT_EMULATED(ncclCommWindowDeregister)
NOT_EMULATED(ncclCommRevoke)
NOT_EMULATED(ncclCommGetUniqueId)
NOT_EMULATED(ncclCommGrow)
NOT_EMULATED(ncclWinGetUserPtr)
NOT_EMULATED(ncclPutSignal)
NOT_EMULATED(ncclSignal)
NOT_EMULATED(ncclWaitSignal)
NOT_EMULATED(ncclCommSuspend)
NOT_EMULATED(ncclCommResume)
NOT_EMULATED(ncclCommMemStats)
NOT_EMULATED(ncclParamBind)
NOT_EMULATED(ncclParamGetI8)
NOT_EMULATED(ncclParamGetI16)
NOT_EMULATED(ncclParamGetI32)
NOT_EMULATED(ncclParamGetI64)
NOT_EMULATED(ncclParamGetU8)
NOT_EMULATED(ncclParamGetU16)
NOT_EMULATED(ncclParamGetU32)
NOT_EMULATED(ncclParamGetU64)
NOT_EMULATED(ncclParamGetStr)
NOT_EMULATED(ncclParamGet)
NOT_EMULATED(ncclParamGetParameter)
NOT_EMULATED(ncclParamGetAllParameterKeys)
extern "C" __attribute__((visibility("default"))) void ncclParamDumpAll() {}
NOT_EMULATED(ncclAllReduceConfig)
NOT_EMULATED(ncclBroadcastConfig)
NOT_EMULATED(ncclReduceConfig)
NOT_EMULATED(ncclAllGatherConfig)
NOT_EMULATED(ncclReduceScatterConfig)
NOT_EMULATED(ncclAlltoAllConfig)
NOT_EMULATED(ncclGatherConfig)
NOT_EMULATED(ncclScatterConfig)
NOT_EMULATED(ncclSetEncryption)
