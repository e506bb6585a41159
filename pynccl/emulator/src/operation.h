#pragma once

#include <cstddef>
#include <cstdint>
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
  receive
};

constexpr std::size_t largest_element = 8;

// What one rank asked for, in its own addresses. `count` is the argument of the C function.
struct Operation {
  Kind kind;
  Type type;
  Op op;
  int root;  // the peer of a send or receive
  std::size_t count;
  const void* send;
  void* receive;
  // Of pre_mul_sum: the scalar itself, or where on the GPU it is read when the operation runs.
  unsigned char scalar[largest_element];
  const void* scalar_on_device;
};

const char* name_of(Kind kind);
const char* name_of(Type type);
const char* name_of(Op op);

bool is_reduction(Kind kind);
bool is_point_to_point(Kind kind);
bool has_root(Kind kind);

// As a person would write it: "all-reduce of 1024 float32, sum".
std::string describe(const Operation& operation);

// Bytes that `rank` of `nranks` reads from its send buffer, and writes to its receive buffer.
std::size_t send_bytes(const Operation& operation, int rank, int nranks);
std::size_t receive_bytes(const Operation& operation, int rank, int nranks);

}  // namespace emu
