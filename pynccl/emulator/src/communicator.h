#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "deadlock.h"
#include "nccl_abi.h"
#include "operation.h"
#include "peer_memory.h"
#include "point_to_point.h"
#include "region.h"
#include "stream.h"

namespace emu {

enum class Outcome { ready, failed, later };

// How long a wait may take: till its end, also for a communicator that has failed, or one nap.
enum class Patience { endless, despite_failure, short_of };

// How far a piece of work has come.
struct Progress {
  bool begun = false;
  bool may_block = true;
  std::size_t collective = 0;  // index of the operation that is under way
  int stage = 0;               // of it
  bool small = false;
  std::size_t signal = 0;  // index of the first operation that may still wait for a signal
  std::optional<Exchange> exchange;  // where there are sends or receives
  bool rehearsed = false;  // faults that are due have been taken
  std::chrono::steady_clock::time_point not_before{};
};

// A user-defined reduction: its handle is ncclNumOps plus its place in the list.
struct CustomOp {
  bool alive;
  Type type;
  unsigned char scalar[largest_element];
  const void* scalar_on_device;
};

// What a caller may set of a communicator, of those settings that the emulator heeds.
struct Settings {
  bool blocking = true;
  int contexts = 1;  // numRmaCtx
  int signals = 1;   // numRmaSig
};

// Memory that a rank has registered.
struct Registered {
  void* user_pointer;
  std::size_t bytes;
  const char* site;    // of the call, or null
  bool freed = false;  // and the user was told
};

// Memory that every rank has registered, and where each rank's part lies.
struct Window : Registered {
  std::vector<std::uint64_t> addresses;
  std::vector<std::uint64_t> sizes;
};

// A process that is to join a communicator.
struct Member {
  int pid;
  std::uint64_t start;
};

// What a rank did last, as a part of a sentence: " after 2 operations, the last: ...".
std::string last_of(const RankRecord& rank);
// What a rank has in a group that is not ended, as a part of a sentence; empty for nothing.
std::string held_by(const RankRecord& rank);

// One rank of a communicator.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Registered, but without peers until join() succeeds.
  static std::shared_ptr<Communicator> create(int device, const Settings& settings);
  static std::vector<std::shared_ptr<Communicator>> all();
  // The live communicator of the handle. Null with last_error() for any other value.
  static std::shared_ptr<Communicator> find(ncclComm_t handle);
  // Where whoever issues the next operation leaves the text of its place; see pynccl_call_site.
  const char** site_cell() { return &site_; }
  const char* take_site() { return std::exchange(site_, nullptr); }
  // Operations given to it, and those that are done.
  std::uint64_t issued() const { return issued_.load(); }
  std::uint64_t completed() const { return completed_.load(); }

  ncclComm_t handle() { return reinterpret_cast<ncclComm_t>(this); }
  // After this find() knows the handle no more, but for why: that it was "destroyed", say; null
  // where it never was a communicator.
  void forget(const char* ended);

  // Meets the other ranks; blocks until all have come. `members`, where known, are the processes
  // expected, by rank.
  ncclResult_t join(const ncclUniqueId& id, int nranks, int rank,
                    const std::vector<Member>& members = {}, const char* site = nullptr);

  std::string name() const { return region_ == nullptr ? "not made yet" : region_->name(); }
  int rank() const { return rank_; }
  // The rank in the communicator of a unique id that this one descends from.
  int first_rank() const { return first_rank_; }
  void descend_from(const Communicator& parent) { first_rank_ = parent.first_rank_; }
  int nranks() const { return nranks_; }
  int device() const { return device_; }
  const Settings& settings() const { return settings_; }

  // Success where operations may be given to the communicator.
  ncclResult_t ready();
  // Appends operations that run as one to the streams' work, in the order of all work given.
  ncclResult_t launch(std::vector<Operation> operations,
                      const std::vector<std::shared_ptr<Stream>>& streams);

  // An operation that a group collects, and is told to the others for as long as it does.
  void hold(const Operation& operation, const void* group);
  // All that the group held.
  void let_go(const void* group);
  // Success where no group that is still open holds operations, which its end would lose.
  ncclResult_t may_end();
  // The thread that held them has ended: they will never be launched.
  void lose_held(const std::string& text) { report(ncclInvalidUsage, text); }

