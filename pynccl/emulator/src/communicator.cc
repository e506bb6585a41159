#include "communicator.h"

#include <algorithm>
#include <unordered_map>

#include "accesses.h"
#include "device_heap.h"
#include "error.h"
#include "process.h"

namespace emu {

namespace {

constexpr std::size_t persistent_bytes = 65536;
constexpr std::size_t buffer_bytes_per_rank = 65536;

// Communicators that have ended are remembered for the messages of who goes on using them.
constexpr std::size_t most_remembered = 1024;

struct Registry {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, std::shared_ptr<Communicator>> alive;
  std::unordered_map<ncclComm_t, std::string> ended;
};

// Never destroyed: streams may still run work of communicators while the process ends.
Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

template <class AllHeld>
auto find_group(AllHeld& held, const void* group) {
  return std::find_if(held.begin(), held.end(),
                      [group](const auto& one) { return one.group == group; });
}

}  // namespace

Communicator::Communicator(int device, const Settings& settings)
    : device_(device), settings_(settings) {}

std::shared_ptr<Communicator> Communicator::create(int device, const Settings& settings) {
  std::shared_ptr<Communicator> made(new Communicator(device, settings));
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().alive[made->handle()] = made;
  registry().ended.erase(made->handle());
  return made;
}

std::vector<std::shared_ptr<Communicator>> Communicator::all() {
  std::vector<std::shared_ptr<Communicator>> alive;
  const std::lock_guard<std::mutex> lock(registry().mutex);
  for (const auto& [handle, communicator] : registry().alive) alive.push_back(communicator);
  return alive;
}

std::shared_ptr<Communicator> Communicator::find(ncclComm_t handle) {
  if (in_forked_child()) {
    fail(ncclInvalidArgument,
         "process %d was forked from one that had communicators, and NCCL and CUDA work in that one "
         "alone: start processes before, or as multiprocessing's spawn does", own_pid());
    return nullptr;
  }
  const std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().alive.find(handle);
  if (found != registry().alive.end()) return found->second;
  const auto ended = registry().ended.find(handle);
  fail(ncclInvalidArgument, "%p is not a communicator: %s", static_cast<void*>(handle),
       ended == registry().ended.end() ? "there never was one" : ended->second.c_str());
  return nullptr;
}

void Communicator::forget(const char* ended) {
  std::string text;
  if (ended != nullptr && region_ != nullptr) {
    text = format("it was communicator %s (rank %d of %d), which this process %s%s; make a new one",
                  region_->name().c_str(), rank_, nranks_, ended,
                  last_of(region_->rank(rank_)).c_str());
  }
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().alive.erase(handle());
  if (registry().ended.size() >= most_remembered) registry().ended.clear();
  if (!text.empty()) registry().ended[handle()] = text;
}

ncclResult_t Communicator::join(const ncclUniqueId& id, int nranks, int rank,
                                const std::vector<Member>& members, const char* site) {
  nranks_ = busy_threads_ = nranks;
  rank_ = rank;
  if (first_rank_ < 0) first_rank_ = rank;
  expected_ = members;
  peers_.resize(nranks);
  signals_taken_.resize(nranks);
  ncclResult_t result;
  region_ = Region::open(id, nranks, &result);
  if (region_ == nullptr) return result;
  result = claim_rank();
  if (result != ncclSuccess) return result;
  SharedWord& joined = region_->header().joined;
  const auto complete = [&] { return joined.value.load() == static_cast<std::uint32_t>(nranks_); };
  if (joined.add(1) == static_cast<std::uint32_t>(nranks_)) joined.wake_all();
  const Outcome outcome = wait(
      joined, complete, [&](int) { return !complete(); },
      [&] { return "the creation of the communicator" + at(site); });
  if (outcome != Outcome::ready) return failure();
  region_->close_creator_fd();
  result = check_devices();
  return result != ncclSuccess ? result : take_memory();
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
  mine.board_fd = own_board_fd();
  mine.heap_base = heap.base();
  mine.heap_bytes = heap.capacity();
  mine.state.store(RankState::joined, std::memory_order_release);
  return ncclSuccess;
}

ncclResult_t Communicator::check_devices() {
  std::unordered_map<int, int> rank_on;
  for (int r = 0; r < nranks_; ++r) {
    if (r != rank_ && region_->rank(r).pid == own_pid()) busy_threads_ = nranks_ + 1;
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

ncclResult_t Communicator::take_memory() {
  if (persistent_ == nullptr) persistent_ = heap_of_device(device_).allocate(persistent_bytes);
  if (buffers_ == nullptr) {
    buffers_ = heap_of_device(device_).allocate(buffer_bytes_per_rank * nranks_);
  }
  if (persistent_ != nullptr && buffers_ != nullptr) return ncclSuccess;
  return fail(ncclUnhandledCudaError, "GPU %d has no memory left for the communicator's buffers",
              device_);
}

void Communicator::give_back(void*& memory) {
  if (memory != nullptr) heap_of_device(device_).release(memory);
  memory = nullptr;
}

std::uint64_t Communicator::memory(ncclCommMemStat_t statistic) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t buffers = buffer_bytes_per_rank * nranks_;
  switch (statistic) {
    case ncclStatGpuMemSuspend:
      return buffers;
    case ncclStatGpuMemSuspended:
      return suspended_ ? 1 : 0;
    case ncclStatGpuMemPersist:
      return persistent_bytes;
    case ncclStatGpuMemTotal:
      return buffers + persistent_bytes;
  }
  return 0;
}

ncclResult_t Communicator::ready() {
  const ncclResult_t state = async_error();
  if (state == ncclInProgress) {
    return fail(ncclInvalidUsage,
                "the communicator is still being made (ncclInProgress): wait until "
                "ncclCommGetAsyncError says success");
  }
  if (state != ncclSuccess) return fail(state, "%s", error_text().c_str());
  const char* const why = revoked_     ? "was revoked: only split, shrink, abort and destroy are left"
                          : aborted_   ? "was aborted: make a new one"
                          : suspended_ ? "is suspended: resume it first"
                          : finalized_ ? "was finalized: it takes no more operations, make a new one"
                                       : nullptr;
  if (why != nullptr) {
    return fail(ncclInvalidUsage, "communicator %s (rank %d of %d) %s", name().c_str(), rank_, nranks_,
                why);
  }
  return ncclSuccess;
}

// The operations of one call or group, and how far they have come.
class Communicator::Launch : public Steps {
 public:
  Launch(std::shared_ptr<Communicator> communicator, std::vector<Operation> operations)
      : communicator_(std::move(communicator)), operations_(std::move(operations)) {}

  bool advance(bool may_block) override {
    return communicator_->advance(operations_, progress_, may_block);
  }
  void run_anew() const override {
    Progress anew;
    communicator_->advance(operations_, anew, true);
  }

 private:
  const std::shared_ptr<Communicator> communicator_;
  const std::vector<Operation> operations_;
  Progress progress_;
};

ncclResult_t Communicator::launch(std::vector<Operation> operations,
                                  const std::vector<std::shared_ptr<Stream>>& streams) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const ncclResult_t state = ready();
  if (state != ncclSuccess) return state;
  const std::shared_ptr<Stream>& first = streams.front();
  for (std::size_t i = 1; i < streams.size(); ++i) first->wait_for(streams[i]->next());
  const std::lock_guard<std::mutex> in_sequence(sequence_->mutex);
  if (sequence_->last.stream != first) first->wait_for(sequence_->last);
  if (last_captured_.stream != nullptr && first->capturing()) first->wait_for(last_captured_);
  if (costly_checks()) {
    const ncclResult_t ordered = check_races(operations, *first, rank_, nranks_);
    if (ordered != ncclSuccess) return ordered;
  }
  note_issued(operations);
  const Mark done = first->enqueue(
      std::make_shared<Launch>(shared_from_this(), std::move(operations)), sequence_);
  for (std::size_t i = 1; i < streams.size(); ++i) streams[i]->wait_for(done);
  // What a graph holds runs when that is launched, and nothing that is launched here is behind it.
  (done.captured == nullptr ? sequence_->last : last_captured_) = done;
  return ncclSuccess;
}

// What the others are told of a rank that does not come.
void Communicator::note_issued(const std::vector<Operation>& operations) {
  RankRecord& mine = region_->rank(rank_);
  mine.last_call = operations.back();
  copy_site(mine.last_site, operations.back().site);
  mine.issued.store(issued_ += operations.size(), std::memory_order_release);
}

void Communicator::hold(const Operation& operation, const void* group) {
  const std::lock_guard<std::mutex> lock(held_mutex_);
  const auto found = find_group(held_, group);
  if (found != held_.end()) {
    ++found->operations;
  } else {
    held_.push_back({group, board_clock(), 1, operation, operation.site});
    if (held_.size() == 1) tell_of_held();
  }
  region_->rank(rank_).held.fetch_add(1, std::memory_order_release);
}

void Communicator::let_go(const void* group) {
  const std::lock_guard<std::mutex> lock(held_mutex_);
  const auto found = find_group(held_, group);
  if (found == held_.end()) return;
  region_->rank(rank_).held.fetch_sub(found->operations);
  const bool told = found == held_.begin();
  held_.erase(found);
  if (told && !held_.empty()) tell_of_held();
}

// Leaves the first operation of the group that is open longest for the others to read.
void Communicator::tell_of_held() {
  RankRecord& mine = region_->rank(rank_);
  mine.held_since.store(0);
  mine.held_call = held_.front().first;
  copy_site(mine.held_site, held_.front().site);
  mine.held_since.store(held_.front().since, std::memory_order_release);
}

ncclResult_t Communicator::may_end() {
  if (region_ == nullptr || async_error() != ncclSuccess) return ncclSuccess;
  const std::string held = held_by(region_->rank(rank_));
  if (held.empty()) return ncclSuccess;
  return fail(ncclInvalidUsage,
              "rank %d would end communicator %s%s: end the group, by ncclGroupEnd, before",
              rank_, region_->name().c_str(), held.c_str());
}

void Communicator::wait_for_work() {
  Mark last;
  {
    const std::lock_guard<std::mutex> lock(sequence_->mutex);
    last = sequence_->last;
  }
  if (last.stream != nullptr) last.wait();
}

ncclResult_t Communicator::finalize() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (revoked_) {
      return fail(ncclInvalidUsage,
                  "the communicator was revoked, which leaves nothing to finalize: destroy it");
    }
    if (finalized_) return fail(ncclInvalidUsage, "the communicator was finalized already");
    finalized_ = true;
  }
  wait_for_work();
  if (region_ != nullptr) region_->rank(rank_).state.store(RankState::finalized);
  const ncclResult_t state = async_error();
  return state == ncclSuccess || state == ncclInProgress ? ncclSuccess : failure();
}

