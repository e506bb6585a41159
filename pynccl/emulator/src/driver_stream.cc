#include "board.h"
#include "driver.h"
#include "event.h"

using namespace emu;

namespace {

thread_local int host_functions = 0;

// Runs what a user gave to a stream. Not noexcept: a foreign thread that enters an ending
// interpreter is unwound through here.
struct InHostFunction {
  InHostFunction() { ++host_functions; }
  ~InHostFunction() { --host_functions; }
};

CUcontext context_of(const Stream& stream) {
  return reinterpret_cast<CUcontext>(primary_context(stream.device()));
}

// Whether the stream captures: the call cannot be part of a graph, and ends the hope for one.
bool spoil_capture_of(const Stream& stream) {
  const auto point = stream.capture_point();
  if (point != nullptr) point->capture->spoil();
  return point != nullptr;
}

CUresult create_stream(CUstream* handle, unsigned flags, int priority) {
  return context_call([&](Context& context) {
    if (handle == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const StreamKind kind = flags == 0 ? StreamKind::blocking : StreamKind::nonblocking;
    const int clamped = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    *handle = register_stream(Stream::create(context.device, kind, clamped));
    return CUDA_SUCCESS;
  });
}

template <class Body>
CUresult event_call(CUevent handle, Body&& body) {
  return driver_call([&]() -> CUresult {
    const std::shared_ptr<Event> event = find_event(handle);
    return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*event);
  });
}

}  // namespace

bool emu::in_host_function() { return host_functions > 0; }

extern "C" {

CU_API CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
  return create_stream(handle, flags, priority);
}

CU_API CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
  return create_stream(handle, flags, 0);
}

