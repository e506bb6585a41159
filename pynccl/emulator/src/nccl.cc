// NCCL's functions over the emulator's communicators: arguments are checked here, nothing else.

#include <cstring>

#include "buffers.h"
#include "communicator.h"
#include "device_heap.h"
#include "error.h"
#include "group.h"

#define NCCL_FUNCTION extern "C" __attribute__((visibility("default")))

using namespace emu;

namespace {

// Makes the communicator's GPU current while a call resolves that GPU's default stream.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : before_(current_device()) {
    if (before_ != device) set_current_device(device);
    changed_ = before_ != device;
  }
  ~DeviceScope() {
    if (changed_ && before_ >= 0) set_current_device(before_);
  }

 private:
  int before_;
  bool changed_;
};

ncclResult_t read_op(const Communicator& communicator, const std::vector<CustomOp>& custom,
                     ncclRedOp_t op, Operation* operation) {
  if (op >= 0 && op < ncclNumOps) {
    operation->op = static_cast<Op>(op);
    return ncclSuccess;
  }
  const int place = static_cast<int>(op) - ncclNumOps;
  if (op < 0 || place >= static_cast<int>(custom.size()) || !custom[place].alive) {
    return fail(ncclInvalidArgument, "reduction %d is neither NCCL's nor one made for this "
                "communicator (rank %d)", static_cast<int>(op), communicator.rank());
  }
  const CustomOp& made = custom[place];
  if (made.type != operation->type) {
    return fail(ncclInvalidArgument, "reduction %d was made for %s and is used on %s",
                static_cast<int>(op), name_of(made.type), name_of(operation->type));
  }
  operation->op = Op::pre_mul_sum;
  operation->scalar_on_device = made.scalar_on_device;
  std::memcpy(operation->scalar, made.scalar, sizeof operation->scalar);
  return ncclSuccess;
}

ncclResult_t issue(Kind kind, const void* send, void* receive, size_t count, ncclDataType_t type,
                   ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  ncclResult_t result = communicator->ready();
  if (result != ncclSuccess) return result;
  if (type < 0 || type >= ncclNumTypes) {
    return fail(ncclInvalidArgument, "%d is no data type", static_cast<int>(type));
  }
  if (root < 0 || root >= communicator->nranks()) {
    return fail(ncclInvalidArgument, "%s %d of the %s is out of range: the communicator has %d ranks",
                is_point_to_point(kind) ? "peer" : "root", root, name_of(kind),
                communicator->nranks());
  }
  Operation operation{};
  operation.kind = kind;
  operation.type = static_cast<Type>(type);
  operation.root = root;
  operation.count = count;
  operation.send = send;
  operation.receive = receive;
  if (is_reduction(kind)) {
    const std::lock_guard<std::mutex> lock(communicator->mutex());
    result = read_op(*communicator, communicator->custom_ops(), op, &operation);
    if (result != ncclSuccess) return result;
  }
  result = check_buffers(operation, *communicator);
  if (result != ncclSuccess) return result;
  const DeviceScope scope(communicator->device());
  std::shared_ptr<Stream> queue = find_stream(stream);
  if (queue == nullptr) {
    return fail(ncclInvalidArgument, "%p is no CUDA stream", static_cast<void*>(stream));
  }
  if (queue->device() != communicator->device()) {
    return fail(ncclInvalidUsage, "the stream is of GPU %d, the communicator (rank %d) of GPU %d",
                queue->device(), communicator->rank(), communicator->device());
  }
  return submit(communicator, operation, std::move(queue));
}

ncclResult_t read_config(const ncclConfig_t* config, bool* blocking) {
  *blocking = true;
  if (config == nullptr) return ncclSuccess;
  if (config->magic != NCCL_API_MAGIC) {
    return fail(ncclInvalidArgument, "the ncclConfig_t was not initialised (magic %x)",
                config->magic);
  }
  if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1) {
    return fail(ncclInvalidArgument, "config.blocking is %d, not 0 or 1", config->blocking);
  }
  *blocking = config->blocking != 0;
  return ncclSuccess;
}

