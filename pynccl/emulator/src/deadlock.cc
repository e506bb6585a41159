// Finds ranks that wait for each other: each process tells on its board whom its ranks wait for and
// whether its threads do anything else; what is left when all that can go on is taken away is stuck.

#include "deadlock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "error.h"
#include "process.h"

namespace emu {

namespace {

// How often in a row the same processes must be found without having moved.
constexpr int looks_needed = 4;
// Processes look at their threads several times a second while they wait.
constexpr std::uint64_t fresh = 2'000'000'000;

struct Process {
  int pid;
  std::uint64_t start;
  bool operator<(const Process& other) const {
    return pid != other.pid ? pid < other.pid : start < other.start;
  }
};

class MappedBoard {
 public:
  explicit MappedBoard(const Awaited& of) {
    if (of.pid == own_pid()) {
      board_ = &own_board();
      return;
    }
    if (of.board_fd < 0 || !process_alive(of.pid, of.start)) return;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", of.pid, of.board_fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void* const at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return;
    board_ = static_cast<Board*>(at);
    mapped_ = true;
  }
  ~MappedBoard() {
    if (mapped_) munmap(board_, sizeof(Board));
  }
  MappedBoard(const MappedBoard&) = delete;
  MappedBoard& operator=(const MappedBoard&) = delete;

  Board* get() const { return board_; }
  // Whether nothing but its waits keeps the process, and it has not moved since it said so.
  bool idle() const {
    return board_ != nullptr && board_->idle_time.load() + fresh > board_clock() &&
           board_->idle_steps.load() == board_->steps.load();
  }

