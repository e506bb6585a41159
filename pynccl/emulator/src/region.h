#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "futex.h"
#include "nccl_abi.h"
#include "operation.h"

namespace emu {

// The memory that the ranks of one communicator share: a memfd made by whoever made the unique id.
// Zero bytes are a valid initial state of everything in it.

constexpr int post_depth = 8;
// One-sided signals between two ranks: contexts times signal indices.
constexpr int most_contexts = 8;
constexpr int most_signals = 8;
constexpr int signal_places = most_contexts * most_signals;
// Contributions up to this size travel in the region itself: one meeting of the ranks instead of two.
constexpr std::size_t inline_bytes = 8192;

enum class RankState : std::uint32_t {
  absent,
  joining,
  joined,
  revoked,
  finalized,
  destroyed,
  aborted
};

enum class Matter : int { split, window };

// What a rank says in an agreement: of a split, or of the registration of a window.
struct Statement {
  Matter matter;
  int color;
  int key;
  std::uint64_t address;
  std::uint64_t bytes;
  Site site;
};

struct alignas(64) RankRecord {
  std::atomic<RankState> state;
  int pid;
  std::uint64_t process_start;
  int device;           // ordinal in its process
  int physical_device;  // on the node
  int heap_fd;
  int board_fd;
  std::uint64_t heap_base;
  std::uint64_t heap_bytes;
  // Meetings of collectives that this rank has come to: twice the number of the operation.
  std::atomic<std::uint64_t> meetings;
  // Rung when a send is posted for this rank, or one of its own was received.
  SharedWord bell;
  // Agreements that this rank has come to. What it says in one stays until all have come to the
  // next, hence two places.
  std::atomic<std::uint32_t> agreements;
  // The last operation given to it, and how many were.
  std::atomic<std::uint64_t> issued;
  Call last_call;
  Site last_site;
  // Operations in groups that its threads have not ended, the first of them, and since when.
  std::atomic<std::uint64_t> held;
  std::atomic<std::uint64_t> held_since;
  Call held_call;
  Site held_site;
  Statement statements[2];
  // The unique id of a new communicator for others of this one, and in which agreement it was given.
  SharedWord letter_number;
  ncclUniqueId letter;
};

// One rank's part of a collective operation, as the others see it.
struct Contribution {
  Call call;
  std::uint64_t send;
  std::uint64_t receive;
  unsigned char scalar[largest_element];
  Site site;
};

// Where the ranks meet for a collective. Two are used in turn: a rank comes to one only when all
// have come to the other, so nobody still reads what it overwrites.
struct alignas(64) Meeting {
  SharedWord arrived;
  alignas(64) SharedWord finished;
};

struct Post {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t count;
  int type;
  Site site;
};

// Signals that one rank has sent another, by context and index.
struct alignas(64) SignalCounts {
  std::atomic<std::uint32_t> sent[signal_places];
};

// Sends from one rank to another, in order.
struct alignas(64) PostQueue {
  std::atomic<std::uint32_t> posted;
  std::atomic<std::uint32_t> received;
  Post posts[post_depth];
};

struct RegionHeader {
  std::uint64_t nonce;
  int creator_pid;
  std::uint64_t creator_start;
  std::atomic<int> nranks;
  SharedWord joined;
  alignas(64) Meeting meetings[2];
  // Arrivals at agreements.
  alignas(64) SharedWord agreed;
  // The id of the last growth and its number.
  SharedWord growths;
  ncclUniqueId growth_id;
  alignas(64) std::atomic<std::uint32_t> failure;  // 0 none, 1 being written, 2 written
  std::atomic<int> failure_code;
  char failure_text[4096];
};

class Region {
 public:
  // Makes a region and the id that leads to it. The memfd stays open in this process until all
  // ranks have joined.
  static ncclResult_t create(ncclUniqueId* id);
  // Maps the region of the id for a communicator of `nranks`. Null with last_error() on failure.
  static std::shared_ptr<Region> open(const ncclUniqueId& id, int nranks, ncclResult_t* result);
  ~Region();

  RegionHeader& header() { return *reinterpret_cast<RegionHeader*>(base_); }
  RankRecord& rank(int rank);
  Contribution& contribution(int meeting, int rank);
  unsigned char* inline_data(int meeting, int rank);
  PostQueue& posts(int source, int destination);
  SignalCounts& signals(int source, int destination);
  int nranks() const { return nranks_; }
  // Short name of the communicator in messages.
  std::string name() const;

  // Keeps the first failure of the communicator; every waiting rank sees it.
  void set_failure(ncclResult_t code, const std::string& text);
  bool failed() { return header().failure.load(std::memory_order_acquire) == 2; }
  void wake_everyone();
  // Ends the life of the memfd where this process holds it.
  void close_creator_fd();

 private:
  Region() = default;
  unsigned char* base_ = nullptr;
  std::size_t bytes_ = 0;
  int nranks_ = 0;
  RankRecord* ranks_ = nullptr;
  Contribution* contributions_ = nullptr;
  unsigned char* inline_data_ = nullptr;
  PostQueue* posts_ = nullptr;
  SignalCounts* signals_ = nullptr;
};

}  // namespace emu
