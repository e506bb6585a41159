#include "group.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "board.h"
#include "buffers.h"
#include "device_scope.h"
#include "error.h"
#include "event.h"
#include "process.h"

extern "C" int cuEventRecord(cudaEvent_t event, cudaStream_t stream);

namespace emu {

namespace {

struct Pending {
  std::shared_ptr<Communicator> communicator;
  Operation operation;
  std::shared_ptr<Stream> stream;
  cudaStream_t handle;
  cudaEvent_t launched;
  std::uint64_t events;  // that were recorded before
};

std::string first_of(const std::vector<Pending>& operations) {
  const Operation& first = operations.front().operation;
  return describe(first) + at(first.site);
}

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::string error_text;
  std::vector<Pending> operations;
  std::vector<Job> jobs;
  bool told = false;  // that its thread waits for what is not launched
};

// The calling thread's.
struct OpenGroup : Group {
  ~OpenGroup() {
    if (depth == 0 || operations.empty() || in_forked_child()) return;
    const std::string text = format(
        "a thread of process %d ended inside a group, and what it held was never launched (%zu of "
        "its operations; the first: %s): every ncclGroupStart needs its ncclGroupEnd",
        own_pid(), operations.size(), first_of(operations).c_str());
    std::fprintf(stderr, "pynccl emulator: %s\n", text.c_str());
    for (const Pending& one : operations) one.communicator->lose_held(text);
  }
};

thread_local OpenGroup current;

bool is_meant(const HostWait& wait, const Pending& one) {
  if (wait.stream == nullptr) return one.stream->device() == wait.device;
  // An event that was recorded before stands for what came before.
  return one.stream.get() == wait.stream && wait.event > one.events;
}

// The driver knows nothing of what the calling thread's group holds.
void tell_of_waiting(const HostWait& wait) {
  if (current.depth == 0 || current.told) return;
  const auto& all = current.operations;
  const auto one = std::find_if(all.begin(), all.end(),
                                [&](const Pending& held) { return is_meant(wait, held); });
  if (one == all.end()) return;
  current.told = true;
  const char* const what = wait.stream == nullptr                 ? "a whole GPU"
                           : wait.event == HostWait::no_event ? "a stream"
                                                              : "an event";
  std::fprintf(stderr,
               "pynccl emulator: communicator %s: rank %d (process %d) waits for %s inside a group "
               "that is not ended and holds %s%s for it: nothing of a group is launched before its "
               "ncclGroupEnd, and the wait is not for that\n",
               one->communicator->name().c_str(), one->communicator->rank(), own_pid(),
               what, describe(one->operation).c_str(), at(one->operation.site).c_str());
}

// `last` of its communicator's, which is in progress until then.
void run(Job& job, bool last) {
  const DeviceScope scope(job.device);
  job.result = job.work();
  if (job.result != ncclSuccess) job.error = last_error();
  if (job.result != ncclSuccess && job.blocking) job.undo();
  for (const auto& communicator : job.concerned) {
    if (job.result == ncclSuccess) {
      if (last || communicator != job.communicator) communicator->set_progress(ncclSuccess);
    } else if (!job.blocking) {
      communicator->set_async_error(job.result, job.error);
    }
  }
}

using Jobs = std::vector<Job>;

void run_in_order(Jobs& jobs) {
  for (Job& job : jobs) run(job, &job == &jobs.back());
}

std::vector<Jobs> by_communicator(Jobs jobs) {
  std::vector<Jobs> all;
  for (Job& job : jobs) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Jobs& others) {
      const Job& first = others.front();
      return first.communicator == job.communicator && first.blocking == job.blocking;
    });
    (found != all.end() ? *found : all.emplace_back()).push_back(std::move(job));
  }
  return all;
}

