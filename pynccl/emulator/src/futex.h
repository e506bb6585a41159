#pragma once

#include <atomic>
#include <chrono>
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

// What a wait of `waiting` threads does before it sleeps: it spins while each has a processor, then
// gives way to the others. To wake a sleeper costs several times as much as to give way.
class Eagerness {
 public:
  explicit Eagerness(int waiting);
  // Passes a moment. False where it is time to sleep.
  bool keep_trying();

 private:
  int spins_;
  std::chrono::steady_clock::time_point end_{};
};

}  // namespace emu
