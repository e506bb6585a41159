#pragma once

#include <vector>

#include "nccl_abi.h"
#include "operation.h"
#include "stream.h"

namespace emu {

// Notes what the operations of one launch, on one rank, read and write in the stream's order.
// ncclInvalidUsage where that races with other work; see races.h.
ncclResult_t check_races(const std::vector<Operation>& operations, Stream& stream, int rank,
                         int nranks);

}  // namespace emu
