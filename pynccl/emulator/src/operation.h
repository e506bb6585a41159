#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "reduce.h"

namespace emu {

enum class Kind : int {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  receive,
  put,    // with a signal
  signal,
  wait_signal
};

struct Window;

constexpr std::size_t largest_element = 8;

// A call as the ranks compare it. `count` is the argument of the C function.
struct Call {
  Kind kind;
  Type type;
  Op op;
  int root;  // the peer of a send, receive, put or signal
  std::size_t count;
  int signal_count;  // of signals waited for
};

// Where a call came from, "train.py:42", as the ranks tell each other; empty where nobody said.
struct Site {
  char text[104];
};

// What one rank asked for, in its own addresses.
struct Operation : Call {
  const void* send;
  void* receive;
  // Of pre_mul_sum: the scalar itself, or where on the GPU it is read when the operation runs.
  unsigned char scalar[largest_element];
  const void* scalar_on_device;
  // Of the one-sided kinds: where in the peer's part of the window, and which of the signals.
  std::shared_ptr<Window> window;
  std::size_t offset;
  int signal_place;
  const char* site;  // text that outlives the process's communicators, or null
  // The allocations of both buffers when the call was made; 0 for none.
  std::uint64_t send_allocation;
  std::uint64_t receive_allocation;
};

const char* name_of(Kind kind);
const char* name_of(Type type);
const char* name_of(Op op);

bool is_reduction(Kind kind);
bool is_collective(Kind kind);
bool names_peer(Kind kind);
bool has_root(Kind kind);

// As a person would write it: "all-reduce of 1024 float32, sum".
std::string describe(const Call& call);
// " at train.py:42", or nothing.
std::string at(const char* site);
void copy_site(Site& to, const char* site);

// Bytes that `rank` of `nranks` reads from its send buffer, and writes to its receive buffer.
std::size_t send_bytes(const Call& call, int rank, int nranks);
std::size_t receive_bytes(const Call& call, int rank, int nranks);

}  // namespace emu
