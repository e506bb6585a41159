// NCCL's functions that make, change and end communicators.

#include <set>

#include "config.h"
#include "device_heap.h"
#include "device_scope.h"
#include "error.h"
#include "exported.h"
#include "faults.h"
#include "group.h"

using namespace emu;

namespace {

ncclResult_t init_rank(ncclComm_t* comm, int nranks, const ncclUniqueId& id, int rank,
                       const ncclConfig_t* config) {
  if (comm == nullptr) return fail(ncclInvalidArgument, "comm is null");
  *comm = nullptr;
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return fail(ncclInvalidArgument, "rank %d of %d: rank must be from 0 to nranks - 1", rank,
                nranks);
  }
  Settings settings;
  const ncclResult_t result = read_config(config, Settings(), &settings);
  if (result != ncclSuccess) return result;
  const int device = current_device();
  if (device < 0) {
    return fail(ncclUnhandledCudaError,
                "no GPU is current to this thread: set one before creating a communicator");
  }
  const std::shared_ptr<Communicator> made = Communicator::create(device, settings);
  *comm = made->handle();
  const auto undo = [made, comm] {
    made->forget(nullptr);
    *comm = nullptr;
  };
  return submit(Job{made, device, settings.blocking, {made},
                    [made, id, nranks, rank] { return made->join(id, nranks, rank); }, undo});
}

// What split, shrink and grow have in common: the parent settles which communicator this rank
// joins, and a child joins it.
using Settle = std::function<ncclResult_t(Communicator::Child*)>;

ncclResult_t make_child(const std::shared_ptr<Communicator>& parent, const ncclConfig_t* config,
                        ncclComm_t* newcomm, bool none, const Settle& settle) {
  const char* const site = parent->take_site();
  if (newcomm == nullptr) return fail(ncclInvalidArgument, "newcomm is null");
  *newcomm = nullptr;
  Settings settings;
  const ncclResult_t result = read_config(config, parent->settings(), &settings);
  if (result != ncclSuccess) return result;
  Job job{parent, parent->device(), settings.blocking, {parent}, {}, [] {}};
  std::shared_ptr<Communicator> child;
  if (!none) {
    child = Communicator::create(parent->device(), settings);
    child->descend_from(*parent);
    *newcomm = child->handle();
    job.concerned.push_back(child);
    job.undo = [child, newcomm] {
      child->forget(nullptr);
      *newcomm = nullptr;
    };
  }
  // A parent that failed keeps its state while ranks leave it.
  const bool healthy = parent->async_error() == ncclSuccess;
  if (!healthy) job.concerned.erase(job.concerned.begin());
  job.work = [settle, child, site]() -> ncclResult_t {
    Communicator::Child place;
    place.site = site;
    const ncclResult_t settled = settle(&place);
    if (settled != ncclSuccess || child == nullptr) return settled;
    return child->join(place.id, place.nranks, place.rank, place.members, site);
  };
  return submit(std::move(job));
}

ncclResult_t check_management(const std::shared_ptr<Communicator>& communicator) {
  if (communicator == nullptr) return ncclInvalidArgument;
  if (communicator->async_error() == ncclInProgress) return communicator->ready();
  if (communicator->nranks() == 0) {
    return fail(ncclInvalidUsage, "the communicator is still being made");
  }
  return ncclSuccess;
}

ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                   const ncclConfig_t* config) {
  const std::shared_ptr<Communicator> parent = Communicator::find(comm);
  const ncclResult_t result = check_management(parent);
  if (result != ncclSuccess) return result;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    return fail(ncclInvalidArgument,
                "color %d: must be 0 or more, or NCCL_SPLIT_NOCOLOR (-1) for no communicator",
                color);
  }
  return make_child(parent, config, newcomm, color == NCCL_SPLIT_NOCOLOR,
                    [parent, color, key](Communicator::Child* child) {
                      return parent->split(color, key, child);
                    });
}

