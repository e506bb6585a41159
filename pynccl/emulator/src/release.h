#pragma once

namespace emu {

// Number of the release of NCCL that this libnccl stands in for, as ncclGetVersion tells it.
extern const int release;

}  // namespace emu
