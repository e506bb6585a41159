// How a communicator fails: ranks that were lost, and how all come to know.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "communicator.h"
#include "error.h"
#include "process.h"

namespace emu {

std::string held_by(const RankRecord& rank) {
  const std::uint64_t since = rank.held_since.load(std::memory_order_acquire);
  const std::uint64_t held = rank.held.load(std::memory_order_acquire);
  if (held == 0 || since == 0) return {};
  std::string text =
      format(", with %llu operation%s in a group that it has not ended (the first: %s%s)",
             static_cast<unsigned long long>(held), held == 1 ? "" : "s",
             describe(rank.held_call).c_str(), at(rank.held_site.text).c_str());
  // Another group's may have taken its place meanwhile.
  return rank.held_since.load() == since ? text : std::string();
}

std::string last_of(const RankRecord& rank) {
  const std::uint64_t issued = rank.issued.load(std::memory_order_acquire);
  if (issued == 0) return " before its first operation" + held_by(rank);
  return format(" after %llu operation%s, the last: %s%s%s",
                static_cast<unsigned long long>(issued), issued == 1 ? "" : "s",
                describe(rank.last_call).c_str(), at(rank.last_site.text).c_str(),
                held_by(rank).c_str());
}

bool Communicator::cannot_go_on() {
  if (revoked_.load()) return true;
  if (region_->failed()) {
    RegionHeader& header = region_->header();
    set_async_error(static_cast<ncclResult_t>(header.failure_code.load()), header.failure_text);
    return true;
  }
  if (!aborted_.load()) return false;
  set_async_error(ncclInvalidUsage, "the communicator was aborted by this rank");
  return true;
}

void Communicator::report(ncclResult_t code, const std::string& text) {
  const std::string full = format("communicator %s: %s", region_->name().c_str(), text.c_str());
  region_->set_failure(code, full);
  // The first failure is the cause; a later one may be its consequence.
  if (!cannot_go_on()) set_async_error(code, full);
}

std::string Communicator::difference(const std::string& place,
                                     const std::function<std::string(int)>& doing) {
  std::map<std::string, std::string> ranks_doing;
  for (int r = 0; r < nranks_; ++r) {
    std::string& ranks = ranks_doing[doing(r)];
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
  }
  std::string text = format("the ranks differ in %s:", place.c_str());
  for (const auto& [what, ranks] : ranks_doing) {
    text += format(" rank %s: %s;", ranks.c_str(), what.c_str());
  }
  return text + " all ranks must issue the same collectives in the same order";
}

ncclResult_t Communicator::failure() {
  const ncclResult_t code = async_error();
  if (code != ncclSuccess && code != ncclInProgress) return fail(code, "%s", error_text().c_str());
  return fail(ncclInvalidUsage, "the communicator was revoked or aborted meanwhile");
}

bool Communicator::look_for_lost_ranks(const Missing& missing, const Doing& doing) {
  for (int r = 0; r < nranks_; ++r) {
    // This rank may be among those whose coming is not known, and has aborted it meanwhile.
    if (r == rank_ || !missing(r)) continue;
    const std::string why = why_lost(r);
    // What it did last may have been what was waited for.
    if (why.empty() || !missing(r)) continue;
    const std::string text =
        format("%s, and rank %d waits for it in %s", why.c_str(), rank_, doing().c_str());
    report(ncclRemoteError, text);
    fail(ncclRemoteError, "%s", text.c_str());
    return true;
  }
  return false;
}

namespace {

// Seconds after which a wait for a rank that lives and has not come is told, and those after which
// it fails: 0 for never.
constexpr int patient = 10;

int most_patient() {
  static const int seconds = [] {
    const char* const text = std::getenv("PYNCCL_EMULATOR_PATIENCE");
    return text == nullptr ? 0 : std::max(std::atoi(text), 0);
  }();
  return seconds;
}

}  // namespace

bool Communicator::look_for_missing_ranks(LongWait& wait, const Missing& missing,
                                          const Doing& doing) {
  const int seconds = wait.seconds();
  const bool fails = most_patient() != 0 && seconds >= most_patient();
  if (!fails && (seconds < patient || wait.told)) return false;
  const bool all_joined =
      region_->header().joined.value.load() == static_cast<std::uint32_t>(nranks_);
  std::string who;
  for (int r = 0; r < nranks_; ++r) {
    const RankRecord& record = region_->rank(r);
    const bool waits_too = r == rank_ || (!all_joined && record.pid != 0);
    if (waits_too || !missing(r)) continue;
    who += format("%srank %d ", who.empty() ? "" : ", ", r);
    who += record.pid == 0 ? std::string("(which never joined)")
                           : format("(process %d, which lives;%s)", record.pid,
                                    last_of(record).c_str());
  }
  const std::string text = format("rank %d has waited for %d s in %s for %s", rank_, seconds,
                                  doing().c_str(), who.c_str());
  if (fails) {
    report(ncclInvalidUsage, text + ": all ranks must come to every operation");
    return true;
  }
  wait.told = true;
  std::fprintf(stderr, "pynccl emulator: communicator %s: %s; waiting on\n",
               region_->name().c_str(), text.c_str());
  return false;
}

void Communicator::look_for_open_groups(LongWait& wait, const Missing& missing,
                                        const Doing& doing) {
  constexpr std::uint64_t soon = 400'000'000;  // nanoseconds: longer than it takes to fill a group
  if (wait.told_of_group) return;
  for (int r = 0; r < nranks_; ++r) {
    const RankRecord& record = region_->rank(r);
    const std::string held = missing(r) ? held_by(record) : std::string();
    if (held.empty() || board_clock() < record.held_since.load() + soon) continue;
    wait.told_of_group = true;
    std::fprintf(stderr,
                 "pynccl emulator: communicator %s: rank %d waits in %s for rank %d (process %d)%s: "
                 "nothing of a group is launched before its ncclGroupEnd\n",
                 region_->name().c_str(), rank_, doing().c_str(), r, record.pid, held.c_str());
    return;
  }
}

bool Communicator::look_for_deadlock(LongWait& wait, const Missing& missing, const Doing& doing) {
  // Before all have joined, those that are waited for are the ones that nobody knows yet.
  if (region_->header().joined.value.load() != static_cast<std::uint32_t>(nranks_)) return false;
  std::vector<Awaited> awaited;
  std::string held;
  for (int r = 0; r < nranks_; ++r) {
    const RankRecord& record = region_->rank(r);
    if (!missing(r)) continue;
    if (held.empty() && record.held.load() != 0) held = format(" for rank %d", r) + held_by(record);
    awaited.push_back({r, record.pid, record.process_start, record.board_fd});
  }
  if (awaited.empty()) return false;
  const std::string told = wait.look(
      awaited, format("rank %d (process %d) waits on communicator %s in %s%s", rank_, own_pid(),
                      region_->name().c_str(), doing().c_str(), held.c_str()));
  if (told.empty()) return false;
  report(ncclInvalidUsage,
         format("the ranks wait for each other, and none can go on: %s. Each receive needs its send "
                "and each wait for signals as many signals; put sends and receives that belong "
                "together into one group, and issue the same collectives, of several communicators "
                "too, in the same order on all ranks",
                told.c_str()));
  return true;
}

// Why nothing more can come from the rank; empty where something may.
std::string Communicator::why_lost(int rank) {
  const RankRecord& record = region_->rank(rank);
  const RegionHeader& header = region_->header();
  const auto says = [&](const char* what) {
    return format("rank %d (process %d) has %s%s", rank, record.pid, what,
                  last_of(record).c_str());
  };
  switch (record.state.load(std::memory_order_acquire)) {
    case RankState::absent:
    case RankState::joining: {
      const bool known = !expected_.empty();
      const Member came =
          known ? expected_[rank] : Member{header.creator_pid, header.creator_start};
      if (came.pid == 0 || process_alive(came.pid, came.start)) return {};
      return known ? format("rank %d (process %d) has ended or died", rank, came.pid)
                   : format("process %d, which made the unique id, has ended before all ranks came",
                            came.pid);
    }
    case RankState::revoked:
      // Ranks that have all given the communicator up may still split or shrink it.
      if (!revoked_.load() && !aborted_.load()) return says("revoked the communicator");
      [[fallthrough]];
    case RankState::joined:
      if (process_alive(record.pid, record.process_start)) return {};
      return says("ended or died");
    case RankState::finalized:
      return says("finalized the communicator");
    case RankState::destroyed:
      return says("destroyed the communicator");
    case RankState::aborted:
      return says("aborted the communicator");
  }
  return {};
}

}  // namespace emu
