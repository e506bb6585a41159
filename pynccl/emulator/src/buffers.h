#pragma once

#include "communicator.h"

namespace emu {

// Refuses what would crash or corrupt memory on a GPU: host pointers, another GPU's memory, ranges
// that run past their allocation, send and receive buffers that overlap without being in place.
// Notes the allocations in the operation.
ncclResult_t check_buffers(Operation& operation, const Communicator& communicator);

// Refuses what was freed since check_buffers(), as a buffer may be while a group holds its operation.
ncclResult_t check_kept(const Operation& operation, const Communicator& communicator);

}  // namespace emu
