#include "futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <thread>

namespace emu {

namespace {

constexpr std::chrono::microseconds yielding{300};

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value,
           const timespec* timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

}  // namespace

std::uint32_t SharedWord::add(std::uint32_t amount) {
  return value.fetch_add(amount, std::memory_order_seq_cst) + amount;
}

void SharedWord::wake_all() {
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex(&value, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedWord::add_and_wake(std::uint32_t amount) {
  add(amount);
  wake_all();
}

void SharedWord::sleep(std::uint32_t seen, int milliseconds) {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const timespec timeout{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
  futex(&value, FUTEX_WAIT, seen, &timeout);
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

Eagerness::Eagerness(int waiting) {
  static const int processors = static_cast<int>(std::thread::hardware_concurrency());
  spins_ = waiting <= processors ? 2000 : 0;
}

bool Eagerness::keep_trying() {
  if (spins_ > 0) {
    --spins_;
    pause();
    return true;
  }
  const auto now = std::chrono::steady_clock::now();
  if (end_ == decltype(end_){}) end_ = now + yielding;
  if (now >= end_) return false;
  sched_yield();
  return true;
}

}  // namespace emu
