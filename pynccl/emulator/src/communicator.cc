#include "communicator.h"

#include <algorithm>
#include <unordered_map>

#include "device_heap.h"
#include "error.h"
#include "process.h"

namespace emu {

namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, std::shared_ptr<Communicator>> alive;
};

// Never destroyed: streams may still run work of communicators while the process ends.
Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

}  // namespace

Communicator::Communicator(int device, int nranks, int rank)
    : device_(device), nranks_(nranks), rank_(rank), peers_(nranks) {}

std::shared_ptr<Communicator> Communicator::create(int device, int nranks, int rank) {
  std::shared_ptr<Communicator> made(new Communicator(device, nranks, rank));
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().alive[made->handle()] = made;
  return made;
}

std::shared_ptr<Communicator> Communicator::find(ncclComm_t handle) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().alive.find(handle);
  if (found != registry().alive.end()) return found->second;
  fail(ncclInvalidArgument, "%p is not a communicator: never made, or already destroyed or aborted",
       static_cast<void*>(handle));
  return nullptr;
}

void Communicator::forget() {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().alive.erase(handle());
}

ncclResult_t Communicator::join(const ncclUniqueId& id) {
  ncclResult_t result;
  region_ = Region::open(id, nranks_, &result);
  if (region_ == nullptr) return result;
  result = claim_rank();
  if (result != ncclSuccess) return result;
  SharedWord& joined = region_->header().joined;
  const auto complete = [&] { return joined.value.load() == static_cast<std::uint32_t>(nranks_); };
  if (joined.add(1) == static_cast<std::uint32_t>(nranks_)) joined.wake_all();
  const bool all_came = wait(
      joined, complete, [&](int) { return !complete(); },
      [] { return std::string("the creation of the communicator"); });
  if (!all_came) return fail(async_error(), "%s", error_text().c_str());
  region_->close_creator_fd();
  return check_devices();
}

ncclResult_t Communicator::claim_rank() {
  RegionHeader& header = region_->header();
  RankRecord& mine = region_->rank(rank_);
  RankState absent = RankState::absent;
  if (!mine.state.compare_exchange_strong(absent, RankState::joining)) {
    if (header.joined.value.load() == static_cast<std::uint32_t>(nranks_)) {
      return fail(ncclInvalidUsage,
                  "the unique id has already served a communicator of %d ranks; each communicator "
                  "needs a new one",
                  nranks_);
    }
    const std::string text = format("rank %d of %d is taken twice: by process %d and process %d",
                                    rank_, nranks_, mine.pid, own_pid());
    region_->set_failure(ncclInvalidUsage, text);
    return fail(ncclInvalidUsage, "%s", text.c_str());
  }
  const DeviceHeap& heap = heap_of_device(device_);
  mine.pid = own_pid();
  mine.process_start = own_start();
  mine.device = device_;
  mine.physical_device = physical_device(device_);
  mine.heap_fd = heap.fd();
  mine.heap_base = heap.base();
  mine.heap_bytes = heap.capacity();
  mine.state.store(RankState::joined, std::memory_order_release);
  return ncclSuccess;
}

ncclResult_t Communicator::check_devices() {
  std::unordered_map<int, int> rank_on;
  for (int r = 0; r < nranks_; ++r) {
    const int physical = region_->rank(r).physical_device;
    const auto [other, first] = rank_on.emplace(physical, r);
    if (first) continue;
    return fail(ncclInvalidUsage,
                "ranks %d (process %d) and %d (process %d) are both on GPU %d: each rank needs its "
                "own; the emulator shows as many as PYNCCL_EMULATOR_DEVICES says",
                other->second, region_->rank(other->second).pid, r, region_->rank(r).pid, physical);
  }
  return ncclSuccess;
}

bool Communicator::agree() {
  const std::uint32_t number = ++agreements_;
  const std::uint32_t target = number * static_cast<std::uint32_t>(nranks_);
  SharedWord& agreed = region_->header().agreed;
  region_->rank(rank_).agreements.store(number);
  if (agreed.add(1) == target) agreed.wake_all();
  return wait(
      agreed, [&] { return static_cast<std::int32_t>(agreed.value.load() - target) >= 0; },
      [&](int r) { return region_->rank(r).agreements.load() < number; },
      [] { return std::string("the split of the communicator"); });
}

