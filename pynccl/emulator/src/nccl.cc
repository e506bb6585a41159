// NCCL's operations and groups: arguments are checked here, nothing else.

#include <cstring>

#include "buffers.h"
#include "communicator.h"
#include "config.h"
#include "device_heap.h"
#include "device_scope.h"
#include "error.h"
#include "exported.h"
#include "faults.h"
#include "group.h"
#include "release.h"

using namespace emu;

namespace {

// float8 came with NCCL 2.24.
int types_known() { return release >= 22403 ? ncclNumTypes : ncclFloat8e4m3; }

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

// Checks what all operations have in common and gives the operation to its communicator.
ncclResult_t issue(const std::shared_ptr<Communicator>& communicator, Operation operation,
                   cudaStream_t stream, cudaEvent_t launched = nullptr) {
  if (operation.site == nullptr) operation.site = communicator->take_site();
  if (operation.root < 0 || operation.root >= communicator->nranks()) {
    return fail(ncclInvalidArgument,
                "%s %d of the %s is out of range: the communicator has %d ranks",
                names_peer(operation.kind) ? "peer" : "root", operation.root,
                name_of(operation.kind), communicator->nranks());
  }
  const ncclResult_t result = check_buffers(operation, *communicator);
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
  return submit(communicator, std::move(operation), std::move(queue), stream, launched);
}

// The communicator of a call, ready for operations, and the call's data type.
ncclResult_t begin(ncclComm_t comm, ncclDataType_t type,
                   std::shared_ptr<Communicator>* communicator) {
  *communicator = Communicator::find(comm);
  if (*communicator == nullptr) return ncclInvalidArgument;
  if (type < 0 || type >= types_known()) {
    return fail(ncclInvalidArgument, "%d is no data type of this NCCL", static_cast<int>(type));
  }
  return (*communicator)->ready();
}

struct Arguments {
  const void* send;
  void* receive;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
};

ncclResult_t issue(Kind kind, const Arguments& arguments, ncclComm_t comm, cudaStream_t stream,
                   const ncclCollConfig_t* config = nullptr) {
  std::shared_ptr<Communicator> communicator;
  ncclResult_t result = begin(comm, arguments.type, &communicator);
  if (result == ncclSuccess) result = check_config(config);
  if (result != ncclSuccess) return result;
  Operation operation{};
  operation.kind = kind;
  operation.type = static_cast<Type>(arguments.type);
  operation.root = arguments.root;
  operation.count = arguments.count;
  operation.send = arguments.send;
  operation.receive = arguments.receive;
  if (is_reduction(kind)) {
    const std::lock_guard<std::mutex> lock(communicator->mutex());
    result = read_op(*communicator, communicator->custom_ops(), arguments.op, &operation);
    if (result != ncclSuccess) return result;
  }
  const bool has_event =
      config != nullptr && release >= 23203 && config->size >= sizeof(ncclCollConfig_t);
  return issue(communicator, std::move(operation), stream,
               has_event ? config->launchCompletionEvent : nullptr);
}

// Which of a rank's signals is meant.
ncclResult_t read_signal(const Communicator& communicator, int signal, int context, int* place) {
  const Settings& settings = communicator.settings();
  if (signal < 0 || signal >= settings.signals || context < 0 || context >= settings.contexts) {
    return fail(ncclInvalidArgument,
                "signal %d of context %d: the communicator has %d signals in each of %d contexts "
                "(numRmaSig and numRmaCtx of its config)",
                signal, context, settings.signals, settings.contexts);
  }
  *place = context * most_signals + signal;
  return ncclSuccess;
}

ncclResult_t find_target(Communicator& communicator, ncclWindow_t win, Operation* operation) {
  const std::lock_guard<std::mutex> lock(communicator.mutex());
  for (const std::shared_ptr<Window>& window : communicator.windows()) {
    if (window.get() == reinterpret_cast<Window*>(win)) operation->window = window;
  }
  if (operation->window == nullptr) {
    return fail(ncclInvalidArgument, "%p is no window of this communicator",
                static_cast<void*>(win));
  }
  const size_t bytes = operation->count * size_of(operation->type);
  const size_t room = operation->window->sizes[operation->root];
  if (operation->offset <= room && bytes <= room - operation->offset) return ncclSuccess;
  return fail(ncclInvalidArgument,
              "a put of %zu bytes at offset %zu runs past the %zu bytes of rank %d's window", bytes,
              operation->offset, room, operation->root);
}

ncclResult_t give_signal(Kind kind, Operation operation, ncclWindow_t win, int signal, int context,
                         unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
  std::shared_ptr<Communicator> communicator;
  ncclResult_t result = begin(comm, static_cast<ncclDataType_t>(operation.type), &communicator);
  if (result != ncclSuccess) return result;
  operation.kind = kind;
  if (flags != 0) return fail(ncclInvalidArgument, "flags must be 0, not %#x", flags);
  result = read_signal(*communicator, signal, context, &operation.signal_place);
  const bool in_range = operation.root >= 0 && operation.root < communicator->nranks();
  if (result == ncclSuccess && kind == Kind::put && in_range) {
    result = find_target(*communicator, win, &operation);
  }
  if (result != ncclSuccess) return result;
  return issue(communicator, std::move(operation), stream);
}

ncclResult_t wait_signal(int count, const ncclWaitSignalDesc_t* wanted, ncclComm_t comm,
                         cudaStream_t stream) {
  std::shared_ptr<Communicator> communicator;
  ncclResult_t result = begin(comm, ncclInt8, &communicator);
  if (result != ncclSuccess) return result;
  if (count < 1 || wanted == nullptr) {
    return fail(ncclInvalidArgument, "there must be at least one signal to wait for");
  }
  const char* const site = communicator->take_site();
  group_start();
  for (int i = 0; i < count; ++i) {
    Operation operation{};
    operation.kind = Kind::wait_signal;
    operation.site = site;
    operation.root = wanted[i].peer;
    operation.signal_count = wanted[i].opCnt;
    result = wanted[i].opCnt < 0
                 ? fail(ncclInvalidArgument, "opCnt %d must not be negative", wanted[i].opCnt)
                 : read_signal(*communicator, wanted[i].sigIdx, wanted[i].ctx,
                               &operation.signal_place);
    if (result == ncclSuccess) result = issue(communicator, operation, stream);
    if (note(result) != ncclSuccess) break;
  }
  const ncclResult_t ended = group_end();
  return result != ncclSuccess ? result : ended;
}

}  // namespace