ncclResult_t shrink(ncclComm_t comm, const int* exclude, int count, ncclComm_t* newcomm,
                    const ncclConfig_t* config, int flags) {
  const std::shared_ptr<Communicator> parent = Communicator::find(comm);
  const ncclResult_t result = check_management(parent);
  if (result != ncclSuccess) return result;
  if (count < 1 || exclude == nullptr) {
    return fail(ncclInvalidArgument, "shrink needs at least one rank to exclude");
  }
  const std::set<int> excluded(exclude, exclude + count);
  if (*excluded.begin() < 0 || *excluded.rbegin() >= parent->nranks()) {
    return fail(ncclInvalidArgument, "excluded ranks must be from 0 to %d", parent->nranks() - 1);
  }
  if (excluded.count(parent->rank()) != 0) {
    return fail(ncclInvalidArgument, "rank %d is to be excluded and must not call shrink itself",
                parent->rank());
  }
  if ((flags & ~NCCL_SHRINK_ABORT) != 0) {
    return fail(ncclInvalidArgument, "shrink flags %#x are unknown", flags);
  }
  const bool abort_work = (flags & NCCL_SHRINK_ABORT) != 0;
  return make_child(parent, config, newcomm, false,
                    [parent, excluded, abort_work](Communicator::Child* child) {
                      return parent->shrink(excluded, abort_work, child);
                    });
}

ncclResult_t grow(ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank,
                  ncclComm_t* newcomm, const ncclConfig_t* config) {
  if (comm == nullptr) {
    if (id == nullptr) return fail(ncclInvalidArgument, "a new rank needs the unique id");
    return init_rank(newcomm, nranks, *id, rank, config);
  }
  const std::shared_ptr<Communicator> parent = Communicator::find(comm);
  ncclResult_t result = check_management(parent);
  if (result == ncclSuccess) result = parent->ready();
  if (result != ncclSuccess) return result;
  if (nranks <= parent->nranks() || rank != -1) {
    return fail(ncclInvalidArgument,
                "grow to %d ranks with rank %d: an existing rank passes more ranks than the "
                "communicator's %d, and rank -1",
                nranks, rank, parent->nranks());
  }
  const bool root = id != nullptr;
  const ncclUniqueId copy = root ? *id : ncclUniqueId{};
  return make_child(parent, config, newcomm, false,
                    [parent, nranks, root, copy](Communicator::Child* child) {
                      return parent->grow(nranks, root ? &copy : nullptr, child);
                    });
}

ncclResult_t init_all(ncclComm_t* comms, int ndev, const int* devlist) {
  if (comms == nullptr || ndev < 1) {
    return fail(ncclInvalidArgument, "%d devices: there must be at least one", ndev);
  }
  for (int i = 0; i < ndev; ++i) {
    const int device = devlist == nullptr ? i : devlist[i];
    if (device >= 0 && device < device_count()) continue;
    return fail(ncclInvalidArgument, "device %d does not exist: there are %d", device,
                device_count());
  }
  ncclUniqueId id;
  const ncclResult_t result = Region::create(&id);
  if (result != ncclSuccess) return result;
  group_start();
  for (int i = 0; i < ndev; ++i) {
    const DeviceScope scope(devlist == nullptr ? i : devlist[i]);
    note(init_rank(&comms[i], ndev, id, i, nullptr));
  }
  return group_end();
}

}  // namespace

NCCL_FUNCTION ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  MAY_FAIL(launcher);
  if (id == nullptr) return fail(ncclInvalidArgument, "uniqueId is null");
  return Region::create(id);
}

NCCL_FUNCTION ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id,
                                            int rank) {
  MAY_FAIL(rank);
  return note(init_rank(comm, nranks, id, rank, nullptr));
}

NCCL_FUNCTION ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id,
                                                  int rank, ncclConfig_t* config) {
  MAY_FAIL(rank);
  return note(init_rank(comm, nranks, id, rank, config));
}

