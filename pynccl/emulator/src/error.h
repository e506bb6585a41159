#pragma once

#include <string>

#include "nccl_abi.h"

namespace emu {

// Remembers `text` as the calling thread's last error and returns the code.
__attribute__((format(printf, 2, 3))) ncclResult_t fail(ncclResult_t code, const char* text, ...);

const std::string& last_error();
void set_last_error(std::string text);

__attribute__((format(printf, 1, 2))) std::string format(const char* text, ...);

}  // namespace emu