CU_API CUresult cuStreamDestroy_v2(CUstream handle) {
  return driver_call([&]() -> CUresult {
    const std::shared_ptr<Stream> stream = unregister_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    stream->close();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return stream_call(handle, [&](Stream& stream) {
    if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream.priority();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return stream_call(handle, [&](Stream& stream) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool nonblocking = stream.kind() == StreamKind::nonblocking;
    *flags = nonblocking ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return stream_call(handle, [&](Stream& stream) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = stream.id();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return stream_call(handle, [&](Stream& stream) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = context_of(stream);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, void** green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(handle, context);
}

CU_API CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return stream_call(handle, [&](Stream& stream) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = stream.device();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamQuery(CUstream handle) {
  return work_call(handle, [](Stream& stream) {
    if (spoil_capture_of(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!stream.idle()) return CUDA_ERROR_NOT_READY;
    if (costly_checks()) stream.tail().host_saw();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamSynchronize(CUstream handle) {
  return work_call(handle, [](Stream& stream) {
    if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
    if (spoil_capture_of(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    before_host_wait({stream.device(), &stream});
    stream.tail().wait();
    return CUDA_SUCCESS;
  });
}

// Not of CUDA: waits so long at most, and is CUDA_ERROR_NOT_READY where that was not enough. A
// caller that must look after signals or a timeout waits in slices. The default streams are the
// device's, whichever is current. `for_good` is 0 where it will soon give up.
CU_API CUresult pynccl_stream_wait(int device, CUstream handle, unsigned milliseconds,
                                   int for_good) {
  return driver_call([&] {
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
    const std::shared_ptr<Stream> stream = find_stream_of(device, handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    before_host_wait({device, stream.get()});
    const Mark tail = stream->tail();
    if (tail.reached()) {
      tail.host_saw();
      return CUDA_SUCCESS;
    }
    if (for_good != 0) set_host_waiting_in_slices();
    const bool reached = tail.wait_for(std::chrono::milliseconds(milliseconds));
    if (for_good != 0 && !reached) set_host_waiting_in_slices();
    if (reached) set_host_state(HostState::active);
    return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CU_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  return work_call(handle, [&](Stream& stream) -> CUresult {
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    return event_call(event, [&](Event& found) -> CUresult {
      const auto record = found.last();
      if (record == nullptr) return CUDA_SUCCESS;
      const bool captured = record->mark.captured != nullptr;
      if (stream.capturing() && !captured && (flags & 1) == 0) {
        spoil_capture_of(stream);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
      }
      if (stream.kind() == StreamKind::legacy && captured) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
      if (stream.wait_for(record->mark)) return CUDA_SUCCESS;
      spoil_capture_of(stream);
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    });
  });
}

CU_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return work_call(handle, [&](Stream& stream) {
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto work = [function, data] {
      const InHostFunction scope;
      function(data);
    };
    stream.enqueue(work, WorkKind::host);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                                    unsigned flags) {
  return work_call(handle, [&](Stream& stream) {
    if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (spoil_capture_of(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream.enqueue([callback, handle, data] {
      const InHostFunction scope;
      callback(handle, CUDA_SUCCESS, data);
    }, WorkKind::host);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  return context_call([&](Context& context) {
    constexpr unsigned known =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (handle == nullptr || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    *handle = register_event(std::make_shared<Event>(context.device, flags));
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuEventDestroy_v2(CUevent handle) {
  return driver_call([&]() -> CUresult {
    return unregister_event(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

CU_API CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
  return work_call(handle, [&](Stream& stream) -> CUresult {
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    return event_call(event, [&](Event& found) {
      if (found.device != stream.device()) return CUDA_ERROR_INVALID_HANDLE;
      found.record(stream);
      return CUDA_SUCCESS;
    });
  });
}

CU_API CUresult cuEventRecord(CUevent event, CUstream handle) {
  return cuEventRecordWithFlags(event, handle, 0);
}

CU_API CUresult cuEventQuery(CUevent event) {
  return event_call(event, [](Event& found) {
    const auto record = found.last();
    if (record == nullptr) return CUDA_SUCCESS;
    if (record->mark.captured != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
    if (!record->mark.reached()) return CUDA_ERROR_NOT_READY;
    record->mark.host_saw();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuEventSynchronize(CUevent event) {
  return event_call(event, [](Event& found) {
    if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
    const auto record = found.last();
    if (record == nullptr) return CUDA_SUCCESS;
    if (record->mark.captured != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
    before_host_wait({found.device, record->mark.stream.get(), record->number});
    record->mark.wait();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return event_call(start, [&](Event& first) -> CUresult {
    return event_call(end, [&](Event& second) {
      if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
      const auto from = first.last();
      const auto to = second.last();
      const unsigned flags = first.flags | second.flags;
      if (from == nullptr || to == nullptr || (flags & CU_EVENT_DISABLE_TIMING) != 0 ||
          first.device != second.device) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
      if (from->mark.captured != nullptr || to->mark.captured != nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
      if (!from->mark.reached() || !to->mark.reached()) return CUDA_ERROR_NOT_READY;
      from->mark.host_saw();
      to->mark.host_saw();
      *milliseconds = static_cast<float>(
          static_cast<double>(to->nanoseconds - from->nanoseconds) * 1e-6);
      return CUDA_SUCCESS;
    });
  });
}

CU_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

}  // extern "C"

ALSO_AS(cuStreamDestroy, cuStreamDestroy_v2);
ALSO_AS(cuEventDestroy, cuEventDestroy_v2);

std::vector<DriverFunction> emu::stream_functions() {
  return {
      row<&cuStreamCreate>("cuStreamCreate", 2000),
      row<&cuStreamCreateWithPriority>("cuStreamCreateWithPriority", 5050),
      row<&cuStreamDestroy_v2>("cuStreamDestroy", 4000),
      row<&cuStreamGetPriority>("cuStreamGetPriority", 5050),
      row<&cuStreamGetFlags>("cuStreamGetFlags", 5050),
      row<&cuStreamGetId>("cuStreamGetId", 12000),
      row<&cuStreamGetCtx>("cuStreamGetCtx", 9020),
      row<&cuStreamGetCtx_v2>("cuStreamGetCtx", 12050),
      row<&cuStreamGetDevice>("cuStreamGetDevice", 12080),
      row<&cuStreamQuery>("cuStreamQuery", 2000),
      row<&cuStreamSynchronize>("cuStreamSynchronize", 2000),
      row<&cuStreamWaitEvent>("cuStreamWaitEvent", 3020),
      row<&cuLaunchHostFunc>("cuLaunchHostFunc", 10000),
      row<&cuStreamAddCallback>("cuStreamAddCallback", 5000),
      row<&cuEventCreate>("cuEventCreate", 2000),
      row<&cuEventDestroy_v2>("cuEventDestroy", 4000),
      row<&cuEventRecord>("cuEventRecord", 2000),
      row<&cuEventRecordWithFlags>("cuEventRecordWithFlags", 11010),
      row<&cuEventQuery>("cuEventQuery", 2000),
      row<&cuEventSynchronize>("cuEventSynchronize", 2000),
      row<&cuEventElapsedTime>("cuEventElapsedTime", 2000),
      row<&cuEventElapsedTime_v2>("cuEventElapsedTime", 12080),
  };
}
