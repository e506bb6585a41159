#include <algorithm>
#include <cstring>

#include "communicator.h"
#include "error.h"

namespace emu {

namespace {

struct Range {
  std::size_t begin, count;
};

// The part of `count` elements that falls to a rank, in whole cache lines where it can be.
Range part_of(std::size_t count, std::size_t element, int rank, int nranks) {
  const std::size_t line = 64 / element;
  const std::size_t lines = (count + line - 1) / line;
  const std::size_t per_rank = (lines + nranks - 1) / nranks * line;
  const std::size_t begin = std::min(count, per_rank * rank);
  return {begin, std::min(count, begin + per_rank) - begin};
}

std::size_t largest_contribution(const Call& operation, int nranks) {
  return send_bytes(operation, has_root(operation.kind) ? operation.root : 0, nranks);
}

void copy_unless_same(void* destination, const void* source, std::size_t bytes, Stores stores) {
  if (destination != source && bytes != 0) copy(destination, source, bytes, stores);
}

Stores stores_of(const Operation& operation, int rank, int nranks) {
  const std::size_t sent = send_bytes(operation, rank, nranks);
  const std::size_t received = receive_bytes(operation, rank, nranks);
  const bool in_place = operation.send == operation.receive;
  return stores_for((in_place ? received : sent + received) * static_cast<std::size_t>(nranks));
}

}  // namespace

Outcome Communicator::collective(const Operation& operation, Progress& progress) {
  if (progress.stage == 0) {
    progress.small = largest_contribution(operation, nranks_) <= inline_bytes;
    contribute(operation, ++collectives_, progress.small);
    progress.stage = 1;
  }
  const std::uint64_t number = collectives_;
  const int place = static_cast<int>((number - 1) % 2);
  Meeting& meeting = region_->header().meetings[place];
  if (progress.stage == 1) {
    const Outcome arrived = meet(meeting.arrived, 2 * number - 1, operation, progress);
    if (arrived != Outcome::ready) return arrived;
    if (!same_everywhere(place)) return Outcome::failed;
    if (!share(operation, place, progress.small)) return Outcome::failed;
    // A copy in the region stays until the next meeting but one; buffers are free only when all
    // have read them.
    if (progress.small) return Outcome::ready;
    finished_target_[place] += static_cast<std::uint32_t>(nranks_);
    come_to(meeting.finished, 2 * number, finished_target_[place]);
    progress.stage = 2;
  }
  return meet(meeting.finished, 2 * number, operation, progress);
}

// Leaves what the others need to know, and to read, where they find it.
void Communicator::contribute(Operation operation, std::uint64_t number, bool small) {
  const int place = static_cast<int>((number - 1) % 2);
  if (operation.scalar_on_device != nullptr) {
    std::memcpy(operation.scalar, operation.scalar_on_device, size_of(operation.type));
  }
  Contribution& contribution = region_->contribution(place, rank_);
  contribution.call = operation;
  copy_site(contribution.site, operation.site);
  contribution.send = reinterpret_cast<std::uintptr_t>(operation.send);
  contribution.receive = reinterpret_cast<std::uintptr_t>(operation.receive);
  std::memcpy(contribution.scalar, operation.scalar, sizeof operation.scalar);
  if (small) {
    const std::size_t bytes = send_bytes(operation, rank_, nranks_);
    if (bytes != 0) std::memcpy(region_->inline_data(place, rank_), operation.send, bytes);
  }
  SharedWord& arrived = region_->header().meetings[place].arrived;
  arrived_target_[place] += static_cast<std::uint32_t>(nranks_);
  come_to(arrived, 2 * number - 1, arrived_target_[place]);
}

void Communicator::come_to(SharedWord& word, std::uint64_t step, std::uint32_t target) {
  region_->rank(rank_).meetings.store(step, std::memory_order_release);
  if (word.add(1) == target) word.wake_all();
}

Outcome Communicator::meet(SharedWord& word, std::uint64_t step, const Operation& call,
                           const Progress& progress) {
  const bool arrival = step % 2 == 1;
  const int place = static_cast<int>((step - 1) / 2 % 2);
  const std::uint32_t target = arrival ? arrived_target_[place] : finished_target_[place];
  return wait(
      word, [&] { return static_cast<std::int32_t>(word.value.load() - target) >= 0; },
      [&](int r) { return region_->rank(r).meetings.load() < step; },
      [&] {
        return format("operation %llu (%s)%s", static_cast<unsigned long long>((step + 1) / 2),
                      describe(call).c_str(), at(call.site).c_str());
      },
      progress.may_block ? Patience::endless : Patience::short_of);
}

bool Communicator::same_everywhere(int meeting) {
  const Call& mine = region_->contribution(meeting, rank_).call;
  bool same = true;
  for (int r = 0; r < nranks_ && same; ++r) {
    const Call& other = region_->contribution(meeting, r).call;
    same = other.kind == mine.kind && other.type == mine.type && other.count == mine.count &&
           other.op == mine.op && other.root == mine.root;
  }
  if (same) return true;
  const auto doing = [&](int r) {
    const Contribution& contribution = region_->contribution(meeting, r);
    return describe(contribution.call) + at(contribution.site.text);
  };
  const auto number = static_cast<unsigned long long>(collectives_);
  report(ncclInvalidUsage, difference(format("operation %llu", number), doing));
  return false;
}

unsigned char* Communicator::peer_address(int peer, std::uint64_t address) {
  if (peers_[peer] == nullptr) peers_[peer] = PeerMemory::map(region_->rank(peer));
  if (peers_[peer] != nullptr) return peers_[peer]->at(address);
  report(ncclRemoteError, format("rank %d: %s", peer, last_error().c_str()));
  return nullptr;
}

const unsigned char* Communicator::source(int meeting, int rank, bool small) {
  if (small) return region_->inline_data(meeting, rank);
  return peer_address(rank, region_->contribution(meeting, rank).send);
}

unsigned char* Communicator::destination(int meeting, int rank) {
  return peer_address(rank, region_->contribution(meeting, rank).receive);
}

bool Communicator::share(const Operation& operation, int meeting, bool small) {
  if (operation.count == 0) return true;
  return is_reduction(operation.kind) ? share_reduction(operation, meeting, small)
                                      : share_copies(operation, meeting, small);
}

bool Communicator::share_reduction(const Operation& operation, int meeting, bool small) {
  const std::size_t element = size_of(operation.type);
  const bool to_all = operation.kind == Kind::all_reduce;
  const bool scattered = operation.kind == Kind::reduce_scatter;
  // Without a second meeting nobody may write to another's buffer: each reduces all it needs.
  if (small && operation.kind == Kind::reduce && rank_ != operation.root) return true;
  const Range part = small || scattered ? Range{0, operation.count}
                                        : part_of(operation.count, element, rank_, nranks_);
  const std::size_t offset =
      (scattered ? operation.count * static_cast<std::size_t>(rank_) : part.begin) * element;

  sources_.resize(nranks_);
  scalars_.resize(static_cast<std::size_t>(nranks_) * element);
  for (int r = 0; r < nranks_; ++r) {
    const unsigned char* const from = source(meeting, r, small);
    if (from == nullptr) return false;
    sources_[r] = from + offset;
    std::memcpy(&scalars_[r * element], region_->contribution(meeting, r).scalar, element);
  }
  destinations_.clear();
  if (small || scattered) {
    destinations_.push_back(operation.receive);
  } else {
    for (int r = to_all ? 0 : operation.root; r < (to_all ? nranks_ : operation.root + 1); ++r) {
      unsigned char* const to = destination(meeting, r);
      if (to == nullptr) return false;
      destinations_.push_back(to + offset);
    }
  }
  reduce(operation.type, operation.op, sources_.data(), nranks_, scalars_.data(),
         destinations_.data(), static_cast<int>(destinations_.size()), part.count,
         stores_of(operation, rank_, nranks_));
  return true;
}

bool Communicator::share_copies(const Operation& operation, int meeting, bool small) {
  const std::size_t block = operation.count * size_of(operation.type);
  auto* const receive = static_cast<unsigned char*>(operation.receive);
  const Stores stores = stores_of(operation, rank_, nranks_);
  if (operation.kind == Kind::gather && !small) {
    unsigned char* const to = destination(meeting, operation.root);
    if (to == nullptr) return false;
    copy_unless_same(to + block * rank_, operation.send, block, stores);
    return true;
  }
  if (operation.kind == Kind::gather && rank_ != operation.root) return true;
  if (has_root(operation.kind) && operation.kind != Kind::gather) {
    const unsigned char* const from = source(meeting, operation.root, small);
    if (from == nullptr) return false;
    copy_unless_same(receive, operation.kind == Kind::scatter ? from + block * rank_ : from, block,
                     stores);
    return true;
  }
  // All ranks read at once: each starts with its neighbour, not all with rank 0.
  for (int i = 0; i < nranks_; ++i) {
    const int r = (rank_ + 1 + i) % nranks_;
    const unsigned char* const from = source(meeting, r, small);
    if (from == nullptr) return false;
    copy_unless_same(receive + block * r,
                     operation.kind == Kind::all_to_all ? from + block * rank_ : from, block,
                     stores);
  }
  return true;
}

}  // namespace emu
