#include "accesses.h"

#include <cstring>

#include "error.h"

namespace emu {

namespace {

using races::Access;
using races::What;

std::string say(const What& what) {
  Call call;
  static_assert(sizeof call <= sizeof what.data);
  std::memcpy(&call, what.data.data(), sizeof call);
  return describe(call);
}

What what_of(const Operation& operation) {
  What what{name_of(operation.kind), say, {}, operation.site};
  const Call& call = operation;
  std::memcpy(what.data.data(), &call, sizeof call);
  return what;
}

// The part of the receive buffer that an operation in place finds there already, and leaves alone.
bool is_kept(const Operation& operation, int rank) {
  const auto* const send = static_cast<const unsigned char*>(operation.send);
  auto* const receive = static_cast<unsigned char*>(operation.receive);
  const std::size_t block = operation.count * size_of(operation.type);
  switch (operation.kind) {
    case Kind::broadcast:
      return rank == operation.root && send == receive;
    case Kind::scatter:
      return rank == operation.root && send + rank * block == receive;
    case Kind::all_gather:
    case Kind::gather:
      return send == receive + rank * block;
    default:
      return false;
  }
}

void add_writes(const Operation& operation, int rank, int nranks, const What& what,
                std::vector<Access>* accesses) {
  const std::size_t bytes = receive_bytes(operation, rank, nranks);
  if (bytes == 0) return;
  auto* const receive = static_cast<unsigned char*>(operation.receive);
  if (!is_kept(operation, rank)) {
    accesses->push_back(races::writes(receive, bytes, what));
    return;
  }
  if (operation.kind == Kind::broadcast || operation.kind == Kind::scatter) return;
  const std::size_t block = operation.count * size_of(operation.type);
  accesses->push_back(races::writes(receive, rank * block, what));
  accesses->push_back(
      races::writes(receive + (rank + 1) * block, (nranks - 1 - rank) * block, what));
}

}  // namespace

ncclResult_t check_races(const std::vector<Operation>& operations, Stream& stream, int rank,
                         int nranks) {
  thread_local std::vector<Access> accesses;
  accesses.clear();
  for (const Operation& operation : operations) {
    const What what = what_of(operation);
    const std::size_t sent = send_bytes(operation, rank, nranks);
    if (sent != 0) accesses.push_back(races::reads(operation.send, sent, what));
    add_writes(operation, rank, nranks, what, &accesses);
    if (operation.scalar_on_device != nullptr) {
      accesses.push_back(races::reads(operation.scalar_on_device, size_of(operation.type), what));
    }
  }
  const std::string race = races::use(stream, accesses.data(), accesses.size());
  return race.empty() ? ncclSuccess : fail(ncclInvalidUsage, "%s", race.c_str());
}

}  // namespace emu
