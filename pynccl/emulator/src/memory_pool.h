#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "device.h"

struct CUmemPoolHandle_st;

namespace emu {

// What a CUmemoryPool names. Pools of a device share its heap, so that a pool holds no memory but
// what is allocated from it.
struct MemoryPool {
  const int device;
  const bool is_default;
  const std::uint64_t limit;  // bytes, 0 for none
  std::atomic<std::uint64_t> used{0};
  std::atomic<std::uint64_t> used_high{0};
  std::atomic<std::uint64_t> release_threshold{0};
  std::atomic<int> reuse[3] = {1, 1, 1};  // hints, kept for whoever asks

  // Which other devices were given access: told to whoever asks, every device has it anyway.
  void set_access(int device, int flags);
  int access(int device) const;

  bool add(std::uint64_t bytes);  // false where the limit would be passed
  void subtract(std::uint64_t bytes) { used.fetch_sub(bytes); }
  CUmemPoolHandle_st* handle() { return reinterpret_cast<CUmemPoolHandle_st*>(this); }

  mutable std::mutex mutex{};
  std::map<int, int> granted{};
};

std::shared_ptr<MemoryPool> create_pool(int device, std::uint64_t limit);
// Null for a handle that is no live pool.
std::shared_ptr<MemoryPool> find_pool(CUmemPoolHandle_st* handle);
bool destroy_pool(CUmemPoolHandle_st* handle);

std::shared_ptr<MemoryPool> default_pool(int device);
// The pool that allocations of a device come from where none is named.
std::shared_ptr<MemoryPool> current_pool(int device);
void set_current_pool(int device, const std::shared_ptr<MemoryPool>& pool);

}  // namespace emu
