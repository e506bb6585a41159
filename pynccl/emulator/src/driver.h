#pragma once

#include <initializer_list>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "graph_capture.h"
#include "context.h"
#include "cuda_abi.h"
#include "stream.h"

namespace emu {

// The C header gives functions with a version in their name under the plain one too. Programs that
// look names up themselves may ask for either.
#define ALSO_AS(plain, versioned) \
  extern "C" CU_API decltype(versioned) plain __attribute__((alias(#versioned)))

// A row of the look-up behind cuGetProcAddress.
struct DriverFunction {
  const char* name;
  int since;         // first CUDA version that means this function by the name
  void* function;
  void* per_thread;  // where the handle 0 means the per-thread default stream
};

template <auto function>
struct PerThread;

template <class... Arguments, CUresult (*function)(Arguments...)>
struct PerThread<function> {
  static CUresult call(Arguments... arguments) {
    const PerThreadDefault own;
    return function(arguments...);
  }
};

template <auto function>
DriverFunction row(const char* name, int since) {
  return {name, since, reinterpret_cast<void*>(function),
          reinterpret_cast<void*>(&PerThread<function>::call)};
}

// One per driver_*.cc.
std::vector<DriverFunction> context_functions();
std::vector<DriverFunction> copy_functions();
std::vector<DriverFunction> device_functions();
std::vector<DriverFunction> graph_functions();
std::vector<DriverFunction> memory_functions();
std::vector<DriverFunction> pool_functions();
std::vector<DriverFunction> stream_functions();

// CUDA_SUCCESS after cuInit, in the process that called it.
CUresult initialized();

// Whether the calling thread runs a host function of a stream: it may not wait for streams there.
bool in_host_function();

// Notes what the next operation of the stream touches; CUDA_ERROR_ILLEGAL_STATE where it races.
CUresult in_order(Stream& stream, std::initializer_list<races::Access> accesses);
// The same for the text of a race; CUDA_SUCCESS for an empty one.
CUresult refuse_race(std::string text);

// Runs the body of a driver function, where the driver is initialized; no exception leaves it.
template <class Body>
CUresult driver_call(Body&& body) {
  if (const CUresult result = initialized()) return result;
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::system_error&) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
}

// The same for a function that needs a current context.
template <class Body>
CUresult context_call(Body&& body) {
  return driver_call([&]() -> CUresult {
    Context* const context = current_context();
    if (context == nullptr || !is_live_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    return body(*context);
  });
}

// The same for a function that takes a stream.
template <class Body>
CUresult stream_call(CUstream handle, Body&& body) {
  return driver_call([&]() -> CUresult {
    const std::shared_ptr<Stream> stream = find_stream(handle);
    if (stream == nullptr) {
      return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    }
    return body(*stream);
  });
}

// The same for a function that gives work to the stream, or waits for it.
template <class Body>
CUresult work_call(CUstream handle, Body&& body) {
  return stream_call(handle, [&](Stream& stream) -> CUresult {
    if (stream.kind() == StreamKind::legacy && spoil_implicitly_ordered_captures(stream.device())) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return body(stream);
  });
}

}  // namespace emu
