#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda_abi.h"
#include "device_heap.h"
#include "stream.h"

namespace emu {

// Host memory that the driver allocated or that was registered with it.
struct PinnedRange {
  std::uintptr_t base;
  std::size_t bytes;
  unsigned flags;
  bool registered;
  int device;  // of the context it was made in
  std::uint64_t id;
};

// False where the range overlaps one that is pinned already.
bool add_pinned(void* base, std::size_t bytes, unsigned flags, bool registered, int device);
// The range that began at `base` until now.
std::optional<PinnedRange> remove_pinned(void* base, bool registered);
std::optional<PinnedRange> find_pinned(std::uintptr_t address);

enum class MemoryKind { device, managed, pinned, pageable };

// Which memory [pointer, pointer + bytes) is. CUDA_ERROR_INVALID_VALUE for null, for device memory
// that is not allocated, and for a range that runs past its allocation.
CUresult classify(const void* pointer, std::size_t bytes, MemoryKind* kind);

// Memory that a device can reach by itself: all but pageable host memory.
CUresult check_device_range(const void* pointer, std::size_t bytes);

// Allocates, if need be after waiting for freed memory that queued work still used.
void* allocate_device_memory(int device, std::size_t bytes, bool managed, void* pool);

// Who is to be told of device memory that is about to be freed: NCCL keeps what is registered.
EMU_API void set_before_free(void (*tell)(std::uintptr_t base, std::size_t bytes));

// Ends an allocation: the pointer is invalid at once, and its memory is allocated again only when
// the work queued on the device so far has run. False for what is no allocation.
EMU_API bool free_device_memory(void* base);
// The same after given work.
bool free_device_memory_after(void* base, std::vector<Mark> work);
// The same for host memory of the driver, and the work of all devices.
bool free_pinned_memory(void* base);

}  // namespace emu
