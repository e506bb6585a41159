#pragma once

#include "communicator.h"

namespace emu {

// Refuses what would crash or corrupt memory on a GPU: host pointers, another GPU's memory, ranges
// that run past their allocation, send and receive buffers that overlap without being in place.
ncclResult_t check_buffers(const Operation& operation, const Communicator& communicator);

}  // namespace emu
