#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device.h"

namespace emu {

// Failures to rehearse, as pynccl.emulator.faults sets them. They live here since both libraries
// ask for them.

enum class FaultKind : int { kill, delay, error, fail, out_of_memory };

// What happens to the operation that asked.
struct Blow {
  FaultKind kind;
  std::int64_t value;  // milliseconds of a delay, result code of an error
};

// Whether any fault is set: all that a program without faults pays for.
EMU_API extern std::atomic<bool> faults_are_set;

// Counts `operations` that begin on a rank, and takes what is due at them.
EMU_API std::vector<Blow> blows_at(int rank, std::uint64_t operations);

// Counts a call of a function of nccl.h; the result code that it shall return, 0 for none. `rank`
// is -1 where no communicator is concerned: the launcher's rank is meant then.
EMU_API int failure_of(const char* function, int rank);

// Whether an allocation shall be refused on a GPU, of which `used` of `capacity` bytes are taken.
bool memory_is_out(int physical, std::size_t used, std::size_t capacity, std::size_t bytes);
// What of the capacity the faults leave.
std::size_t capacity_left(int physical, std::size_t capacity);

}  // namespace emu
