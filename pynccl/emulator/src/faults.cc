// Failures that are rehearsed, where they happen: in the calls, and in operations as they begin.

#include "faults.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "error.h"

namespace emu {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

int first_rank(ncclComm_t comm) {
  const auto communicator = comm == nullptr ? nullptr : Communicator::find(comm);
  return communicator == nullptr ? launcher : communicator->first_rank();
}

ncclResult_t rehearsed_failure(const char* function, int rank) {
  const auto result = static_cast<ncclResult_t>(failure_of(function, rank));
  if (result == ncclSuccess) return result;
  return fail(result, "rehearsed fault: this call was told to fail");
}

void Communicator::rehearse(std::size_t operations, Progress& progress) {
  progress.rehearsed = true;
  progress.not_before = Clock::now();
  for (const Blow& blow : blows_at(first_rank_, operations)) {
    switch (blow.kind) {
      case FaultKind::kill:
        ::kill(getpid(), SIGKILL);
        for (;;) ::pause();
      case FaultKind::delay:
        progress.not_before += milliseconds(blow.value);
        break;
      default:
        report(static_cast<ncclResult_t>(blow.value),
               format("rehearsed fault in an operation of rank %d", rank_));
    }
  }
}

bool Communicator::delayed(const Progress& progress) {
  constexpr milliseconds nap{2};
  while (Clock::now() < progress.not_before && !cannot_go_on()) {
    std::this_thread::sleep_for(std::min<Clock::duration>(nap, progress.not_before - Clock::now()));
    if (!progress.may_block) return Clock::now() < progress.not_before;
  }
  return false;
}

}  // namespace emu
