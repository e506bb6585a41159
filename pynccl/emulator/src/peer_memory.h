#pragma once

#include <cstdint>
#include <memory>

#include "region.h"

namespace emu {

// The memory of a peer's GPU as this process sees it.
class PeerMemory {
 public:
  ~PeerMemory();
  unsigned char* at(std::uint64_t peer_address) const {
    return base_ + (peer_address - peer_base_);
  }

  // Maps the heap of the rank, or finds the mapping that another communicator of this process
  // has. Null with last_error() where the peer's process has gone.
  static std::shared_ptr<PeerMemory> map(const RankRecord& rank);

 private:
  unsigned char* base_ = nullptr;
  std::uint64_t peer_base_ = 0;
  std::size_t mapped_bytes_ = 0;  // 0 for a heap of this very process
};

}  // namespace emu
