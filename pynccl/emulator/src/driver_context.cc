#include "board.h"
#include "device_heap.h"
#include "driver.h"

using namespace emu;

namespace {

Context* as_context(CUcontext handle) { return reinterpret_cast<Context*>(handle); }
CUcontext as_handle(Context* context) { return reinterpret_cast<CUcontext>(context); }

CUresult make_context(CUcontext* handle, unsigned flags, CUdevice device) {
  return driver_call([&]() -> CUresult {
    if (handle == nullptr || (flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    if (heap_of_device(device).fd() < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    Context* const context = create_context(device, flags);
    push_context(context);
    *handle = as_handle(context);
    return CUDA_SUCCESS;
  });
}

template <class Body>
CUresult primary_call(CUdevice device, Body&& body) {
  return driver_call([&]() -> CUresult {
    Context* const primary = primary_context(device);
    return primary == nullptr ? CUDA_ERROR_INVALID_DEVICE : body(*primary);
  });
}

// The context of a handle, or the current one for a null handle.
template <class Body>
CUresult named_context_call(CUcontext handle, Body&& body) {
  if (handle == nullptr) return context_call(body);
  return driver_call([&]() -> CUresult {
    Context* const context = as_context(handle);
    return is_live_context(context) ? body(*context) : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUresult synchronize(Context& context) {
  if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  if (capture_forbids_here()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  before_host_wait({context.device});
  for (const Mark& mark : Stream::pending(context.device)) mark.wait();
  if (costly_checks()) races::host_saw_device(context.device);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// The device's memory and streams live as long as the process, whether its primary context is
// retained or not: only what the counts say changes.
CU_API CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
  return primary_call(device, [&](Context& primary) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (heap_of_device(device).fd() < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    primary.retained.fetch_add(1);
    *handle = as_handle(&primary);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return primary_call(device, [](Context& primary) {
    int retained = primary.retained.load();
    do {
      if (retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    } while (!primary.retained.compare_exchange_weak(retained, retained - 1));
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  return primary_call(device, [&](Context& primary) {
    if ((flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    primary.flags = flags;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return primary_call(device, [&](Context& primary) {
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = primary.flags;
    *active = primary.retained > 0;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxCreate_v2(CUcontext* handle, unsigned flags, CUdevice device) {
  return make_context(handle, flags, device);
}

CU_API CUresult cuCtxCreate_v3(CUcontext* handle, void* affinities, int count, unsigned flags,
                               CUdevice device) {
  if (affinities != nullptr || count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return make_context(handle, flags, device);
}

CU_API CUresult cuCtxCreate_v4(CUcontext* handle, void* parameters, unsigned flags,
                               CUdevice device) {
  if (parameters != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return make_context(handle, flags, device);
}

CU_API CUresult cuCtxDestroy_v2(CUcontext handle) {
  return driver_call([&]() -> CUresult {
    return destroy_context(as_context(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CU_API CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return driver_call([&]() -> CUresult {
    if (!is_live_context(as_context(handle))) return CUDA_ERROR_INVALID_CONTEXT;
    push_context(as_context(handle));
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  return driver_call([&]() -> CUresult {
    Context* const top = pop_context();
    if (top == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle != nullptr) *handle = as_handle(top);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxSetCurrent(CUcontext handle) {
  return driver_call([&]() -> CUresult {
    if (handle != nullptr && !is_live_context(as_context(handle))) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    set_current_context(as_context(handle));
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxGetCurrent(CUcontext* handle) {
  return driver_call([&]() -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *handle = as_handle(current_context());
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  return named_context_call(handle, [&](Context& context) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context.device;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxGetDevice(CUdevice* device) { return cuCtxGetDevice_v2(device, nullptr); }

CU_API CUresult cuCtxGetFlags(unsigned* flags) {
  return context_call([&](Context& context) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = context.flags;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxSetFlags(unsigned flags) {
  return context_call([&](Context& context) {
    if ((flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    context.flags = flags;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return named_context_call(handle, [&](Context& context) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = context.id;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  return named_context_call(handle, [&](Context&) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;  // what all drivers of today answer
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuCtxSynchronize_v2(CUcontext handle) {
  return named_context_call(handle, synchronize);
}

CU_API CUresult cuCtxSynchronize() { return cuCtxSynchronize_v2(nullptr); }

CU_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return context_call([&](Context&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

// Every device of a process reaches every other's memory at all times; the calls are for programs
// that ask first.
CU_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return context_call([&](Context& context) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_live_context(as_context(peer))) return CUDA_ERROR_INVALID_CONTEXT;
    const int device = as_context(peer)->device;
    if (device == context.device) return CUDA_ERROR_INVALID_DEVICE;
    return enable_peer(context, device) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

CU_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return context_call([&](Context& context) {
    if (!is_live_context(as_context(peer))) return CUDA_ERROR_INVALID_CONTEXT;
    const int device = as_context(peer)->device;
    return disable_peer(context, device) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  });
}

}  // extern "C"

ALSO_AS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);
ALSO_AS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);
ALSO_AS(cuCtxCreate, cuCtxCreate_v2);
ALSO_AS(cuCtxDestroy, cuCtxDestroy_v2);
ALSO_AS(cuCtxPushCurrent, cuCtxPushCurrent_v2);
ALSO_AS(cuCtxPopCurrent, cuCtxPopCurrent_v2);

std::vector<DriverFunction> emu::context_functions() {
  return {
      row<&cuDevicePrimaryCtxRetain>("cuDevicePrimaryCtxRetain", 7000),
      row<&cuDevicePrimaryCtxRelease_v2>("cuDevicePrimaryCtxRelease", 7000),
      row<&cuDevicePrimaryCtxSetFlags_v2>("cuDevicePrimaryCtxSetFlags", 7000),
      row<&cuDevicePrimaryCtxGetState>("cuDevicePrimaryCtxGetState", 7000),
      row<&cuCtxCreate_v2>("cuCtxCreate", 3020),
      row<&cuCtxCreate_v3>("cuCtxCreate", 11040),
      row<&cuCtxCreate_v4>("cuCtxCreate", 12050),
      row<&cuCtxDestroy_v2>("cuCtxDestroy", 4000),
      row<&cuCtxPushCurrent_v2>("cuCtxPushCurrent", 4000),
      row<&cuCtxPopCurrent_v2>("cuCtxPopCurrent", 4000),
      row<&cuCtxSetCurrent>("cuCtxSetCurrent", 4000),
      row<&cuCtxGetCurrent>("cuCtxGetCurrent", 4000),
      row<&cuCtxGetDevice>("cuCtxGetDevice", 2000),
      row<&cuCtxGetDevice_v2>("cuCtxGetDevice", 13000),
      row<&cuCtxGetFlags>("cuCtxGetFlags", 7000),
      row<&cuCtxSetFlags>("cuCtxSetFlags", 12010),
      row<&cuCtxGetId>("cuCtxGetId", 12000),
      row<&cuCtxGetApiVersion>("cuCtxGetApiVersion", 3020),
      row<&cuCtxSynchronize>("cuCtxSynchronize", 2000),
      row<&cuCtxSynchronize_v2>("cuCtxSynchronize", 13000),
      row<&cuCtxGetStreamPriorityRange>("cuCtxGetStreamPriorityRange", 5050),
      row<&cuCtxEnablePeerAccess>("cuCtxEnablePeerAccess", 4000),
      row<&cuCtxDisablePeerAccess>("cuCtxDisablePeerAccess", 4000),
  };
}
