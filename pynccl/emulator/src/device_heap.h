#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "device.h"

namespace emu {

struct Allocation {
  std::uintptr_t base;
  std::size_t bytes;
  std::uint64_t id = 0;   // of this allocation alone, in this process
  bool managed = false;
  void* pool = nullptr;   // the memory pool that it came from
};

// Memory of one emulated GPU in this process: a sparse memfd, mapped once and for the life of the
// process, with an allocator over it. All functions are thread safe.
class EMU_API DeviceHeap {
 public:
  explicit DeviceHeap(int device);

  int device() const { return device_; }
  // The memfd; a process of the same user opens it as /proc/PID/fd/N. -1 where the system gave none.
  int fd() const { return fd_; }
  std::uintptr_t base() const { return base_; }
  std::size_t capacity() const { return capacity_; }
  std::size_t used() const;

  // Null when the GPU's memory does not suffice.
  void* allocate(std::size_t bytes) { return allocate(bytes, false, nullptr); }
  void* allocate(std::size_t bytes, bool managed, void* pool);
  // False where `base` is not the start of a live allocation.
  bool release(void* base);
  // The live allocation that contains `address`.
  std::optional<Allocation> find(std::uintptr_t address) const;

  // The two halves of release(): from retire() on the allocation is not live, but queued work may
  // still use its memory; reclaim() lets the memory be allocated again.
  std::optional<Allocation> retire(void* base);
  void reclaim(std::uintptr_t base);

  bool contains(std::uintptr_t address) const { return address - base_ < capacity_; }

 private:
  std::size_t take(std::size_t bytes);  // offset, npos when there is no room
  void give_back(std::size_t offset, std::size_t bytes);
  void insert_free(std::size_t offset, std::size_t bytes);
  void erase_free(std::map<std::size_t, std::size_t>::iterator at);

  const int device_;
  int fd_ = -1;
  std::uintptr_t base_ = 0;
  std::size_t capacity_ = 0;

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Allocation> live_;
  std::map<std::uintptr_t, std::size_t> retired_;         // base to bytes
  std::map<std::size_t, std::size_t> free_;               // offset to bytes
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // bytes, offset
  std::size_t used_ = 0;
};

// Made on first use.
EMU_API DeviceHeap& heap_of_device(int ordinal);

// The GPU of this process whose address range contains the pointer, null for host memory.
EMU_API DeviceHeap* heap_containing(const void* pointer);

// The id of the live allocation on any GPU that contains the address, 0 for none.
EMU_API std::uint64_t allocation_at(std::uintptr_t address);

}  // namespace emu
