#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "device.h"

namespace emu {

struct Allocation {
  std::uintptr_t base;
  std::size_t bytes;
};

// Memory of one emulated GPU in this process: a sparse memfd, mapped once and for the life of the
// process, with an allocator over it. All functions are thread safe.
class EMU_API DeviceHeap {
 public:
  int device() const;
  // The memfd; a process of the same user opens it as /proc/PID/fd/N.
  int fd() const;
  std::uintptr_t base() const;
  std::size_t capacity() const;
  std::size_t used() const;

  // Null when the GPU's memory does not suffice. Aligned to 256 bytes.
  void* allocate(std::size_t bytes);
  // False where `base` is not the start of a live allocation.
  bool release(void* base);
  // The live allocation that contains `address`.
  std::optional<Allocation> find(std::uintptr_t address) const;
};

// Made on first use.
EMU_API DeviceHeap& heap_of_device(int ordinal);

// The GPU of this process whose address range contains the pointer, null for host memory.
EMU_API DeviceHeap* heap_containing(const void* pointer);

}  // namespace emu
