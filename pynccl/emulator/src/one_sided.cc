#include "communicator.h"
#include "error.h"

namespace emu {

namespace {

// As a part of a sentence; nothing for the one that most programs use.
std::string name_of_signal(int place) {
  if (place == 0) return {};
  return format(" (signal %d of context %d)", place % most_signals, place / most_signals);
}

}  // namespace

bool Communicator::put(const Operation& operation) {
  const int peer = operation.root;
  const std::size_t bytes = operation.count * size_of(operation.type);
  if (operation.kind == Kind::put && bytes != 0) {
    unsigned char* const to =
        peer_address(peer, operation.window->addresses[peer] + operation.offset);
    if (to == nullptr) return false;
    copy(to, operation.send, bytes, stores_for(2 * bytes));
  }
  // The signal is seen only after the data that precede it.
  region_->signals(rank_, peer).sent[operation.signal_place].fetch_add(1);
  region_->rank(peer).bell.add_and_wake(1);
  return true;
}

Outcome Communicator::wait_for_signal(const Operation& operation, bool may_block) {
  const int peer = operation.root;
  std::atomic<std::uint32_t>& sent = region_->signals(peer, rank_).sent[operation.signal_place];
  std::uint32_t& taken = signals_taken_[peer][operation.signal_place];
  const auto wanted = static_cast<std::uint32_t>(operation.signal_count);
  const auto have = [&] { return sent.load() - taken; };
  const auto enough = [&] { return have() >= wanted; };
  const Outcome outcome = wait(
      region_->rank(rank_).bell, enough, [&](int r) { return r == peer && !enough(); },
      [&] {
        return format("%s, of which %u came%s%s", describe(operation).c_str(), have(),
                      name_of_signal(operation.signal_place).c_str(), at(operation.site).c_str());
      },
      may_block ? Patience::endless : Patience::short_of);
  if (outcome == Outcome::ready) taken += wanted;
  return outcome;
}

}  // namespace emu