  ncclResult_t finalize();
  ncclResult_t leave();  // what destroy does: waits for the work, lets the peers know
  void abort();
  ncclResult_t revoke();
  ncclResult_t suspend();
  ncclResult_t resume();
  std::uint64_t memory(ncclCommMemStat_t statistic);

  // Agreements among ranks, made by the calling threads: each blocks until the others have come.
  // Which communicator this rank shall join; none where `child.nranks` is 0.
  struct Child {
    ncclUniqueId id;
    int nranks = 0;
    int rank = 0;
    std::vector<Member> members;
    const char* site = nullptr;  // where the call came from
  };
  ncclResult_t split(int color, int key, Child* child);
  ncclResult_t shrink(const std::set<int>& excluded, bool abort_work, Child* child);
  ncclResult_t make_growth_id(ncclUniqueId* id);
  ncclResult_t grow(int nranks, const ncclUniqueId* id, Child* child);
  ncclResult_t register_window(void* pointer, std::size_t bytes, const char* site,
                               std::shared_ptr<Window>* window);

  ncclResult_t async_error() const { return async_error_.load(std::memory_order_acquire); }
  void set_async_error(ncclResult_t code, const std::string& text);
  void set_progress(ncclResult_t code) { async_error_.store(code, std::memory_order_release); }
  std::string error_text();

  std::mutex& mutex() { return mutex_; }
  std::vector<CustomOp>& custom_ops() { return custom_ops_; }
  std::set<std::shared_ptr<Registered>>& registrations() { return registrations_; }
  std::set<std::shared_ptr<Window>>& windows() { return windows_; }

 private:
  class Launch;

  // What one group holds.
  struct Held {
    const void* group;
    std::uint64_t since;
    std::uint64_t operations;
    Call first;
    const char* site;
  };

  Communicator(int device, const Settings& settings);

  ncclResult_t claim_rank();
  ncclResult_t check_devices();
  ncclResult_t take_memory();
  void give_back(void*& memory);
  void note_issued(const std::vector<Operation>& operations);
  void wait_for_work();
  ncclResult_t quiesce();
  void tell_of_held();

  ncclResult_t agree(Statement statement, const char* site);
  bool same_matter();
  ncclResult_t hand_out(const std::vector<int>& members, std::uint32_t number, Child* child);

  // Runs on a stream; one at a time, in the order of launch(). Whether it is done: where it may not
  // block it gives up after some milliseconds, to be called again.
  bool advance(const std::vector<Operation>& operations, Progress& progress, bool may_block);
  Outcome begin(const std::vector<Operation>& operations, Progress& progress);
  Outcome work(const std::vector<Operation>& operations, Progress& progress);
  void rehearse(std::size_t operations, Progress& progress);
  bool delayed(const Progress& progress);
  Outcome collective(const Operation& operation, Progress& progress);
  void contribute(Operation operation, std::uint64_t number, bool small);
  void come_to(SharedWord& word, std::uint64_t step, std::uint32_t target);
  Outcome meet(SharedWord& word, std::uint64_t step, const Operation& call, const Progress& progress);
  bool same_everywhere(int meeting);
  bool share(const Operation& operation, int meeting, bool small);
  bool share_reduction(const Operation& operation, int meeting, bool small);
  bool share_copies(const Operation& operation, int meeting, bool small);
  // Where this process sees what a rank contributes, and where that rank receives. Null where the
  // rank's memory cannot be mapped any more.
  const unsigned char* source(int meeting, int rank, bool small);
  unsigned char* destination(int meeting, int rank);
  unsigned char* peer_address(int peer, std::uint64_t address);

  Outcome exchange(Exchange& exchange, bool may_block);
  void post_sends(Exchange& exchange);
  bool take_posts(Exchange& exchange);
  bool put(const Operation& operation);
  Outcome wait_for_signal(const Operation& operation, bool may_block);