 private:
  Board* board_ = nullptr;
  bool mapped_ = false;
};

struct Waiting {
  std::string text;
  std::vector<Awaited> awaited;
};

struct Member {
  std::unique_ptr<MappedBoard> board;
  std::uint64_t steps;
  std::uint64_t serials;
  std::vector<Waiting> waits;
};

using Members = std::map<Process, Member>;

std::vector<Waiting> waits_on(Board& board) {
  std::vector<Waiting> waits;
  for (BoardWait& wait : board.waits) {
    const std::uint64_t serial = wait.serial.load(std::memory_order_acquire);
    if (serial == 0) continue;
    Waiting one{std::string(wait.text, strnlen(wait.text, sizeof wait.text)),
                {wait.awaited, wait.awaited + std::min(wait.count, most_awaited)}};
    if (wait.serial.load() == serial) waits.push_back(std::move(one));
  }
  return waits;
}

// This process and those it waits for, directly or through others, as far as they are idle.
Members collect() {
  Members members;
  std::vector<Awaited> open{{0, own_pid(), own_start(), own_board_fd()}};
  while (!open.empty()) {
    const Awaited next = open.back();
    open.pop_back();
    const Process process{next.pid, next.start};
    if (members.count(process) != 0) continue;
    auto board = std::make_unique<MappedBoard>(next);
    if (!board->idle()) continue;
    Member member{nullptr, board->get()->steps.load(), board->get()->serials.load(),
                  waits_on(*board->get())};
    for (const Waiting& wait : member.waits) {
      open.insert(open.end(), wait.awaited.begin(), wait.awaited.end());
    }
    member.board = std::move(board);
    members.emplace(process, std::move(member));
  }
  return members;
}

bool can_end(const Waiting& wait, const Members& members) {
  return std::none_of(wait.awaited.begin(), wait.awaited.end(), [&](const Awaited& one) {
    return members.count(Process{one.pid, one.start}) != 0;
  });
}

// Takes away, again and again, processes of which one wait may still end.
void keep_stuck(Members& members) {
  for (auto it = members.begin(); it != members.end();) {
    const std::vector<Waiting>& waits = it->second.waits;
    const bool goes_on =
        waits.empty() || std::any_of(waits.begin(), waits.end(), [&](const Waiting& wait) {
          return can_end(wait, members);
        });
    if (goes_on) {
      members.erase(it);
      it = members.begin();
    } else {
      ++it;
    }
  }
}

// Follows who waits for whom, from one wait on until it comes round.
std::string account(const Members& members, const std::string& first) {
  std::string text;
  std::vector<const Waiting*> told;
  const Waiting* wait = nullptr;
  const Member& own = members.at(Process{own_pid(), own_start()});
  for (const Waiting& one : own.waits) {
    if (one.text == first) wait = &one;
  }
  constexpr std::size_t most_told = 8;
  while (wait != nullptr && told.size() < most_told) {
    told.push_back(wait);
    const auto next =
        std::find_if(wait->awaited.begin(), wait->awaited.end(), [&](const Awaited& one) {
          return members.count(Process{one.pid, one.start}) != 0;
        });
    text += format("%s%s, for rank %d", text.empty() ? "" : "; ", wait->text.c_str(), next->rank);
    const Member& member = members.at(Process{next->pid, next->start});
    wait = nullptr;
    for (const Waiting& one : member.waits) {
      const bool known = std::find(told.begin(), told.end(), &one) != told.end();
      if (!known && wait == nullptr) wait = &one;
    }
  }
  return text;
}

void doom(Members& members, const std::string& text) {
  for (auto& [process, member] : members) {
    Board& board = *member.board->get();
    std::uint64_t none = 0;
    if (!board.doom_being_written.compare_exchange_strong(none, 1)) continue;
    std::strncpy(board.doom_text, text.c_str(), sizeof board.doom_text - 1);
    board.doomed.store(member.serials, std::memory_order_release);
    board.doom_being_written.store(0);
  }
}

}  // namespace

LongWait::~LongWait() {
  waiting_.reset();
  if (place_ >= 0) withdraw(place_);
}

int LongWait::seconds() const {
  return static_cast<int>((board_clock() - begin_) / 1'000'000'000);
}

void LongWait::publish(const std::vector<Awaited>& awaited, const std::string& text) {
  const Board& board = own_board();
  if (place_ >= 0) {
    const BoardWait& wait = board.waits[place_];
    const bool same = text == text_ && wait.count == static_cast<int>(awaited.size()) &&
                      std::equal(awaited.begin(), awaited.end(), wait.awaited,
                                 [](const Awaited& a, const Awaited& b) {
                                   return a.rank == b.rank && a.pid == b.pid;
                                 });
    if (same) return;
    withdraw(place_);
  }
  text_ = text;
  place_ = announce(awaited.data(), static_cast<int>(awaited.size()), text);
  serial_ = place_ < 0 ? 0 : board.waits[place_].serial.load();
  if (waiting_ == nullptr && place_ >= 0) waiting_ = std::make_unique<WaitsForRanks>();
}

std::string LongWait::verdict() const {
  const Board& board = own_board();
  const bool doomed = serial_ != 0 && serial_ <= board.doomed.load(std::memory_order_acquire);
  return doomed ? board.doom_text : std::string();
}

std::string LongWait::look(const std::vector<Awaited>& all, const std::string& text) {
  std::vector<Awaited> awaited(all.begin(),
                               all.begin() + std::min<std::size_t>(all.size(), most_awaited));
  publish(awaited, text);
  if (std::string told = verdict(); !told.empty()) return told;
  unchanged_ = note_whether_idle() ? unchanged_ : 0;
  Members members = collect();
  keep_stuck(members);
  if (members.count(Process{own_pid(), own_start()}) == 0) {
    unchanged_ = 0;
    return {};
  }
  std::uint64_t signature = members.size();
  for (const auto& [process, member] : members) {
    signature = signature * 1'000'003 + member.steps * 31 + static_cast<unsigned>(process.pid);
  }
  unchanged_ = signature == signature_ ? unchanged_ + 1 : 1;
  signature_ = signature;
  if (unchanged_ < looks_needed) return {};
  const std::string told = account(members, text);
  doom(members, told);
  return told;
}

}  // namespace emu