NCCL_FUNCTION ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return fail(ncclInvalidArgument, "version is null");
  *version = release;
  return ncclSuccess;
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

// Not of NCCL: a cell that belongs to the communicator. Who writes the address of a text into it,
// such as "train.py:42", before a call that gives the communicator an operation, will find it in
// the messages of all ranks. The text must live as long as the process.
NCCL_FUNCTION const char** pynccl_call_site(ncclComm_t comm) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  return communicator == nullptr ? nullptr : communicator->site_cell();
}

// Not of NCCL: how many operations the communicator was given, and how many of them are done.
NCCL_FUNCTION ncclResult_t pynccl_comm_progress(ncclComm_t comm, unsigned long long counts[2]) {
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  counts[0] = communicator->issued();
  counts[1] = communicator->completed();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclGroupStart() {
  MAY_FAIL(launcher);
  group_start();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclGroupEnd() {
  const bool asks = faults_are_set.load(std::memory_order_relaxed);
  const ncclResult_t rehearsed = asks ? rehearsed_failure(__func__, launcher) : ncclSuccess;
  note(rehearsed);
  const ncclResult_t result = group_end();
  return rehearsed != ncclSuccess ? rehearsed : result;
}

NCCL_FUNCTION ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  MAY_FAIL(launcher);
  constexpr unsigned int magic = 0x74685283;
  float microseconds = 0;
  if (info != nullptr && info->magic != magic) {
    return note(fail(ncclInvalidArgument, "the ncclSimInfo_t was not initialised: its magic is %#x",
                     info->magic));
  }
  const ncclResult_t result = group_simulate_end(&microseconds);
  if (result == ncclSuccess && info != nullptr) info->estimatedTime = microseconds;
  return result;
}

NCCL_FUNCTION ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config) {
  MAY_FAIL(launcher);
  if (config == nullptr || config->magic != NCCL_API_MAGIC) {
    return fail(ncclInvalidArgument, "the ncclEncryptionConfig_t is null or was not initialised");
  }
  if (config->mode != 0 && config->mode != 1) {
    return fail(ncclInvalidArgument, "encryption mode %d is neither none (0) nor a shared key (1)",
                config->mode);
  }
  if (config->mode == 1 && config->psk == nullptr) {
    return fail(ncclInvalidArgument, "encryption by a shared key needs the key: psk is null");
  }
  return ncclSuccess;  // nothing of the emulator's travels over a network
}

NCCL_FUNCTION void ncclResetDebugInit() {}

NCCL_FUNCTION ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                         cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::all_reduce, {send, receive, count, type, op, 0}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclAllReduceConfig(const void* send, void* receive, size_t count,
                                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                               cudaStream_t stream,
                                               const ncclCollConfig_t* config) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::all_reduce, {send, receive, count, type, op, 0}, comm, stream, config));
}

