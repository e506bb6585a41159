#include "operation.h"

#include "error.h"

namespace emu {

const char* name_of(Kind kind) {
  static const char* const names[] = {"all-reduce",     "broadcast",  "reduce", "all-gather",
                                      "reduce-scatter", "all-to-all", "gather", "scatter",
                                      "send",           "receive"};
  return names[static_cast<int>(kind)];
}

const char* name_of(Type type) {
  static const char* const names[] = {"int8",    "uint8",   "int32",    "uint32",
                                      "int64",   "uint64",  "float16",  "float32",
                                      "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"};
  return names[static_cast<int>(type)];
}

const char* name_of(Op op) {
  static const char* const names[] = {"sum", "prod", "max", "min", "avg", "pre-mul-sum"};
  return names[static_cast<int>(op)];
}

bool is_reduction(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

bool is_point_to_point(Kind kind) { return kind == Kind::send || kind == Kind::receive; }

bool has_root(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather ||
         kind == Kind::scatter;
}

std::string describe(const Operation& operation) {
  std::string text =
      format("%s of %zu %s", name_of(operation.kind), operation.count, name_of(operation.type));
  if (is_reduction(operation.kind)) text += format(", %s", name_of(operation.op));
  if (has_root(operation.kind)) text += format(", root %d", operation.root);
  if (operation.kind == Kind::send) text += format(" to rank %d", operation.root);
  if (operation.kind == Kind::receive) text += format(" from rank %d", operation.root);
  return text;
}

std::size_t send_bytes(const Operation& operation, int rank, int nranks) {
  const std::size_t block = operation.count * size_of(operation.type);
  switch (operation.kind) {
    case Kind::reduce_scatter:
    case Kind::all_to_all:
      return block * nranks;
    case Kind::scatter:
      return rank == operation.root ? block * nranks : 0;
    case Kind::broadcast:
      return rank == operation.root ? block : 0;
    case Kind::receive:
      return 0;
    default:
      return block;
  }
}

std::size_t receive_bytes(const Operation& operation, int rank, int nranks) {
  const std::size_t block = operation.count * size_of(operation.type);
  switch (operation.kind) {
    case Kind::all_gather:
    case Kind::all_to_all:
      return block * nranks;
    case Kind::gather:
      return rank == operation.root ? block * nranks : 0;
    case Kind::reduce:
      return rank == operation.root ? block : 0;
    case Kind::send:
      return 0;
    default:
      return block;
  }
}

}  // namespace emu
