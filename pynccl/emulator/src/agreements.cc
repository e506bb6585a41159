// What ranks settle between them outside of streams: new communicators, registered windows.

#include <algorithm>

#include "communicator.h"
#include "device_heap.h"
#include "error.h"

namespace emu {

namespace {

// Letters of shrinks are numbered apart from those of agreements, to which all ranks come.
constexpr std::uint32_t shrink_letter = 0x80000000;

// What the ranks that stay number a shrink by: others may have shrunk the communicator without them.
std::uint32_t shrink_number(const std::vector<int>& members, std::uint32_t times) {
  std::uint32_t hash = times * 2654435761U;
  for (const int r : members) hash = (hash ^ static_cast<std::uint32_t>(r)) * 16777619U;
  return shrink_letter | hash;
}

std::string describe(const Statement& said) {
  if (said.matter == Matter::window) {
    return format("registration of a window of %llu bytes",
                  static_cast<unsigned long long>(said.bytes));
  }
  if (said.color == NCCL_SPLIT_NOCOLOR) return "split without a color";
  return format("split of color %d, key %d", said.color, said.key);
}

}  // namespace

ncclResult_t Communicator::agree(Statement statement, const char* site) {
  copy_site(statement.site, site);
  const std::uint32_t number = ++agreements_;
  const std::uint32_t target = number * static_cast<std::uint32_t>(nranks_);
  SharedWord& agreed = region_->header().agreed;
  RankRecord& mine = region_->rank(rank_);
  mine.statements[number % 2] = statement;
  mine.agreements.store(number);
  if (agreed.add(1) == target) agreed.wake_all();
  const Outcome outcome = wait(
      agreed, [&] { return static_cast<std::int32_t>(agreed.value.load() - target) >= 0; },
      [&](int r) { return region_->rank(r).agreements.load() < number; },
      [&] {
        return format("agreement %u (%s)%s", number, describe(statement).c_str(), at(site).c_str());
      },
      revoked_ ? Patience::despite_failure : Patience::endless);
  return outcome == Outcome::ready && same_matter() ? ncclSuccess : failure();
}

bool Communicator::same_matter() {
  const auto said = [&](int r) -> const Statement& {
    return region_->rank(r).statements[agreements_ % 2];
  };
  bool same = true;
  for (int r = 0; r < nranks_; ++r) same = same && said(r).matter == said(rank_).matter;
  if (same) return true;
  report(ncclInvalidUsage,
         difference(format("agreement %u", agreements_),
                    [&](int r) { return describe(said(r)) + at(said(r).site.text); }));
  return false;
}

ncclResult_t Communicator::split(int color, int key, Child* child) {
  const ncclResult_t result = agree({Matter::split, color, key, 0, 0, {}}, child->site);
  if (result != ncclSuccess || color == NCCL_SPLIT_NOCOLOR) return result;
  const auto said = [&](int r) -> const Statement& {
    return region_->rank(r).statements[agreements_ % 2];
  };
  std::vector<int> members;
  for (int r = 0; r < nranks_; ++r) {
    if (said(r).color == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return said(a).key < said(b).key; });
  return hand_out(members, agreements_, child);
}

// The first of the members makes the id of their communicator and leaves it for the others.
ncclResult_t Communicator::hand_out(const std::vector<int>& members, std::uint32_t number,
                                    Child* child) {
  child->nranks = static_cast<int>(members.size());
  child->rank = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
  for (const int r : members) {
    child->members.push_back({region_->rank(r).pid, region_->rank(r).process_start});
  }
  const int first = members.front();
  RankRecord& leader = region_->rank(first);
  SharedWord& word = leader.letter_number;
  if (first == rank_) {
    const ncclResult_t result = Region::create(&leader.letter);
    if (result != ncclSuccess) {
      region_->set_failure(result, last_error());
      return result;
    }
    word.value.store(number);
    word.wake_all();
  }
  const auto given = [&] { return word.value.load() == number; };
  const bool despite_failure = revoked_ || (number & shrink_letter) != 0;
  const Outcome outcome = wait(
      word, given, [&](int r) { return r == first && !given(); },
      [&] { return "the creation of a communicator from this one" + at(child->site); },
      despite_failure ? Patience::despite_failure : Patience::endless);
  if (outcome != Outcome::ready) return (number & shrink_letter) != 0 ? ncclRemoteError : failure();
  child->id = leader.letter;
  return ncclSuccess;
}

ncclResult_t Communicator::shrink(const std::set<int>& excluded, bool abort_work, Child* child) {
  if (abort_work) {
    aborted_.store(true);
    region_->wake_everyone();
    quiesce();
  } else {
    const ncclResult_t state = async_error();
    // In progress is, where it is not blocking, this very call.
    if (state != ncclSuccess && state != ncclInProgress) {
      return fail(state, "%s; shrink it with NCCL_SHRINK_ABORT, or revoke it first",
                  error_text().c_str());
    }
    wait_for_work();
  }
  std::vector<int> members;
  for (int r = 0; r < nranks_; ++r) {
    if (excluded.count(r) == 0) members.push_back(r);
  }
  return hand_out(members, shrink_number(members, ++shrinks_[members]), child);
}

ncclResult_t Communicator::make_growth_id(ncclUniqueId* id) {
  if (growth_id_open_) {
    return fail(ncclInvalidUsage, "the last unique id of this communicator was not used yet");
  }
  const ncclResult_t result = Region::create(id);
  growth_id_open_ = result == ncclSuccess;
  return result;
}

ncclResult_t Communicator::grow(int nranks, const ncclUniqueId* id, Child* child) {
  wait_for_work();
  RegionHeader& header = region_->header();
  const std::uint32_t number = ++growths_;
  if (id != nullptr) {
    header.growth_id = *id;
    header.growths.value.store(number);
    header.growths.wake_all();
  }
  const auto given = [&] { return header.growths.value.load() == number; };
  const Outcome outcome = wait(
      header.growths, given, [&](int) { return !given(); },
      [&] { return "the unique id of a growth" + at(child->site); });
  if (outcome != Outcome::ready) return failure();
  growth_id_open_ = false;
  child->id = header.growth_id;
  child->nranks = nranks;
  child->rank = rank_;
  for (int r = 0; r < nranks_; ++r) {
    child->members.push_back({region_->rank(r).pid, region_->rank(r).process_start});
  }
  child->members.resize(nranks, {0, 0});
  return ncclSuccess;
}

ncclResult_t Communicator::register_window(void* pointer, std::size_t bytes, const char* site,
                                           std::shared_ptr<Window>* window) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const ncclResult_t result = agree({Matter::window, 0, 0, address, bytes, {}}, site);
  if (result != ncclSuccess) return result;
  auto made = std::make_shared<Window>();
  static_cast<Registered&>(*made) = {pointer, bytes, site};
  for (int r = 0; r < nranks_; ++r) {
    const Statement& said = region_->rank(r).statements[agreements_ % 2];
    made->addresses.push_back(said.address);
    made->sizes.push_back(said.bytes);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  windows_.insert(made);
  *window = std::move(made);
  return ncclSuccess;
}

}  // namespace emu