ncclResult_t run_jobs(Jobs jobs) {
  std::vector<Jobs> all = by_communicator(std::move(jobs));
  std::vector<std::thread> threads;
  bool in_progress = false;
  for (Jobs& one : all) {
    if (!one.front().blocking) {
      for (const Job& job : one) {
        for (const auto& communicator : job.concerned) communicator->set_progress(ncclInProgress);
      }
      in_progress = true;
      std::thread([one]() mutable { run_in_order(one); }).detach();
    } else if (all.size() > 1) {
      threads.emplace_back([&one] { run_in_order(one); });
    } else {
      run_in_order(one);
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const Jobs& one : all) {
    for (const Job& job : one) {
      if (job.result == ncclSuccess || !job.blocking) continue;
      set_last_error(job.error);
      return job.result;
    }
  }
  return in_progress ? ncclInProgress : ncclSuccess;
}

void record_launch(const Pending& pending) {
  if (pending.launched == nullptr) return;
  const DeviceScope scope(pending.communicator->device());
  cuEventRecord(pending.launched, pending.handle);
}

ncclResult_t check_all_kept(const std::vector<Pending>& pending) {
  for (const Pending& one : pending) {
    const ncclResult_t result = check_kept(one.operation, *one.communicator);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

ncclResult_t launch(std::vector<Pending> pending) {
  while (!pending.empty()) {
    const std::shared_ptr<Communicator> communicator = pending.front().communicator;
    const auto others = std::stable_partition(
        pending.begin(), pending.end(),
        [&](const Pending& one) { return one.communicator == communicator; });
    std::vector<Operation> operations;
    std::vector<std::shared_ptr<Stream>> streams;
    for (auto one = pending.begin(); one != others; ++one) {
      operations.push_back(one->operation);
      if (std::find(streams.begin(), streams.end(), one->stream) == streams.end()) {
        streams.push_back(one->stream);
      }
    }
    const ncclResult_t result = communicator->launch(std::move(operations), streams);
    if (result != ncclSuccess) return result;
    std::for_each(pending.begin(), others, record_launch);
    pending.erase(pending.begin(), others);
  }
  return ncclSuccess;
}

// The group that ends here; of depth 1 where an inner one ended.
ncclResult_t take_group(Group* ended) {
  if (current.depth == 0) {
    return fail(ncclInvalidUsage, "the end of a group without a start before it");
  }
  if (--current.depth > 0) {
    ended->depth = 1;
    return ncclSuccess;
  }
  *ended = std::move(current);
  static_cast<Group&>(current) = Group();
  for (const Pending& one : ended->operations) one.communicator->let_go(&current);
  if (ended->error == ncclSuccess && !ended->jobs.empty() && !ended->operations.empty()) {
    ended->error = ncclInvalidUsage;
    ended->error_text = format(
        "it makes or ends communicators and has operations as well (the first: %s): each belongs in "
        "a group of its own",
        first_of(ended->operations).c_str());
  }
  if (ended->error == ncclSuccess) return ncclSuccess;
  for (Job& job : ended->jobs) job.undo();
  return fail(ended->error, "the group was not launched: %s",
              ended->error_text.c_str());
}

}  // namespace

void group_start() { ++current.depth; }

ncclResult_t note(ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress && current.depth > 0 &&
      current.error == ncclSuccess) {
    current.error = result;
    current.error_text = "a call in it failed: " + last_error();
  }
  return result;
}

ncclResult_t group_end() {
  Group ended;
  ncclResult_t result = take_group(&ended);
  if (result != ncclSuccess || ended.depth > 0) return result;
  if (!ended.jobs.empty()) result = run_jobs(std::move(ended.jobs));
  if (result != ncclSuccess && result != ncclInProgress) return result;
  const ncclResult_t kept = costly_checks() ? check_all_kept(ended.operations) : ncclSuccess;
  if (kept != ncclSuccess) return kept;
  const ncclResult_t launched = launch(std::move(ended.operations));
  return launched != ncclSuccess ? launched : result;
}

ncclResult_t group_simulate_end(float* microseconds) {
  // As a mid-size server would take: a fixed cost, and the bytes at a link's speed.
  constexpr float start_cost = 10.0F;
  constexpr float bytes_per_microsecond = 200e3F;
  Group ended;
  const ncclResult_t result = take_group(&ended);
  if (result != ncclSuccess || ended.depth > 0) return result;
  for (Job& job : ended.jobs) job.undo();
  *microseconds = ended.operations.empty() ? 0.0F : start_cost;
  for (const Pending& one : ended.operations) {
    const int nranks = one.communicator->nranks();
    const auto bytes = std::max(send_bytes(one.operation, one.communicator->rank(), nranks),
                                receive_bytes(one.operation, one.communicator->rank(), nranks));
    *microseconds += static_cast<float>(bytes) / bytes_per_microsecond;
  }
  return ncclSuccess;
}

ncclResult_t submit(const std::shared_ptr<Communicator>& communicator, Operation operation,
                    std::shared_ptr<Stream> stream, cudaStream_t handle, cudaEvent_t launched) {
  Pending pending{communicator, std::move(operation), std::move(stream),
                  handle,       launched,             0};
  if (current.depth > 0) {
    static const bool asked = (set_before_host_wait(tell_of_waiting), true);
    static_cast<void>(asked);
    pending.events = events_recorded();
    communicator->hold(pending.operation, &current);
    current.operations.push_back(std::move(pending));
    return ncclSuccess;
  }
  const ncclResult_t result =
      communicator->launch({std::move(pending.operation)}, {std::move(pending.stream)});
  if (result == ncclSuccess) record_launch(pending);
  return result;
}

ncclResult_t submit(Job job) {
  if (current.depth > 0) {
    current.jobs.push_back(std::move(job));
    return ncclSuccess;
  }
  std::vector<Job> jobs;
  jobs.push_back(std::move(job));
  return run_jobs(std::move(jobs));
}

}  // namespace emu
