#include "memory.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "memory_pool.h"

namespace emu {

namespace {

struct Pinned {
  std::mutex mutex;
  std::map<std::uintptr_t, PinnedRange> ranges;
};

Pinned& pinned() {
  static Pinned* const all = new Pinned;
  return *all;
}

std::atomic<void (*)(std::uintptr_t, std::size_t)> told_before_free{nullptr};

// Freed memory that queued work may still use.
struct Leaving {
  std::uintptr_t base;
  DeviceHeap* heap;  // null for host memory
  std::vector<Mark> after;
};

struct AllLeaving {
  std::mutex mutex;
  std::vector<Leaving> memory;
};

AllLeaving& leaving() {
  static AllLeaving* const all = new AllLeaving;
  return *all;
}

bool done(const Leaving& memory) {
  for (const Mark& mark : memory.after) {
    if (!mark.reached()) return false;
  }
  return true;
}

void reclaim_what_is_done() {
  std::vector<Leaving> gone;
  {
    const std::lock_guard<std::mutex> lock(leaving().mutex);
    auto& memory = leaving().memory;
    for (std::size_t i = 0; i < memory.size();) {
      if (!done(memory[i])) {
        ++i;
        continue;
      }
      gone.push_back(std::move(memory[i]));
      memory[i] = std::move(memory.back());
      memory.pop_back();
    }
  }
  for (const Leaving& memory : gone) {
    if (memory.heap != nullptr) {
      memory.heap->reclaim(memory.base);
    } else {
      std::free(reinterpret_cast<void*>(memory.base));
    }
  }
}

void leave(Leaving memory) {
  {
    const std::lock_guard<std::mutex> lock(leaving().mutex);
    leaving().memory.push_back(std::move(memory));
  }
  reclaim_what_is_done();
}

std::vector<Mark> what_memory_waits_for(const DeviceHeap& heap) {
  std::vector<Mark> marks;
  const std::lock_guard<std::mutex> lock(leaving().mutex);
  for (const Leaving& memory : leaving().memory) {
    if (memory.heap == &heap) marks.insert(marks.end(), memory.after.begin(), memory.after.end());
  }
  return marks;
}

}  // namespace

bool add_pinned(void* base, std::size_t bytes, unsigned flags, bool registered, int device) {
  static std::atomic<std::uint64_t> last_id{std::uint64_t{1} << 62};  // apart from device memory's
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  const std::lock_guard<std::mutex> lock(pinned().mutex);
  auto& ranges = pinned().ranges;
  const auto next = ranges.lower_bound(begin);
  if (next != ranges.end() && next->first < begin + bytes) return false;
  if (next != ranges.begin()) {
    const PinnedRange& previous = std::prev(next)->second;
    if (previous.base + previous.bytes > begin) return false;
  }
  ranges[begin] = PinnedRange{begin, bytes, flags, registered, device, ++last_id};
  return true;
}

std::optional<PinnedRange> remove_pinned(void* base, bool registered) {
  const std::lock_guard<std::mutex> lock(pinned().mutex);
  const auto found = pinned().ranges.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == pinned().ranges.end() || found->second.registered != registered) return std::nullopt;
  const PinnedRange range = found->second;
  pinned().ranges.erase(found);
  return range;
}

std::optional<PinnedRange> find_pinned(std::uintptr_t address) {
  const std::lock_guard<std::mutex> lock(pinned().mutex);
  const auto after = pinned().ranges.upper_bound(address);
  if (after == pinned().ranges.begin()) return std::nullopt;
  const PinnedRange& range = std::prev(after)->second;
  if (address - range.base >= range.bytes) return std::nullopt;
  return range;
}

CUresult classify(const void* pointer, std::size_t bytes, MemoryKind* kind) {
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address + bytes < address) return CUDA_ERROR_INVALID_VALUE;
  if (const DeviceHeap* const heap = heap_containing(pointer)) {
    const std::optional<Allocation> allocation = heap->find(address);
    if (!allocation || address + bytes > allocation->base + allocation->bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *kind = allocation->managed ? MemoryKind::managed : MemoryKind::device;
    return CUDA_SUCCESS;
  }
  const std::optional<PinnedRange> range = find_pinned(address);
  if (range && address + bytes > range->base + range->bytes) return CUDA_ERROR_INVALID_VALUE;
  *kind = range ? MemoryKind::pinned : MemoryKind::pageable;
  return CUDA_SUCCESS;
}

CUresult check_device_range(const void* pointer, std::size_t bytes) {
  MemoryKind kind;
  if (const CUresult result = classify(pointer, bytes, &kind)) return result;
  return kind == MemoryKind::pageable ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

void* allocate_device_memory(int device, std::size_t bytes, bool managed, void* pool) {
  DeviceHeap& heap = heap_of_device(device);
  reclaim_what_is_done();
  if (void* const memory = heap.allocate(bytes, managed, pool)) return memory;
  const std::vector<Mark> marks = what_memory_waits_for(heap);
  if (marks.empty() || bytes > heap.capacity()) return nullptr;
  for (const Mark& mark : marks) mark.wait();
  reclaim_what_is_done();
  return heap.allocate(bytes, managed, pool);
}

void set_before_free(void (*tell)(std::uintptr_t base, std::size_t bytes)) {
  told_before_free.store(tell);
}

bool free_device_memory(void* base) {
  const DeviceHeap* const heap = heap_containing(base);
  return heap != nullptr && free_device_memory_after(base, Stream::pending(heap->device()));
}

bool free_device_memory_after(void* base, std::vector<Mark> work) {
  DeviceHeap* const heap = heap_containing(base);
  if (heap == nullptr) return false;
  const std::optional<Allocation> allocation = heap->retire(base);
  if (!allocation) return false;
  if (const auto tell = told_before_free.load()) tell(allocation->base, allocation->bytes);
  if (costly_checks()) races::forget_memory(allocation->base);
  const auto pool = find_pool(static_cast<CUmemoryPool>(allocation->pool));
  if (pool != nullptr) pool->subtract(allocation->bytes);
  leave(Leaving{allocation->base, heap, std::move(work)});
  return true;
}

bool free_pinned_memory(void* base) {
  const std::optional<PinnedRange> range = remove_pinned(base, false);
  if (!range) return false;
  std::vector<Mark> work;
  for (int device = 0; device < device_count(); ++device) {
    for (Mark& mark : Stream::pending(device)) work.push_back(std::move(mark));
  }
  leave(Leaving{range->base, nullptr, std::move(work)});
  return true;
}

}  // namespace emu
