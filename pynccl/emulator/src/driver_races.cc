// How the driver's functions refuse what would race; see races.h.

#include <cstdio>

#include "driver.h"
#include "races.h"

using namespace emu;

namespace {

thread_local std::string last_text;

}  // namespace

CUresult emu::in_order(Stream& stream, std::initializer_list<races::Access> accesses) {
  return refuse_race(races::use(stream, accesses.begin(), accesses.size()));
}

// A CUresult carries no text, so that it is printed, once where a program goes on regardless.
CUresult emu::refuse_race(std::string text) {
  if (text.empty()) return CUDA_SUCCESS;
  if (text != last_text) std::fprintf(stderr, "pynccl emulator: %s\n", text.c_str());
  last_text = std::move(text);
  return CUDA_ERROR_ILLEGAL_STATE;
}

extern "C" {

// Not of CUDA: the host is about to read or write GPU memory by itself, or a part of it.
CU_API CUresult pynccl_host_access(void* pointer, std::size_t bytes, int writes) {
  return driver_call([&]() -> CUresult {
    last_text = races::use_by_host(writes != 0
                                       ? races::writes(pointer, bytes, {"the host writes"})
                                       : races::reads(pointer, bytes, {"the host reads"}),
                                   races::Extent::any_part);
    return last_text.empty() ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
  });
}

// Not of CUDA: of the calling thread's last call that was refused for a race.
CU_API const char* pynccl_race() { return last_text.c_str(); }

}  // extern "C"
