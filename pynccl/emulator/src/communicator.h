#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl_abi.h"
#include "operation.h"
#include "peer_memory.h"
#include "region.h"
#include "stream.h"

namespace emu {

// A user-defined reduction: its handle is ncclNumOps plus its place in the list.
struct CustomOp {
  bool alive;
  Type type;
  unsigned char scalar[largest_element];
  const void* scalar_on_device;
};

struct Exchange;

// One rank of a communicator.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Made and registered; has no peers until join() succeeds.
  static std::shared_ptr<Communicator> create(int device, int nranks, int rank);
  // The live communicator of the handle. Null with last_error() for any other value.
  static std::shared_ptr<Communicator> find(ncclComm_t handle);
  ncclComm_t handle() { return reinterpret_cast<ncclComm_t>(this); }
  // After this find() knows the handle no more.
  void forget();

  // Meets the other ranks. Blocks until all have come.
  ncclResult_t join(const ncclUniqueId& id);
  // Takes part in the agreement of a split: which communicator to join, or none (nranks 0).
  ncclResult_t agree_on_split(int color, int key, ncclUniqueId* id, int* nranks, int* rank);

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  void set_blocking(bool blocking) { blocking_ = blocking; }

  // Success where operations may be given to the communicator.
  ncclResult_t ready();
  // Appends operations that run as one to the streams' work, in the order of all work given.
  ncclResult_t launch(std::vector<Operation> operations,
                      const std::vector<std::shared_ptr<Stream>>& streams);

  ncclResult_t finalize();
  ncclResult_t leave();  // what destroy does: waits for the work, lets the peers know
  void abort();

  ncclResult_t async_error() const { return async_error_.load(std::memory_order_acquire); }
  void set_async_error(ncclResult_t code, const std::string& text);
  void set_progress(ncclResult_t code) { async_error_.store(code, std::memory_order_release); }
  std::string error_text();

  std::mutex& mutex() { return mutex_; }
  std::vector<CustomOp>& custom_ops() { return custom_ops_; }

 private:
  Communicator(int device, int nranks, int rank);

  ncclResult_t claim_rank();
  ncclResult_t check_devices();
  bool agree();

  // Runs on a stream; one at a time, in the order of launch().
  void run(const std::vector<Operation>& operations);
  void run_collective(Operation operation);
  bool same_everywhere(int meeting);
  bool share(const Operation& operation, int meeting, bool small);
  bool share_reduction(const Operation& operation, int meeting, bool small);
  bool share_copies(const Operation& operation, int meeting, bool small);
  // Where this process sees what a rank contributes, and where that rank receives. Null where the
  // rank's memory cannot be mapped any more.
  const unsigned char* source(int meeting, int rank, bool small);
  unsigned char* destination(int meeting, int rank);
  unsigned char* peer_address(int peer, const void* address);

  bool exchange(Exchange& exchange);
  void post_sends(Exchange& exchange);
  bool take_posts(Exchange& exchange);

  using Missing = std::function<bool(int rank)>;
  using Doing = std::function<std::string()>;
  // Waits until `ready`, sleeping on `word`. False where the communicator failed or was aborted.
  // `missing` tells whether a rank is waited for: its death or departure is a failure of all,
  // reported with what this rank was `doing`.
  template <class Ready, class IsMissing, class Describe>
  bool wait(SharedWord& word, const Ready& ready, const IsMissing& missing, const Describe& doing);
  bool cannot_go_on();
  void look_for_lost_ranks(const Missing& missing, const Doing& doing);
  void report(ncclResult_t code, const std::string& text);

  const int device_;
  const int nranks_;
  const int rank_;
  bool blocking_ = true;
  std::shared_ptr<Region> region_;
  std::mutex mutex_;  // launch, and what it reads
  Mark last_work_;
  bool finalized_ = false;
  std::vector<CustomOp> custom_ops_;

  std::atomic<bool> aborted_{false};
  std::atomic<ncclResult_t> async_error_{ncclSuccess};
  std::mutex error_mutex_;
  std::string error_text_;

  // Of the running work alone.
  std::uint64_t collectives_ = 0;
  std::array<std::uint32_t, 2> finished_target_{};
  std::vector<std::shared_ptr<PeerMemory>> peers_;
  std::uint32_t agreements_ = 0;  // of the host's calls
};

template <class Ready, class IsMissing, class Describe>
bool Communicator::wait(SharedWord& word, const Ready& ready, const IsMissing& missing,
                        const Describe& doing) {
  for (int spins = spins_for(nranks_); spins > 0; --spins) {
    if (ready()) return true;
    pause();
  }
  constexpr int nap = 50;  // milliseconds
  const int naps_between_looks = 2 + nranks_ / 32;
  for (int naps = 1;; ++naps) {
    const std::uint32_t seen = word.value.load(std::memory_order_seq_cst);
    if (ready()) return true;
    if (cannot_go_on()) return false;
    word.sleep(seen, nap);
    if (ready()) return true;
    if (naps % naps_between_looks == 0) look_for_lost_ranks(missing, doing);
  }
}

}  // namespace emu
