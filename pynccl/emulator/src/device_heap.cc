#include "device_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "driver_faults.h"

namespace emu {

namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t page = 4096;
// Freed ranges of at least this size go back to the system; the pages of smaller ones are likely
// to be wanted again soon, and a page fault costs more than they do.
constexpr std::size_t punch_threshold = std::size_t{1} << 20;
constexpr std::size_t npos = ~std::size_t{0};

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// One slot per ordinal, written once: readers take no lock.
struct Heaps {
  std::mutex mutex;
  const int count = device_count();
  std::unique_ptr<std::atomic<DeviceHeap*>[]> of{new std::atomic<DeviceHeap*>[count]()};
};

Heaps& heaps() {
  static Heaps* const all = new Heaps;
  return *all;
}

std::uint64_t next_allocation_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

DeviceHeap::DeviceHeap(int device) : device_(device) {
  const std::string name = "pynccl-gpu-" + std::to_string(physical_device(device));
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0) return;
  const std::size_t bytes = device_memory();
  void* at = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  }
  if (at == MAP_FAILED) {
    close(fd);
    return;
  }
  fd_ = fd;
  base_ = reinterpret_cast<std::uintptr_t>(at);
  capacity_ = bytes;
  insert_free(0, bytes);
}

std::size_t DeviceHeap::used() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

void* DeviceHeap::allocate(std::size_t bytes, bool managed, void* pool) {
  if (bytes > capacity_) return nullptr;
  const std::size_t taken = round_up(std::max<std::size_t>(bytes, 1), alignment);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (memory_is_out(physical_device(device_), used_, capacity_, taken)) return nullptr;
  const std::size_t offset = take(taken);
  if (offset == npos) return nullptr;
  used_ += taken;
  const std::uintptr_t base = base_ + offset;
  live_[base] = Allocation{base, bytes, next_allocation_id(), managed, pool};
  return reinterpret_cast<void*>(base);
}

std::optional<Allocation> DeviceHeap::retire(void* base) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == live_.end()) return std::nullopt;
  const Allocation allocation = found->second;
  live_.erase(found);
  retired_[allocation.base] = allocation.bytes;
  return allocation;
}

void DeviceHeap::reclaim(std::uintptr_t base) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = retired_.find(base);
  if (found == retired_.end()) return;
  const std::size_t bytes = round_up(std::max<std::size_t>(found->second, 1), alignment);
  retired_.erase(found);
  used_ -= bytes;
  give_back(base - base_, bytes);
}

bool DeviceHeap::release(void* base) {
  if (!retire(base)) return false;
  reclaim(reinterpret_cast<std::uintptr_t>(base));
  return true;
}

std::optional<Allocation> DeviceHeap::find(std::uintptr_t address) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto after = live_.upper_bound(address);
  if (after == live_.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(after)->second;
  const std::size_t extent = std::max<std::size_t>(allocation.bytes, 1);
  if (address - allocation.base >= extent) return std::nullopt;
  return allocation;
}

std::size_t DeviceHeap::take(std::size_t bytes) {
  // What fills pages begins at one: windows must. Smallest range that suffices; of equal ones the
  // lowest.
  const std::size_t unit = bytes >= page ? page : alignment;
  for (auto best = by_size_.lower_bound({bytes, 0}); best != by_size_.end(); ++best) {
    const auto [found, offset] = *best;
    const std::size_t start = round_up(offset, unit);
    if (start + bytes > offset + found) continue;
    erase_free(free_.find(offset));
    if (start > offset) insert_free(offset, start - offset);
    const std::size_t rest = offset + found - (start + bytes);
    if (rest > 0) insert_free(start + bytes, rest);
    return start;
  }
  return npos;
}

void DeviceHeap::give_back(std::size_t offset, std::size_t bytes) {
  if (bytes >= punch_threshold) {
    const std::size_t first = round_up(offset, page);
    const std::size_t last = (offset + bytes) / page * page;
    // Where it fails the memory merely stays taken.
    (void)!fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                     static_cast<off_t>(last - first));
  }
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    erase_free(next);
  }
  auto previous = free_.lower_bound(offset);
  if (previous != free_.begin()) {
    --previous;
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      erase_free(previous);
    }
  }
  insert_free(offset, bytes);
}

void DeviceHeap::insert_free(std::size_t offset, std::size_t bytes) {
  free_[offset] = bytes;
  by_size_.insert({bytes, offset});
}

void DeviceHeap::erase_free(std::map<std::size_t, std::size_t>::iterator at) {
  by_size_.erase({at->second, at->first});
  free_.erase(at);
}

DeviceHeap& heap_of_device(int ordinal) {
  std::atomic<DeviceHeap*>& slot = heaps().of[ordinal];
  if (DeviceHeap* const made = slot.load(std::memory_order_acquire)) return *made;
  const std::lock_guard<std::mutex> lock(heaps().mutex);
  if (slot.load(std::memory_order_relaxed) == nullptr) {
    slot.store(new DeviceHeap(ordinal), std::memory_order_release);
  }
  return *slot.load(std::memory_order_relaxed);
}

std::uint64_t allocation_at(std::uintptr_t address) {
  const DeviceHeap* const heap = heap_containing(reinterpret_cast<const void*>(address));
  const auto found = heap == nullptr ? std::nullopt : heap->find(address);
  return found ? found->id : 0;
}

DeviceHeap* heap_containing(const void* pointer) {
  Heaps& all = heaps();
  for (int ordinal = 0; ordinal < all.count; ++ordinal) {
    DeviceHeap* const heap = all.of[ordinal].load(std::memory_order_acquire);
    if (heap != nullptr && heap->contains(reinterpret_cast<std::uintptr_t>(pointer))) return heap;
  }
  return nullptr;
}

}  // namespace emu