NCCL_FUNCTION ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank,
                                                    int ids_count, ncclUniqueId* ids,
                                                    ncclConfig_t* config) {
  MAY_FAIL(rank);
  if (ids_count < 1 || ids_count > nranks || ids == nullptr) {
    return note(fail(ncclInvalidArgument, "%d unique ids for %d ranks: from 1 to one a rank",
                     ids_count, nranks));
  }
  // On one host one meeting place serves all; the other ids only spread load that is not there.
  return note(init_rank(comm, nranks, ids[0], rank, config));
}

NCCL_FUNCTION ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ndev, const int* devlist) {
  MAY_FAIL(launcher);
  return note(init_all(comms, ndev, devlist));
}

NCCL_FUNCTION ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                                         ncclConfig_t* config) {
  MAY_FAIL(first_rank(comm));
  return note(split(comm, color, key, newcomm, config));
}

NCCL_FUNCTION ncclResult_t ncclCommShrink(ncclComm_t comm, int* exclude, int count,
                                          ncclComm_t* newcomm, ncclConfig_t* config, int flags) {
  MAY_FAIL(first_rank(comm));
  return note(shrink(comm, exclude, count, newcomm, config, flags));
}

NCCL_FUNCTION ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  if (id == nullptr) return fail(ncclInvalidArgument, "uniqueId is null");
  const ncclResult_t result = communicator->ready();
  return result != ncclSuccess ? result : communicator->make_growth_id(id);
}

NCCL_FUNCTION ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId* id,
                                        int rank, ncclComm_t* newcomm, ncclConfig_t* config) {
  MAY_FAIL(comm == nullptr ? rank : first_rank(comm));
  return note(grow(comm, nranks, id, rank, newcomm, config));
}

NCCL_FUNCTION ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  communicator->take_site();
  if (communicator->async_error() == ncclInProgress) return communicator->ready();
  const ncclResult_t result = communicator->may_end();
  if (result != ncclSuccess) return result;
  if (communicator->settings().blocking) return communicator->finalize();
  return submit(Job{communicator, communicator->device(), false, {communicator},
                    [communicator] { return communicator->finalize(); }, [] {}});
}

NCCL_FUNCTION ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  MAY_FAIL(first_rank(comm));
  if (comm == nullptr) return ncclSuccess;
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  const ncclResult_t result = communicator->may_end();
  if (result != ncclSuccess) return result;
  communicator->forget("destroyed");
  return communicator->leave();
}

NCCL_FUNCTION ncclResult_t ncclCommAbort(ncclComm_t comm) {
  MAY_FAIL(first_rank(comm));
  if (comm == nullptr) return ncclSuccess;
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  communicator->abort();
  communicator->forget("aborted");
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  if (flags != 0) return fail(ncclInvalidArgument, "revoke flags must be 0, not %#x", flags);
  return communicator->revoke();
}

NCCL_FUNCTION ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  if (flags != NCCL_SUSPEND_MEM) {
    return fail(ncclInvalidArgument, "suspend flags must be NCCL_SUSPEND_MEM (1), not %#x", flags);
  }
  return communicator->suspend();
}

NCCL_FUNCTION ncclResult_t ncclCommResume(ncclComm_t comm) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  return communicator == nullptr ? ncclInvalidArgument : communicator->resume();
}

NCCL_FUNCTION ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t statistic,
                                            uint64_t* value) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr) return ncclInvalidArgument;
  if (value == nullptr || statistic < 0 || statistic > ncclStatGpuMemTotal) {
    return fail(ncclInvalidArgument, "%d is no memory statistic", static_cast<int>(statistic));
  }
  *value = communicator->memory(statistic);
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr || error == nullptr) return ncclInvalidArgument;
  *error = communicator->async_error();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr || count == nullptr) return ncclInvalidArgument;
  *count = communicator->nranks();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr || device == nullptr) return ncclInvalidArgument;
  *device = communicator->device();
  return ncclSuccess;
}

NCCL_FUNCTION ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  MAY_FAIL(first_rank(comm));
  const std::shared_ptr<Communicator> communicator = Communicator::find(comm);
  if (communicator == nullptr || rank == nullptr) return ncclInvalidArgument;
  *rank = communicator->rank();
  return ncclSuccess;
}
