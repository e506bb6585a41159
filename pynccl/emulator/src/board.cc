#include "board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace emu {

namespace {

// Longer than the pause between two slices of a wait, on a busy machine.
constexpr std::uint64_t slice_gap = 300'000'000;
constexpr std::uint64_t for_good = ~std::uint64_t{0};

struct OwnBoard {
  Board* board;
  int fd;
};

OwnBoard make_board() {
  const int fd = memfd_create("pynccl-board", MFD_CLOEXEC);
  void* at = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, sizeof(Board)) == 0) {
    at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (at != MAP_FAILED) return {static_cast<Board*>(at), fd};
  if (fd >= 0) close(fd);
  return {new Board(), -1};
}

const OwnBoard& own() {
  static const OwnBoard made = make_board();
  return made;
}

// Until when a thread is known to wait; 0 where it does not.
struct HostThread {
  std::atomic<std::uint64_t> waits_till{0};
  long id = syscall(SYS_gettid);
};

struct Hosts {
  std::mutex mutex;
  std::vector<HostThread*> threads;
};

Hosts& hosts() {
  static Hosts* const all = new Hosts;
  return *all;
}

struct Registration {
  HostThread thread;
  Registration() {
    const std::lock_guard<std::mutex> lock(hosts().mutex);
    hosts().threads.push_back(&thread);
  }
  ~Registration() {
    if (in_forked_child()) return;
    const std::lock_guard<std::mutex> lock(hosts().mutex);
    auto& threads = hosts().threads;
    threads.erase(std::remove(threads.begin(), threads.end(), &thread), threads.end());
  }
};

HostThread& this_thread() {
  static thread_local Registration registration;
  return registration.thread;
}

thread_local int works = 0;
std::atomic<int> executing{0};
std::atomic<int> executing_waits{0};
std::atomic<void (*)(const HostWait&)> told_before_wait{nullptr};

// Whether the main thread, which need not use GPUs itself, waits without limit for another thread.
bool main_thread_waits_for_another() {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/syscall", static_cast<int>(getpid()));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[256];
  const ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return false;
  text[length] = '\0';
  long number = -1;
  unsigned long word, operation, value, timeout;
  const int read = std::sscanf(text, "%ld %lx %lx %lx %lx", &number, &word, &operation, &value,
                               &timeout);
  return read == 5 && number == SYS_futex && timeout == 0;
}

bool hosts_wait() {
  const std::uint64_t now = board_clock();
  const std::lock_guard<std::mutex> lock(hosts().mutex);
  bool main_known = false;
  for (const HostThread* const thread : hosts().threads) {
    if (thread->waits_till.load() < now) return false;
    main_known = main_known || thread->id == getpid();
  }
  return main_known || main_thread_waits_for_another();
}

}  // namespace

Board& own_board() { return *own().board; }

int own_board_fd() { return own().fd; }

std::uint64_t board_clock() {
  const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since_boot).count());
}

int announce(const Awaited* awaited, int count, const std::string& text) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  Board& board = own_board();
  for (int place = 0; place < board_waits; ++place) {
    BoardWait& wait = board.waits[place];
    if (wait.serial.load() != 0) continue;
    wait.count = std::min(count, most_awaited);
    std::copy(awaited, awaited + wait.count, wait.awaited);
    std::strncpy(wait.text, text.c_str(), sizeof wait.text - 1);
    wait.serial.store(board.serials.fetch_add(1) + 1, std::memory_order_release);
    note_step();
    return place;
  }
  return -1;
}

void withdraw(int place) {
  own_board().waits[place].serial.store(0);
  note_step();
}

bool note_whether_idle() {
  Board& board = own_board();
  const std::uint64_t steps = board.steps.load();
  if (executing.load() != executing_waits.load() || !hosts_wait()) return false;
  if (board.steps.load() != steps) return false;
  board.idle_steps.store(steps);
  board.idle_time.store(board_clock());
  return true;
}

InWork::InWork() {
  ++works;
  executing.fetch_add(1, std::memory_order_relaxed);
}

InWork::~InWork() {
  executing.fetch_sub(1, std::memory_order_relaxed);
  --works;
}

WaitsForRanks::WaitsForRanks() : in_work_(works > 0) {
  if (in_work_) {
    executing_waits.fetch_add(1);
  } else {
    before_ = this_thread().waits_till.exchange(for_good);
  }
}

WaitsForRanks::~WaitsForRanks() {
  if (in_work_) {
    executing_waits.fetch_sub(1);
  } else {
    this_thread().waits_till.store(before_);
  }
}

void set_host_state(HostState state) {
  if (works > 0) return;
  this_thread().waits_till.store(state == HostState::waiting ? for_good : 0,
                                 std::memory_order_relaxed);
}

void set_host_waiting_in_slices() {
  if (works == 0) this_thread().waits_till.store(board_clock() + slice_gap);
}

void set_before_host_wait(void (*tell)(const HostWait&)) { told_before_wait.store(tell); }

void before_host_wait(const HostWait& wait) {
  if (const auto tell = told_before_wait.load(std::memory_order_relaxed)) tell(wait);
}

}  // namespace emu
