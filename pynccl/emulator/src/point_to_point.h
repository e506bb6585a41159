#pragma once

#include <cstdint>
#include <vector>

#include "operation.h"

namespace emu {

// The operations between this rank and one other in one direction, in their order.
struct Flow {
  int peer;
  std::vector<const Operation*> operations;
  std::size_t next = 0;       // the first that is not yet posted or received
  std::uint32_t expected = 0;  // of sends: what the queue's count of receives must reach
};

// The sends and receives of one group, which proceed together.
struct Exchange {
  explicit Exchange(const std::vector<Operation>& operations);

  std::vector<Flow> sends;
  std::vector<Flow> receives;
};

}  // namespace emu
