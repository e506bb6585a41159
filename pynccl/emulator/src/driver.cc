#include "driver.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_map>

namespace emu {

namespace {

std::atomic<bool> initialized_here{false};

struct Found {
  const char* name;
  const char* text;
};

const Found* describe(CUresult result) {
  static const std::unordered_map<int, Found> known = {
#define AS_ENTRY(name, value, text) {value, {#name, text}},
      CUDA_RESULTS(AS_ENTRY)
#undef AS_ENTRY
  };
  const auto found = known.find(result);
  return found == known.end() ? nullptr : &found->second;
}

}  // namespace

CUresult initialized() {
  if (in_forked_child() || !initialized_here.load(std::memory_order_acquire)) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  return CUDA_SUCCESS;
}

}  // namespace emu

using namespace emu;

extern "C" {

CU_API CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (in_forked_child()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!configuration_error().empty()) {
    std::fprintf(stderr, "pynccl emulator: %s\n", configuration_error().c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (device_count() == 0) return CUDA_ERROR_NO_DEVICE;
  watch_for_fork();
  initialized_here.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

CU_API CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CU_API CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* const found = describe(error);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CU_API CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* const found = describe(error);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CU_API CUresult cuGetProcAddress_v2(const char* name, void** function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult* status);

CU_API CUresult cuGetProcAddress(const char* name, void** function, int version,
                                 cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

}  // extern "C"

namespace {

// Rows of one name, oldest first.
using LookUp = std::unordered_map<std::string, std::vector<DriverFunction>>;

std::vector<DriverFunction> own_functions() {
  return {
      row<&cuInit>("cuInit", 2000),
      row<&cuDriverGetVersion>("cuDriverGetVersion", 2020),
      row<&cuGetErrorName>("cuGetErrorName", 6000),
      row<&cuGetErrorString>("cuGetErrorString", 6000),
      row<&cuGetProcAddress>("cuGetProcAddress", 11030),
      row<&cuGetProcAddress_v2>("cuGetProcAddress", 12000),
  };
}

const LookUp& look_up() {
  static const LookUp* const made = [] {
    auto* const names = new LookUp;
    for (const auto& functions :
         {own_functions(), device_functions(), context_functions(), memory_functions(),
          pool_functions(), copy_functions(), stream_functions(), graph_functions()}) {
      for (const DriverFunction& function : functions) {
        (*names)[function.name].push_back(function);
      }
    }
    return names;
  }();
  return *made;
}

}  // namespace

extern "C" CU_API CUresult cuGetProcAddress_v2(const char* name, void** function, int version,
                                               cuuint64_t flags,
                                               CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto answer = [&](void* address, CUdriverProcAddressQueryResult query) {
    *function = address;
    if (status != nullptr) *status = query;
    return address == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
  };
  const auto named = look_up().find(name);
  if (named == look_up().end()) return answer(nullptr, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const DriverFunction* newest = nullptr;
  for (const DriverFunction& candidate : named->second) {
    if (candidate.since <= version) newest = &candidate;
  }
  if (newest == nullptr) return answer(nullptr, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  return answer(per_thread ? newest->per_thread : newest->function, CU_GET_PROC_ADDRESS_SUCCESS);
}
