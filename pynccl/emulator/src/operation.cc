#include "operation.h"

#include <cstring>

#include "error.h"

namespace emu {

const char* name_of(Kind kind) {
  static const char* const names[] = {"all-reduce",     "broadcast",  "reduce", "all-gather",
                                      "reduce-scatter", "all-to-all", "gather", "scatter",
                                      "send",           "receive",    "put",    "signal",
                                      "wait for a signal"};
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

bool is_collective(Kind kind) { return kind < Kind::send; }

bool names_peer(Kind kind) { return kind >= Kind::send; }

bool has_root(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather ||
         kind == Kind::scatter;
}

std::string describe(const Call& call) {
  if (call.kind == Kind::signal) return format("signal to rank %d", call.root);
  if (call.kind == Kind::wait_signal) {
    return format("wait for %d signal%s of rank %d", call.signal_count,
                  call.signal_count == 1 ? "" : "s", call.root);
  }
  std::string text =
      format("%s of %zu %s", name_of(call.kind), call.count, name_of(call.type));
  if (is_reduction(call.kind)) text += format(", %s", name_of(call.op));
  if (has_root(call.kind)) text += format(", root %d", call.root);
  const bool outgoing = call.kind == Kind::send || call.kind == Kind::put;
  if (outgoing) text += format(" to rank %d", call.root);
  if (call.kind == Kind::receive) text += format(" from rank %d", call.root);
  return text;
}

std::string at(const char* site) {
  return site == nullptr || *site == '\0' ? std::string() : std::string(" at ") + site;
}

void copy_site(Site& to, const char* site) {
  to.text[0] = '\0';
  if (site != nullptr) std::strncpy(to.text, site, sizeof to.text - 1);
}

std::size_t send_bytes(const Call& call, int rank, int nranks) {
  const std::size_t block = call.count * size_of(call.type);
  switch (call.kind) {
    case Kind::reduce_scatter:
    case Kind::all_to_all:
      return block * nranks;
    case Kind::scatter:
      return rank == call.root ? block * nranks : 0;
    case Kind::broadcast:
      return rank == call.root ? block : 0;
    case Kind::receive:
    case Kind::signal:
    case Kind::wait_signal:
      return 0;
    default:
      return block;
  }
}

std::size_t receive_bytes(const Call& call, int rank, int nranks) {
  const std::size_t block = call.count * size_of(call.type);
  switch (call.kind) {
    case Kind::all_gather:
    case Kind::all_to_all:
      return block * nranks;
    case Kind::gather:
      return rank == call.root ? block * nranks : 0;
    case Kind::reduce:
      return rank == call.root ? block : 0;
    case Kind::send:
    case Kind::put:
    case Kind::signal:
    case Kind::wait_signal:
      return 0;
    default:
      return block;
  }
}

}  // namespace emu
