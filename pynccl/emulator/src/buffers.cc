#include "buffers.h"

#include "device_heap.h"
#include "error.h"

namespace emu {

namespace {

ncclResult_t check_range(const char* argument, const void* pointer, std::size_t bytes,
                         const Operation& operation, int device, std::uint64_t* allocation) {
  if (bytes == 0) return ncclSuccess;
  const auto doing = [&] { return describe(operation); };
  const DeviceHeap* const heap = heap_containing(pointer);
  if (heap == nullptr) {
    return fail(ncclInvalidArgument,
                "%s %p of the %s is not GPU memory: copy what is there to GPU %d, and pass that",
                argument, pointer, doing().c_str(), device);
  }
  if (heap->device() != device) {
    return fail(ncclInvalidArgument,
                "%s %p of the %s lies on GPU %d, the communicator is of GPU %d: pass memory of that "
                "one",
                argument, pointer, doing().c_str(), heap->device(), device);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const std::optional<Allocation> found = heap->find(address);
  if (!found) {
    return fail(ncclInvalidArgument, "%s %p of the %s is GPU memory that was freed or never "
                "allocated: memory must be kept until the operation is done", argument, pointer,
                doing().c_str());
  }
  const std::size_t room = found->base + found->bytes - address;
  if (bytes > room) {
    return fail(ncclInvalidArgument,
                "%s of the %s needs %zu bytes, and its allocation has %zu from there: allocate more, "
                "or name fewer elements",
                argument, doing().c_str(), bytes, room);
  }
  *allocation = found->id;
  return ncclSuccess;
}

// Where the receive buffer lies relative to the send buffer when the operation is in place.
bool in_place(const Operation& operation, int rank) {
  const std::size_t block = operation.count * size_of(operation.type) * rank;
  const auto* const send = static_cast<const char*>(operation.send);
  const auto* const receive = static_cast<const char*>(operation.receive);
  switch (operation.kind) {
    case Kind::all_gather:
    case Kind::gather:
      return send == receive + block;
    case Kind::reduce_scatter:
    case Kind::scatter:
      return receive == send + block;
    case Kind::all_to_all:
      return false;
    default:
      return send == receive;
  }
}

ncclResult_t check(Operation& operation, const Communicator& communicator) {
  const int rank = communicator.rank();
  const std::size_t sent = send_bytes(operation, rank, communicator.nranks());
  const std::size_t received = receive_bytes(operation, rank, communicator.nranks());
  const int device = communicator.device();
  ncclResult_t result = check_range("sendbuff", operation.send, sent, operation, device,
                                    &operation.send_allocation);
  if (result != ncclSuccess) return result;
  result = check_range("recvbuff", operation.receive, received, operation, device,
                       &operation.receive_allocation);
  if (result != ncclSuccess || sent == 0 || received == 0) return result;
  const auto* const send = static_cast<const char*>(operation.send);
  const auto* const receive = static_cast<const char*>(operation.receive);
  const bool apart = send + sent <= receive || receive + received <= send;
  if (apart || in_place(operation, rank)) return ncclSuccess;
  return fail(ncclInvalidArgument,
              "sendbuff and recvbuff of the %s overlap without being in place: %zu bytes at %p, "
              "%zu bytes at %p; keep them apart, or pass the same place for both",
              describe(operation).c_str(), sent, operation.send, received, operation.receive);
}

bool is_kept(const void* pointer, std::uint64_t allocation) {
  return allocation == 0 || allocation_at(reinterpret_cast<std::uintptr_t>(pointer)) == allocation;
}

}  // namespace

ncclResult_t check_kept(const Operation& operation, const Communicator& communicator) {
  const bool send_kept = is_kept(operation.send, operation.send_allocation);
  if (send_kept && is_kept(operation.receive, operation.receive_allocation)) return ncclSuccess;
  return fail(ncclInvalidArgument,
              "communicator %s, rank %d: %s %p of the %s%s was freed before the group that holds it "
              "ended: memory must be kept until the operation is done",
              communicator.name().c_str(), communicator.rank(),
              send_kept ? "recvbuff" : "sendbuff", send_kept ? operation.receive : operation.send,
              describe(operation).c_str(), at(operation.site).c_str());
}

ncclResult_t check_buffers(Operation& operation, const Communicator& communicator) {
  const ncclResult_t result = check(operation, communicator);
  if (result == ncclSuccess) return result;
  const auto issued = static_cast<unsigned long long>(communicator.issued());
  return fail(result, "communicator %s, rank %d, after %llu operation%s%s: %s",
              communicator.name().c_str(), communicator.rank(), issued, issued == 1 ? "" : "s",
              at(operation.site).c_str(), std::string(last_error()).c_str());
}

}  // namespace emu
