// NCCL's functions for memory: allocation, registered buffers and windows.

#include <algorithm>
#include <cstdio>

#include "communicator.h"
#include "device_heap.h"
#include "error.h"
#include "exported.h"
#include "faults.h"
#include "group.h"
#include "memory.h"
#include "process.h"

using namespace emu;

namespace {

constexpr std::uintptr_t window_alignment = 4096;

// The whole range must be live memory of the communicator's GPU.
ncclResult_t check_range(const Communicator& communicator, const void* pointer, size_t bytes) {
  DeviceHeap* const heap = heap_containing(pointer);
  if (heap == nullptr || heap->device() != communicator.device()) {
    return fail(ncclInvalidArgument,
                "%p is not memory of GPU %d, which rank %d of communicator %s is of: pass memory of "
                "that one",
                pointer, communicator.device(), communicator.rank(), communicator.name().c_str());
  }
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const std::optional<Allocation> found = heap->find(address);
  const size_t room = found ? found->base + found->bytes - address : 0;
  if (bytes <= room) return ncclSuccess;
  return fail(ncclInvalidArgument, "%zu bytes at %p: only %zu are allocated there", bytes, pointer,
              room);
}

std::shared_ptr<Window> find_window(Communicator& communicator, ncclWindow_t handle) {
  const std::lock_guard<std::mutex> lock(communicator.mutex());
  for (const std::shared_ptr<Window>& window : communicator.windows()) {
    if (window.get() == reinterpret_cast<Window*>(handle)) return window;
  }
  fail(ncclInvalidArgument, "%p is no window of this communicator", static_cast<void*>(handle));
  return nullptr;
}

void tell_where_in(const Communicator& communicator, Registered& memory, const char* what,
                   std::uintptr_t base, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.user_pointer);
  if (memory.freed || begin >= base + bytes || begin + memory.bytes <= base) return;
  memory.freed = true;
  std::fprintf(stderr,
               "pynccl emulator: communicator %s: rank %d (process %d) frees memory of a %s, %zu bytes "
               "at %p registered%s: deregister it before, as what is registered stays in use\n",
               communicator.name().c_str(), communicator.rank(), own_pid(), what, memory.bytes,
               memory.user_pointer, at(memory.site).c_str());
}

// A communicator that failed, or was finalized or aborted, uses its memory no more.
void tell_of_freeing(std::uintptr_t base, std::size_t bytes) {
  for (const std::shared_ptr<Communicator>& communicator : Communicator::all()) {
    if (communicator->ready() != ncclSuccess) continue;
    const std::lock_guard<std::mutex> lock(communicator->mutex());
    for (const auto& window : communicator->windows()) {
      tell_where_in(*communicator, *window, "window", base, bytes);
    }
    for (const auto& buffer : communicator->registrations()) {
      tell_where_in(*communicator, *buffer, "registered buffer", base, bytes);
    }
  }
}

void watch_freeing() {
  static const bool watched = (set_before_free(tell_of_freeing), true);
  static_cast<void>(watched);
}

ncclResult_t register_window(const std::shared_ptr<Communicator>& communicator, void* pointer,
                             size_t bytes, ncclWindow_t* win) {
  const char* const site = communicator->take_site();
  ncclResult_t result = communicator->ready();
  if (result != ncclSuccess) return result;
  if (win == nullptr) return fail(ncclInvalidArgument, "win is null");
  if (bytes != 0) result = check_range(*communicator, pointer, bytes);
  if (result != ncclSuccess) return result;
  if (reinterpret_cast<std::uintptr_t>(pointer) % window_alignment != 0) {
    return fail(ncclInvalidArgument,
                "a window begins at a multiple of %zu bytes, which %p is not: allocate it with "
                "ncclMemAlloc",
                static_cast<size_t>(window_alignment), pointer);
  }
  *win = nullptr;
  watch_freeing();
  return submit(Job{communicator, communicator->device(), communicator->settings().blocking,
                    {communicator},
                    [communicator, pointer, bytes, site, win] {
                      std::shared_ptr<Window> window;
                      const ncclResult_t made =
                          communicator->register_window(pointer, bytes, site, &window);
                      if (made == ncclSuccess) *win = reinterpret_cast<ncclWindow_t>(window.get());
                      return made;
                    },
                    [] {}});
}

}  // namespace

NCCL_FUNCTION ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  MAY_FAIL(launcher);
  if (pointer == nullptr) return fail(ncclInvalidArgument, "ptr is null");
  const int device = current_device();
  if (device < 0) return fail(ncclUnhandledCudaError, "no GPU is current to this thread");
  const size_t whole = (bytes + window_alignment - 1) / window_alignment * window_alignment;
  *pointer = heap_of_device(device).allocate(whole);
  if (*pointer != nullptr) return ncclSuccess;
  return fail(ncclUnhandledCudaError, "GPU %d has no %zu bytes left", device, bytes);
}

NCCL_FUNCTION ncclResult_t ncclMemFree(void* pointer) {
  MAY_FAIL(launcher);
  if (pointer == nullptr) return ncclSuccess;
  if (free_device_memory(pointer)) return ncclSuccess;
  return fail(ncclInvalidArgument, "%p is not the start of allocated GPU memory", pointer);
}

NCCL_FUNCTION ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t bytes,
                                            void** handle) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  const char* const site = communicator->take_site();
  ncclResult_t result = communicator->ready();
  if (result != ncclSuccess) return result;
  if (handle == nullptr) return fail(ncclInvalidArgument, "handle is null");
  result = check_range(*communicator, buffer, bytes);
  if (result != ncclSuccess) return result;
  watch_freeing();
  const auto made = std::make_shared<Registered>(Registered{buffer, bytes, site});
  const std::lock_guard<std::mutex> lock(communicator->mutex());
  communicator->registrations().insert(made);
  *handle = made.get();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  const std::lock_guard<std::mutex> lock(communicator->mutex());
  auto& all = communicator->registrations();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == handle; });
  if (found == all.end()) {
    return fail(ncclInvalidArgument, "%p is no registration of this communicator", handle);
  }
  all.erase(found);
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t bytes,
                                                  ncclWindow_t* win, int) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return note(ncclInvalidArgument);
  return note(register_window(communicator, buffer, bytes, win));
}

NCCL_FUNCTION ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  if (win == nullptr) return ncclSuccess;
  const std::shared_ptr<Window> window = find_window(*communicator, win);
  if (window == nullptr) return ncclInvalidArgument;
  const std::lock_guard<std::mutex> lock(communicator->mutex());
  communicator->windows().erase(window);
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** pointer) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr || pointer == nullptr) return ncclInvalidArgument;
  const std::shared_ptr<Window> window = find_window(*communicator, win);
  if (window == nullptr) return ncclInvalidArgument;
  *pointer = window->user_pointer;
  return ncclSuccess;
}
