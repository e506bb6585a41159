// The faults that are set, and which of them are due.

#include "driver_faults.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "cuda_abi.h"

namespace emu {

std::atomic<bool> faults_are_set{false};

namespace {

constexpr int any = -1;

struct Fault {
  int id;
  FaultKind kind;
  int target;           // a rank, or of out_of_memory a GPU's index on the node; or any
  std::uint64_t place;  // of the operation, call or allocation, from 1
  std::int64_t value;   // milliseconds, result code, or bytes left
  int launcher_rank;
  std::string function;
  std::string text;
  std::map<int, std::uint64_t> seen;  // by rank or GPU
  std::uint64_t fired;
};

struct Faults {
  std::mutex mutex;
  std::vector<Fault> set;
  int last_id = 0;
};

Faults& faults() {
  static Faults* const all = new Faults;
  return *all;
}

bool concerns(const Fault& fault, int target) {
  return fault.target == any || fault.target == target;
}

// On stderr in one piece, so that nobody hunts a failure that was rehearsed.
void tell(const Fault& fault, const char* what, int number) {
  const std::string line = "pynccl: rehearsed fault on " + std::string(what) + " " +
                           std::to_string(number) + " (process " + std::to_string(getpid()) +
                           "): " + fault.text + "\n";
  (void)!write(STDERR_FILENO, line.data(), line.size());
}

// Whether the place of the fault is among the `more` that come now.
bool reaches(Fault& fault, int target, std::uint64_t more) {
  std::uint64_t& seen = fault.seen[target];
  const bool due = seen < fault.place && fault.place <= seen + more;
  seen += more;
  return due;
}

}  // namespace

std::vector<Blow> blows_at(int rank, std::uint64_t operations) {
  std::vector<Blow> due;
  const std::lock_guard<std::mutex> lock(faults().mutex);
  for (Fault& fault : faults().set) {
    if (fault.kind > FaultKind::error || !concerns(fault, rank)) continue;
    if (!reaches(fault, rank, operations)) continue;
    ++fault.fired;
    tell(fault, "rank", rank);
    due.push_back({fault.kind, fault.value});
  }
  return due;
}

int failure_of(const char* function, int rank) {
  const std::lock_guard<std::mutex> lock(faults().mutex);
  int result = 0;
  for (Fault& fault : faults().set) {
    if (fault.kind != FaultKind::fail || fault.function != function) continue;
    const int caller = rank >= 0 ? rank : fault.launcher_rank;
    if (!concerns(fault, caller) || !reaches(fault, caller, 1)) continue;
    ++fault.fired;
    tell(fault, "rank", caller);
    if (result == 0) result = static_cast<int>(fault.value);
  }
  return result;
}

bool memory_is_out(int physical, std::size_t used, std::size_t capacity, std::size_t bytes) {
  if (!faults_are_set.load(std::memory_order_relaxed)) return false;
  bool out = false;
  const std::lock_guard<std::mutex> lock(faults().mutex);
  for (Fault& fault : faults().set) {
    if (fault.kind != FaultKind::out_of_memory || !concerns(fault, physical)) continue;
    const bool counted = fault.place > 0;
    const std::size_t left = std::min(capacity, static_cast<std::size_t>(fault.value));
    const bool refused =
        counted ? ++fault.seen[physical] >= fault.place : used > left || bytes > left - used;
    if (!refused) continue;
    if (++fault.fired == 1) tell(fault, "GPU", physical);
    out = true;
  }
  return out;
}

std::size_t capacity_left(int physical, std::size_t capacity) {
  if (!faults_are_set.load(std::memory_order_relaxed)) return capacity;
  const std::lock_guard<std::mutex> lock(faults().mutex);
  for (const Fault& fault : faults().set) {
    const bool limits = fault.kind == FaultKind::out_of_memory && fault.place == 0;
    if (!limits || !concerns(fault, physical)) continue;
    capacity = std::min(capacity, static_cast<std::size_t>(fault.value));
  }
  return capacity;
}

}  // namespace emu

using namespace emu;

// For pynccl.emulator.faults, which has checked what it passes.
extern "C" {

CU_API int pynccl_fault_set(int kind, int target, unsigned long long place, long long value,
                            int launcher_rank, const char* function, const char* text) {
  const std::lock_guard<std::mutex> lock(faults().mutex);
  const int id = ++faults().last_id;
  faults().set.push_back({id, static_cast<FaultKind>(kind), target, place, value, launcher_rank,
                          function, text, {}, 0});
  faults_are_set.store(true);
  return id;
}

CU_API void pynccl_fault_clear(int id) {
  const std::lock_guard<std::mutex> lock(faults().mutex);
  auto& set = faults().set;
  set.erase(std::remove_if(set.begin(), set.end(), [&](const Fault& f) { return f.id == id; }),
            set.end());
  faults_are_set.store(!set.empty());
}

// How many times it has happened so far.
CU_API unsigned long long pynccl_fault_fired(int id) {
  const std::lock_guard<std::mutex> lock(faults().mutex);
  for (const Fault& fault : faults().set) {
    if (fault.id == id) return fault.fired;
  }
  return 0;
}

}  // extern "C"
