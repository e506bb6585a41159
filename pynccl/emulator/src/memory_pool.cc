#include "memory_pool.h"

#include <unordered_map>
#include <vector>

#include "cuda_abi.h"

namespace emu {

namespace {

struct Pools {
  std::mutex mutex;
  std::unordered_map<CUmemPoolHandle_st*, std::shared_ptr<MemoryPool>> live;
  // Kept, so that the handle in an allocation that outlived its pool never names another one.
  std::vector<std::shared_ptr<MemoryPool>> destroyed;
  std::unordered_map<int, std::shared_ptr<MemoryPool>> default_of;
  std::unordered_map<int, std::shared_ptr<MemoryPool>> current_of;
};

Pools& pools() {
  static Pools* const all = new Pools;
  return *all;
}

std::shared_ptr<MemoryPool> make(int device, bool is_default, std::uint64_t limit) {
  std::shared_ptr<MemoryPool> pool(new MemoryPool{device, is_default, limit});
  pools().live[pool->handle()] = pool;
  return pool;
}

std::shared_ptr<MemoryPool>& default_with_lock(int device) {
  std::shared_ptr<MemoryPool>& pool = pools().default_of[device];
  if (pool == nullptr) pool = make(device, true, 0);
  return pool;
}

}  // namespace

void MemoryPool::set_access(int other, int flags) {
  const std::lock_guard<std::mutex> lock(mutex);
  granted[other] = flags;
}

int MemoryPool::access(int other) const {
  if (other == device) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = granted.find(other);
  return found == granted.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second;
}

bool MemoryPool::add(std::uint64_t bytes) {
  const std::uint64_t now = used.fetch_add(bytes) + bytes;
  if (limit != 0 && now > limit) {
    subtract(bytes);
    return false;
  }
  std::uint64_t high = used_high.load();
  while (high < now && !used_high.compare_exchange_weak(high, now)) {
  }
  return true;
}

std::shared_ptr<MemoryPool> create_pool(int device, std::uint64_t limit) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  return make(device, false, limit);
}

std::shared_ptr<MemoryPool> find_pool(CUmemPoolHandle_st* handle) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  const auto found = pools().live.find(handle);
  return found == pools().live.end() ? nullptr : found->second;
}

bool destroy_pool(CUmemPoolHandle_st* handle) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  const auto found = pools().live.find(handle);
  if (found == pools().live.end() || found->second->is_default) return false;
  const std::shared_ptr<MemoryPool> pool = found->second;
  pools().live.erase(found);
  pools().destroyed.push_back(pool);
  if (pools().current_of[pool->device] == pool) pools().current_of.erase(pool->device);
  return true;
}

std::shared_ptr<MemoryPool> default_pool(int device) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  return default_with_lock(device);
}

std::shared_ptr<MemoryPool> current_pool(int device) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  const auto chosen = pools().current_of.find(device);
  if (chosen != pools().current_of.end() && chosen->second != nullptr) return chosen->second;
  return default_with_lock(device);
}

void set_current_pool(int device, const std::shared_ptr<MemoryPool>& pool) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  pools().current_of[device] = pool;
}

}  // namespace emu
