#pragma once

#include "driver_faults.h"
#include "group.h"

namespace emu {

// Who calls where no communicator is concerned.
constexpr int launcher = -1;

// The first rank of a communicator, `launcher` where it is none.
int first_rank(ncclComm_t comm);

// The result code that a rehearsal wants of this call of a function, ncclSuccess for none.
ncclResult_t rehearsed_failure(const char* function, int rank);

}  // namespace emu

// Stands at the top of each function of nccl.h.
#define MAY_FAIL(rank)                                                       \
  if (emu::faults_are_set.load(std::memory_order_relaxed)) {                 \
    const ncclResult_t rehearsed = emu::rehearsed_failure(__func__, (rank)); \
    if (rehearsed != ncclSuccess) return emu::note(rehearsed);               \
  }