ncclResult_t Communicator::leave() {
  wait_for_work();
  if (region_ != nullptr) region_->rank(rank_).state.store(RankState::destroyed);
  give_back(buffers_);
  give_back(persistent_);
  return ncclSuccess;
}

void Communicator::abort() {
  aborted_.store(true);
  if (region_ != nullptr) {
    region_->rank(rank_).state.store(RankState::aborted);
    region_->wake_everyone();
  }
  wait_for_work();
  give_back(buffers_);
  give_back(persistent_);
}

ncclResult_t Communicator::revoke() {
  if (region_ == nullptr) return fail(ncclInvalidUsage, "the communicator has no ranks yet");
  revoked_.store(true);
  region_->rank(rank_).state.store(RankState::revoked);
  region_->wake_everyone();
  return quiesce();
}

ncclResult_t Communicator::quiesce() {
  wait_for_work();
  // What stopped the work has been dealt with; the state tells of what comes.
  const std::lock_guard<std::mutex> lock(error_mutex_);
  async_error_.store(ncclSuccess);
  error_text_.clear();
  return ncclSuccess;
}

ncclResult_t Communicator::suspend() {
  ncclResult_t result = ready();
  if (result != ncclSuccess) return result;
  wait_for_work();
  const std::lock_guard<std::mutex> lock(mutex_);
  suspended_ = true;
  give_back(buffers_);
  return ncclSuccess;
}

ncclResult_t Communicator::resume() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!suspended_) return fail(ncclInvalidUsage, "the communicator is not suspended");
  const ncclResult_t result = take_memory();
  if (result == ncclSuccess) suspended_ = false;
  return result;
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

}  // namespace emu
