#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "device.h"

namespace emu {

// What a process tells the others of its waits, so that they find out together when none of them
// can go on. It lies in a memfd that they map through /proc. Zero bytes are its initial state.

constexpr int board_waits = 32;
constexpr int most_awaited = 16;

struct Awaited {
  int rank;
  int pid;
  std::uint64_t start;  // of the process
  int board_fd;         // there
};

// A rank that has waited for others for some time.
struct BoardWait {
  std::atomic<std::uint64_t> serial;  // 0 where the place is free
  int count;
  Awaited awaited[most_awaited];  // any of them keeps it waiting
  char text[512];                 // "rank 0 waits in ..."
};

struct Board {
  // Rises with whatever the process does: with the same number twice it has not moved in between.
  std::atomic<std::uint64_t> steps;
  std::atomic<std::uint64_t> serials;
  // When, in steps and in nanoseconds, the process last found that none of its threads that use
  // GPUs will do anything before a wait on this board ends.
  std::atomic<std::uint64_t> idle_steps;
  std::atomic<std::uint64_t> idle_time;
  // The verdict on all waits up to this serial: they will never end.
  std::atomic<std::uint64_t> doomed;
  std::atomic<std::uint64_t> doom_being_written;
  char doom_text[3584];
  BoardWait waits[board_waits];
};

EMU_API Board& own_board();
EMU_API int own_board_fd();  // -1 where there is no memory for one

// Puts a wait on the board; its place, -1 where all are taken.
EMU_API int announce(const Awaited* awaited, int count, const std::string& text);
EMU_API void withdraw(int place);

// Whether no thread of this process will do anything but wait. Notes it on the board.
EMU_API bool note_whether_idle();

EMU_API std::uint64_t board_clock();  // nanoseconds, of all processes

inline void note_step() { own_board().steps.fetch_add(1, std::memory_order_relaxed); }

// While alive, the thread runs work of a stream.
class InWork {
 public:
  InWork();
  ~InWork();
};

// While alive, the thread waits for other ranks, as it said on the board.
class EMU_API WaitsForRanks {
 public:
  WaitsForRanks();
  ~WaitsForRanks();

 private:
  const bool in_work_;
  std::uint64_t before_ = 0;
};

// Of a thread that gives streams work or waits for them.
enum class HostState : std::uint64_t { active, waiting };
void set_host_state(HostState state);
// The thread waits, and comes back every some milliseconds only to wait again.
void set_host_waiting_in_slices();

class Stream;
// What a host thread is about to wait for.
struct HostWait {
  int device;
  const Stream* stream = nullptr;  // null for all streams of the device
  std::uint64_t event = no_event;  // the number of its record

  static constexpr std::uint64_t no_event = ~std::uint64_t{0};
};
// Who is to be told of such waits: NCCL's groups keep work from streams.
EMU_API void set_before_host_wait(void (*tell)(const HostWait&));
void before_host_wait(const HostWait& wait);

}  // namespace emu
