#pragma once

#include <atomic>
#include <cstdint>

namespace emu {

// A 32-bit word in memory that processes share, with a count of sleepers so that a change that
// nobody waits for costs no system call. All zero is its initial state.
struct SharedWord {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;

  void add_and_wake(std::uint32_t amount);
  std::uint32_t add(std::uint32_t amount);  // returns the new value, wakes nobody
  void wake_all();
  // Sleeps while the value is `seen`, for `milliseconds` at most.
  void sleep(std::uint32_t seen, int milliseconds);
};

// One step of a short busy wait.
void pause();

// How many pauses a wait may spend before it sleeps: none where `waiting` exceeds the processors.
int spins_for(int waiting);

}  // namespace emu