ncclResult_t join_as(const std::shared_ptr<Communicator>& communicator, const ncclUniqueId& id,
                     ncclComm_t* comm) {
  *comm = communicator->handle();
  return submit(
      communicator, [communicator, id] { return communicator->join(id); },
      [communicator, comm] {
        communicator->forget();
        *comm = nullptr;
      });
}

ncclResult_t init_rank(ncclComm_t* comm, int nranks, const ncclUniqueId& id, int rank,
                       const ncclConfig_t* config) {
  if (comm == nullptr) return fail(ncclInvalidArgument, "comm is null");
  *comm = nullptr;
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return fail(ncclInvalidArgument, "rank %d of %d: rank must be from 0 to nranks - 1", rank,
                nranks);
  }
  bool blocking;
  const ncclResult_t result = read_config(config, &blocking);
  if (result != ncclSuccess) return result;
  const int device = current_device();
  if (device < 0) {
    return fail(ncclUnhandledCudaError,
                "no GPU is current to this thread: set one before creating a communicator");
  }
  const std::shared_ptr<Communicator> made = Communicator::create(device, nranks, rank);
  made->set_blocking(blocking);
  return join_as(made, id, comm);
}

}  // namespace

NCCL_FUNCTION ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return fail(ncclInvalidArgument, "version is null");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (id == nullptr) return fail(ncclInvalidArgument, "uniqueId is null");
  return Region::create(id);
}

NCCL_FUNCTION const char* ncclGetErrorString(ncclResult_t result) {
  static const char* const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress",
                                      "NCCL operation timed out"};
  return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

NCCL_FUNCTION const char* ncclGetLastError(ncclComm_t comm) {
  static thread_local std::string text;
  text = last_error();
  if (comm == nullptr) return text.c_str();
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator != nullptr && communicator->async_error() != ncclSuccess) {
    text = communicator->error_text();
  }
  return text.c_str();
}

NCCL_FUNCTION ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id,
                                            int rank) {
  return note(init_rank(comm, nranks, id, rank, nullptr));
}

NCCL_FUNCTION ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id,
                                                  int rank, ncclConfig_t* config) {
  return note(init_rank(comm, nranks, id, rank, config));
}

NCCL_FUNCTION ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ndev, const int* devlist) {
  if (comms == nullptr || ndev < 1) {
    return fail(ncclInvalidArgument, "%d devices: there must be at least one", ndev);
  }
  ncclUniqueId id;
  ncclResult_t result = Region::create(&id);
  if (result != ncclSuccess) return result;
  for (int i = 0; i < ndev; ++i) {
    const int device = devlist == nullptr ? i : devlist[i];
    if (device < 0 || device >= device_count()) {
      return fail(ncclInvalidArgument, "device %d does not exist: there are %d", device,
                  device_count());
    }
  }
  const int before = current_device();
  group_start();
  for (int i = 0; i < ndev; ++i) {
    set_current_device(devlist == nullptr ? i : devlist[i]);
    note(init_rank(&comms[i], ndev, id, i, nullptr));
  }
  result = group_end();
  if (before >= 0) set_current_device(before);
  return result;
}

NCCL_FUNCTION ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                                         ncclConfig_t* config) {
  const std::shared_ptr<Communicator> parent = Communicator::find(comm);
  if (parent == nullptr) return note(ncclInvalidArgument);
  ncclResult_t result = parent->ready();
  if (result != ncclSuccess) return note(result);
  if (newcomm == nullptr || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
    return note(fail(ncclInvalidArgument,
                     "color %d: must be 0 or more, or NCCL_SPLIT_NOCOLOR (-1) for no communicator",
                     color));
  }
  bool blocking;
  result = read_config(config, &blocking);
  if (result != ncclSuccess) return note(result);
  if (config == nullptr) blocking = parent->blocking();
  *newcomm = nullptr;
  return note(submit(
      parent,
      [parent, color, key, newcomm, blocking]() -> ncclResult_t {
        ncclUniqueId id;
        int nranks;
        int rank;
        ncclResult_t agreed = parent->agree_on_split(color, key, &id, &nranks, &rank);
        if (agreed != ncclSuccess || nranks == 0) return agreed;
        const auto child = Communicator::create(parent->device(), nranks, rank);
        child->set_blocking(blocking);
        agreed = child->join(id);
        if (agreed != ncclSuccess) {
          child->forget();
          return agreed;
        }
        *newcomm = child->handle();
        return ncclSuccess;
      },
      [] {}));
}