  using Missing = std::function<bool(int rank)>;
  using Doing = std::function<std::string()>;
  // Waits until `ready`, sleeping on `word`. Fails where the communicator failed, was aborted or
  // revoked. `missing` tells whether a rank is waited for: its death or departure is a failure of
  // all, reported with what this rank was `doing`.
  template <class Ready, class IsMissing, class Describe>
  Outcome wait(SharedWord& word, const Ready& ready, const IsMissing& missing,
               const Describe& doing, Patience patience = Patience::endless);
  bool cannot_go_on();
  // Whether one was lost. The communicator has failed then, and last_error() tells.
  bool look_for_lost_ranks(const Missing& missing, const Doing& doing);
  std::string why_lost(int rank);
  // Whether those that are waited for wait for this rank in their turn. The communicator has failed
  // then.
  bool look_for_deadlock(LongWait& wait, const Missing& missing, const Doing& doing);
  // Whether one that lives has not come for longer than the user has patience. The communicator has
  // failed then.
  bool look_for_missing_ranks(LongWait& wait, const Missing& missing, const Doing& doing);
  // Says once that one that is waited for has what it is waited for in a group that is still open.
  void look_for_open_groups(LongWait& wait, const Missing& missing, const Doing& doing);
  void report(ncclResult_t code, const std::string& text);
  // The account of ranks that came to the same place with different calls.
  std::string difference(const std::string& place, const std::function<std::string(int)>& doing);
  ncclResult_t failure();

  const int device_;
  const Settings settings_;
  int nranks_ = 0;
  // Threads that may be at work at once: each rank's, and the one that issues for several.
  int busy_threads_ = 0;
  int rank_ = 0;
  int first_rank_ = -1;
  std::shared_ptr<Region> region_;
  std::vector<Member> expected_;
  const char* site_ = nullptr;
  std::atomic<std::uint64_t> issued_{0};
  std::atomic<std::uint64_t> completed_{0};
  std::mutex mutex_;  // launch, and what it reads
  const std::shared_ptr<Sequence> sequence_ = std::make_shared<Sequence>();
  Mark last_captured_;
  std::mutex held_mutex_;
  std::vector<Held> held_;
  bool finalized_ = false;
  bool suspended_ = false;
  std::vector<CustomOp> custom_ops_;
  std::set<std::shared_ptr<Registered>> registrations_;
  std::set<std::shared_ptr<Window>> windows_;
  // What a real communicator keeps on its GPU: a part that suspend gives back, a part it does not.
  void* buffers_ = nullptr;
  void* persistent_ = nullptr;

  std::atomic<bool> aborted_{false};
  std::atomic<bool> revoked_{false};
  std::atomic<ncclResult_t> async_error_{ncclSuccess};
  std::mutex error_mutex_;
  std::string error_text_;

  // Of the running work alone.
  std::uint64_t collectives_ = 0;
  std::array<std::uint32_t, 2> arrived_target_{};
  std::array<std::uint32_t, 2> finished_target_{};
  std::vector<std::shared_ptr<PeerMemory>> peers_;
  std::vector<std::array<std::uint32_t, signal_places>> signals_taken_;
  // Kept from one reduction to the next, whose time to make them would show.
  std::vector<const void*> sources_;
  std::vector<unsigned char> scalars_;
  std::vector<void*> destinations_;

  // Of the agreements alone.
  std::uint32_t agreements_ = 0;
  std::map<std::vector<int>, std::uint32_t> shrinks_;  // how often, by the ranks that stay
  std::uint32_t growths_ = 0;
  bool growth_id_open_ = false;
};

template <class Ready, class IsMissing, class Describe>
Outcome Communicator::wait(SharedWord& word, const Ready& ready, const IsMissing& missing,
                           const Describe& doing, Patience patience) {
  Eagerness eagerness(busy_threads_);
  do {
    if (ready()) return Outcome::ready;
  } while (eagerness.keep_trying());
  constexpr int nap = 50;  // milliseconds
  const auto between_looks = std::chrono::milliseconds(100 + nranks_);
  auto next_look = std::chrono::steady_clock::now() + between_looks;
  LongWait long_wait;
  while (true) {
    const std::uint32_t seen = word.value.load(std::memory_order_seq_cst);
    if (ready()) return Outcome::ready;
    if (patience != Patience::despite_failure && cannot_go_on()) return Outcome::failed;
    word.sleep(seen, nap);
    if (ready()) return Outcome::ready;
    if (patience == Patience::short_of) return Outcome::later;
    if (std::chrono::steady_clock::now() < next_look) continue;
    // In this order: that a rank left may be for a deadlock that it was told of before.
    if (patience == Patience::endless && look_for_deadlock(long_wait, missing, doing)) {
      return Outcome::failed;
    }
    if (look_for_lost_ranks(missing, doing)) return Outcome::failed;
    look_for_open_groups(long_wait, missing, doing);
    if (look_for_missing_ranks(long_wait, missing, doing)) return Outcome::failed;
    next_look = std::chrono::steady_clock::now() + between_looks;
  }
}

}  // namespace emu