NCCL_FUNCTION ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, int root, ncclComm_t comm,
                                         cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::broadcast, {send, receive, count, type, ncclSum, root}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclBroadcastConfig(const void* send, void* receive, size_t count,
                                               ncclDataType_t type, int root, ncclComm_t comm,
                                               cudaStream_t stream,
                                               const ncclCollConfig_t* config) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::broadcast, {send, receive, count, type, ncclSum, root}, comm, stream, config));
}

NCCL_FUNCTION ncclResult_t ncclReduce(const void* send, void* receive, size_t count,
                                      ncclDataType_t type, ncclRedOp_t op, int root,
                                      ncclComm_t comm, cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::reduce, {send, receive, count, type, op, root}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclReduceConfig(const void* send, void* receive, size_t count,
                                            ncclDataType_t type, ncclRedOp_t op, int root,
                                            ncclComm_t comm, cudaStream_t stream,
                                            const ncclCollConfig_t* config) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::reduce, {send, receive, count, type, op, root}, comm, stream, config));
}

NCCL_FUNCTION ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, ncclComm_t comm,
                                         cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::all_gather, {send, receive, count, type, ncclSum, 0}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclAllGatherConfig(const void* send, void* receive, size_t count,
                                               ncclDataType_t type, ncclComm_t comm,
                                               cudaStream_t stream,
                                               const ncclCollConfig_t* config) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::all_gather, {send, receive, count, type, ncclSum, 0}, comm, stream, config));
}

NCCL_FUNCTION ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                                             ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                             cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::reduce_scatter, {send, receive, count, type, op, 0}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclReduceScatterConfig(const void* send, void* receive, size_t count,
                                                   ncclDataType_t type, ncclRedOp_t op,
                                                   ncclComm_t comm, cudaStream_t stream,
                                                   const ncclCollConfig_t* config) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::reduce_scatter, {send, receive, count, type, op, 0}, comm, stream, config));
}

NCCL_FUNCTION ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count,
                                        ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::all_to_all, {send, receive, count, type, ncclSum, 0}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclAlltoAllConfig(const void* send, void* receive, size_t count,
                                              ncclDataType_t type, ncclComm_t comm,
                                              cudaStream_t stream, const ncclCollConfig_t* config) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::all_to_all, {send, receive, count, type, ncclSum, 0}, comm, stream, config));
}

NCCL_FUNCTION ncclResult_t ncclGather(const void* send, void* receive, size_t count,
                                      ncclDataType_t type, int root, ncclComm_t comm,
                                      cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::gather, {send, receive, count, type, ncclSum, root}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclGatherConfig(const void* send, void* receive, size_t count,
                                            ncclDataType_t type, int root, ncclComm_t comm,
                                            cudaStream_t stream, const ncclCollConfig_t* config) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::gather, {send, receive, count, type, ncclSum, root}, comm, stream, config));
}

NCCL_FUNCTION ncclResult_t ncclScatter(const void* send, void* receive, size_t count,
                                       ncclDataType_t type, int root, ncclComm_t comm,
                                       cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::scatter, {send, receive, count, type, ncclSum, root}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclScatterConfig(const void* send, void* receive, size_t count,
                                             ncclDataType_t type, int root, ncclComm_t comm,
                                             cudaStream_t stream, const ncclCollConfig_t* config) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::scatter, {send, receive, count, type, ncclSum, root}, comm, stream, config));
}

NCCL_FUNCTION ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root,
                                     ncclComm_t comm, cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(
      issue(Kind::broadcast, {buffer, buffer, count, type, ncclSum, root}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::send, {send, nullptr, count, type, ncclSum, peer}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(issue(Kind::receive, {nullptr, receive, count, type, ncclSum, peer}, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclPutSignal(const void* local, size_t count, ncclDataType_t type,
                                         int peer, ncclWindow_t win, size_t offset, int signal,
                                         int context, unsigned int flags, ncclComm_t comm,
                                         cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  Operation operation{};
  operation.type = static_cast<Type>(type);
  operation.count = count;
  operation.root = peer;
  operation.send = local;
  operation.offset = offset;
  return note(
      give_signal(Kind::put, operation, win, signal, context, flags, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclSignal(int peer, int signal, int context, unsigned int flags,
                                      ncclComm_t comm, cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  Operation operation{};
  operation.root = peer;
  return note(
      give_signal(Kind::signal, operation, nullptr, signal, context, flags, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclWaitSignal(int count, ncclWaitSignalDesc_t* wanted, ncclComm_t comm,
                                          cudaStream_t stream) {
  MAY_FAIL(first_rank(comm));
  return note(wait_signal(count, wanted, comm, stream));
}

NCCL_FUNCTION ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar,
                                                    ncclDataType_t type,
                                                    ncclScalarResidence_t residence,
                                                    ncclComm_t comm) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  if (op == nullptr || scalar == nullptr || type < 0 || type >= types_known()) {
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
  MAY_FAIL(first_rank(comm));
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