NCCL_FUNCTION ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  return communicator == nullptr ? ncclInvalidArgument : communicator->finalize();
}

NCCL_FUNCTION ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  communicator->forget();
  return communicator->leave();
}

NCCL_FUNCTION ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  communicator->abort();
  communicator->forget();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr || error == nullptr) return ncclInvalidArgument;
  *error = communicator->async_error();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr || count == nullptr) return ncclInvalidArgument;
  *count = communicator->nranks();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr || device == nullptr) return ncclInvalidArgument;
  *device = communicator->device();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr || rank == nullptr) return ncclInvalidArgument;
  *rank = communicator->rank();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclGroupStart() {
  group_start();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclGroupEnd() { return group_end(); }

NCCL_FUNCTION ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                         cudaStream_t stream) {
  return note(issue(Kind::all_reduce, send, receive, count, type, op, 0, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, int root, ncclComm_t comm,
                                         cudaStream_t stream) {
  return note(issue(Kind::broadcast, send, receive, count, type, ncclSum, root, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root,
                                     ncclComm_t comm, cudaStream_t stream) {
  return note(issue(Kind::broadcast, buffer, buffer, count, type, ncclSum, root, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclReduce(const void* send, void* receive, size_t count,
                                      ncclDataType_t type, ncclRedOp_t op, int root,
                                      ncclComm_t comm, cudaStream_t stream) {
  return note(issue(Kind::reduce, send, receive, count, type, op, root, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, ncclComm_t comm,
                                         cudaStream_t stream) {
  return note(issue(Kind::all_gather, send, receive, count, type, ncclSum, 0, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                                             ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                             cudaStream_t stream) {
  return note(issue(Kind::reduce_scatter, send, receive, count, type, op, 0, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count,
                                        ncclDataType_t type, ncclComm_t comm,
                                        cudaStream_t stream) {
  return note(issue(Kind::all_to_all, send, receive, count, type, ncclSum, 0, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclGather(const void* send, void* receive, size_t count,
                                      ncclDataType_t type, int root, ncclComm_t comm,
                                      cudaStream_t stream) {
  return note(issue(Kind::gather, send, receive, count, type, ncclSum, root, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclScatter(const void* send, void* receive, size_t count,
                                       ncclDataType_t type, int root, ncclComm_t comm,
                                       cudaStream_t stream) {
  return note(issue(Kind::scatter, send, receive, count, type, ncclSum, root, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
  return note(issue(Kind::send, send, nullptr, count, type, ncclSum, peer, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
  return note(issue(Kind::receive, nullptr, receive, count, type, ncclSum, peer, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar,
                                                    ncclDataType_t type,
                                                    ncclScalarResidence_t residence,
                                                    ncclComm_t comm) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  if (op == nullptr || scalar == nullptr || type < 0 || type >= ncclNumTypes) {
    return fail(ncclInvalidArgument, "op and scalar must not be null, and %d be a data type",
                static_cast<int>(type));
  }
  CustomOp made{true, static_cast<Type>(type), {}, nullptr};
  if (residence == ncclScalarDevice) {
    if (heap_containing(scalar) == nullptr) {
      return fail(ncclInvalidArgument, "scalar %p is not GPU memory", scalar);
    }
    made.scalar_on_device = scalar;
  } else {
    std::memcpy(made.scalar, scalar, size_of(made.type));
  }
  const std::lock_guard<std::mutex> lock(communicator->mutex());
  communicator->custom_ops().push_back(made);
  *op = static_cast<ncclRedOp_t>(ncclNumOps +
                                 static_cast<int>(communicator->custom_ops().size()) - 1);
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  const std::lock_guard<std::mutex> lock(communicator->mutex());
  std::vector<CustomOp>& made = communicator->custom_ops();
  const int place = static_cast<int>(op) - ncclNumOps;
  if (place < 0 || place >= static_cast<int>(made.size()) || !made[place].alive) {
    return fail(ncclInvalidArgument, "%d is no reduction made for this communicator",
                static_cast<int>(op));
  }
  made[place].alive = false;
  return ncclSuccess;
}
