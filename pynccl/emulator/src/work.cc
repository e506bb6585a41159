// How the operations of one launch run: on a stream, in steps that may be taken by different threads.

#include <algorithm>

#include "communicator.h"
#include "driver_faults.h"
#include "point_to_point.h"

namespace emu {

namespace {

bool is_message(const Operation& operation) {
  return operation.kind == Kind::send || operation.kind == Kind::receive;
}

}  // namespace

bool Communicator::advance(const std::vector<Operation>& operations, Progress& progress,
                           bool may_block) {
  progress.may_block = may_block;
  Outcome outcome = progress.begun ? Outcome::ready : begin(operations, progress);
  if (outcome == Outcome::ready) outcome = work(operations, progress);
  if (outcome == Outcome::later) return false;
  if (outcome == Outcome::ready) completed_ += operations.size();
  return true;
}

Outcome Communicator::begin(const std::vector<Operation>& operations, Progress& progress) {
  if (faults_are_set.load(std::memory_order_relaxed)) {
    if (!progress.rehearsed) rehearse(operations.size(), progress);
    if (delayed(progress)) return Outcome::later;
  }
  progress.begun = true;
  if (cannot_go_on()) return Outcome::failed;
  // What peers may wait for comes first: they need not issue the rest in the same group.
  if (std::any_of(operations.begin(), operations.end(), is_message)) {
    post_sends(progress.exchange.emplace(operations));
  }
  for (const Operation& operation : operations) {
    const bool gives = operation.kind == Kind::put || operation.kind == Kind::signal;
    if (gives && !put(operation)) return Outcome::failed;
  }
  return Outcome::ready;
}

Outcome Communicator::work(const std::vector<Operation>& operations, Progress& progress) {
  for (; progress.collective < operations.size(); ++progress.collective) {
    const Operation& operation = operations[progress.collective];
    if (!is_collective(operation.kind)) continue;
    const Outcome outcome = collective(operation, progress);
    if (outcome != Outcome::ready) return outcome;
    progress.stage = 0;
  }
  if (progress.exchange.has_value()) {
    const Outcome outcome = exchange(*progress.exchange, progress.may_block);
    if (outcome != Outcome::ready) return outcome;
  }
  for (; progress.signal < operations.size(); ++progress.signal) {
    const Operation& operation = operations[progress.signal];
    if (operation.kind != Kind::wait_signal) continue;
    const Outcome outcome = wait_for_signal(operation, progress.may_block);
    if (outcome != Outcome::ready) return outcome;
  }
  return Outcome::ready;
}

}  // namespace emu