ncclResult_t Communicator::agree_on_split(int color, int key, ncclUniqueId* id, int* nranks,
                                          int* rank) {
  RankRecord& mine = region_->rank(rank_);
  const int place = (agreements_ + 1) % 2;
  mine.color[place] = color;
  mine.key[place] = key;
  if (!agree()) return fail(async_error(), "%s", error_text().c_str());
  *nranks = 0;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  std::vector<int> members;
  for (int r = 0; r < nranks_; ++r) {
    if (region_->rank(r).color[place] == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return region_->rank(a).key[place] < region_->rank(b).key[place];
  });
  *nranks = static_cast<int>(members.size());
  *rank = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
  RankRecord& leader = region_->rank(members.front());
  if (members.front() == rank_) {
    const ncclResult_t result = Region::create(&leader.letter);
    if (result != ncclSuccess) {
      region_->set_failure(result, last_error());
      return result;
    }
    leader.letter_number.value.store(agreements_);
    leader.letter_number.wake_all();
  }
  const bool came = wait(
      leader.letter_number, [&] { return leader.letter_number.value.load() == agreements_; },
      [&](int r) { return r == members.front() && leader.letter_number.value.load() != agreements_; },
      [] { return std::string("the split of the communicator"); });
  if (!came) return fail(async_error(), "%s", error_text().c_str());
  *id = leader.letter;
  return ncclSuccess;
}

ncclResult_t Communicator::ready() {
  const ncclResult_t state = async_error();
  if (state == ncclInProgress) {
    return fail(ncclInvalidUsage,
                "the communicator is still being made (ncclInProgress): wait until "
                "ncclCommGetAsyncError says success");
  }
  if (state != ncclSuccess) return fail(state, "%s", error_text().c_str());
  if (finalized_) return fail(ncclInvalidUsage, "the communicator was finalized: no more operations");
  return ncclSuccess;
}

ncclResult_t Communicator::launch(std::vector<Operation> operations,
                                  const std::vector<std::shared_ptr<Stream>>& streams) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const ncclResult_t state = ready();
  if (state != ncclSuccess) return state;
  const std::shared_ptr<Stream>& first = streams.front();
  for (std::size_t i = 1; i < streams.size(); ++i) first->wait_for(streams[i]->tail());
  if (last_work_.stream != nullptr && last_work_.stream != first) first->wait_for(last_work_);
  last_work_ = first->enqueue(
      [self = shared_from_this(), operations = std::move(operations)] { self->run(operations); });
  for (std::size_t i = 1; i < streams.size(); ++i) streams[i]->wait_for(last_work_);
  return ncclSuccess;
}

ncclResult_t Communicator::finalize() {
  Mark last;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (finalized_) return fail(ncclInvalidUsage, "the communicator was finalized already");
    finalized_ = true;
    last = last_work_;
  }
  if (last.stream != nullptr) last.wait();
  if (region_ != nullptr) region_->rank(rank_).state.store(RankState::finalized);
  return async_error() == ncclInProgress ? ncclSuccess : async_error();
}

ncclResult_t Communicator::leave() {
  if (!finalized_) finalize();
  if (region_ != nullptr) region_->rank(rank_).state.store(RankState::destroyed);
  return ncclSuccess;
}

void Communicator::abort() {
  aborted_.store(true);
  if (region_ != nullptr) {
    region_->rank(rank_).state.store(RankState::aborted);
    region_->wake_everyone();
  }
  Mark last;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    last = last_work_;
  }
  if (last.stream != nullptr) last.wait();
}

void Communicator::set_async_error(ncclResult_t code, const std::string& text) {
  const std::lock_guard<std::mutex> lock(error_mutex_);
  const ncclResult_t now = async_error();
  if (now != ncclSuccess && now != ncclInProgress) return;
  error_text_ = text;
  async_error_.store(code, std::memory_order_release);
}

std::string Communicator::error_text() {
  const std::lock_guard<std::mutex> lock(error_mutex_);
  return error_text_;
}

bool Communicator::cannot_go_on() {
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

void Communicator::look_for_lost_ranks(const Missing& missing, const Doing& doing) {
  for (int r = 0; r < nranks_; ++r) {
    if (!missing(r)) continue;
    const RankRecord& record = region_->rank(r);
    const RegionHeader& header = region_->header();
    std::string what;
    switch (record.state.load(std::memory_order_acquire)) {
      case RankState::absent:
      case RankState::joining:
        if (!process_alive(header.creator_pid, header.creator_start)) {
          what = format("process %d, which made the unique id, ended before all ranks came",
                        header.creator_pid);
        }
        break;
      case RankState::joined:
        if (!process_alive(record.pid, record.process_start)) {
          what = format("rank %d (process %d) has ended or died", r, record.pid);
        }
        break;
      case RankState::finalized:
        what = format("rank %d (process %d) has finalized the communicator", r, record.pid);
        break;
      case RankState::destroyed:
        what = format("rank %d (process %d) has destroyed the communicator", r, record.pid);
        break;
      case RankState::aborted:
        what = format("rank %d (process %d) has aborted the communicator", r, record.pid);
        break;
    }
    // What it did last may have been what was waited for.
    if (what.empty() || !missing(r)) continue;
    report(ncclRemoteError,
           format("%s while rank %d waits for it in %s", what.c_str(), rank_, doing().c_str()));
    return;
  }
}

}  // namespace emu
