#include "group.h"

#include <algorithm>
#include <string>
#include <thread>

#include "error.h"

namespace emu {

namespace {

struct Pending {
  std::shared_ptr<Communicator> communicator;
  Operation operation;
  std::shared_ptr<Stream> stream;
};

struct Job {
  std::shared_ptr<Communicator> communicator;
  std::function<ncclResult_t()> work;
  std::function<void()> undo;
  ncclResult_t result = ncclSuccess;
  std::string error;
};

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::string error_text;
  std::vector<Pending> operations;
  std::vector<Job> jobs;
};

thread_local Group current;

void run(Job& job) {
  set_current_device(job.communicator->device());
  job.result = job.work();
  if (job.result == ncclSuccess) {
    job.communicator->set_progress(ncclSuccess);
    return;
  }
  job.error = last_error();
  if (job.communicator->blocking()) {
    job.undo();
  } else {
    job.communicator->set_async_error(job.result, job.error);
  }
}

ncclResult_t run_jobs(std::vector<Job> jobs) {
  std::vector<std::thread> threads;
  bool in_progress = false;
  for (Job& job : jobs) {
    if (!job.communicator->blocking()) {
      job.communicator->set_progress(ncclInProgress);
      in_progress = true;
      std::thread([job]() mutable { run(job); }).detach();
    } else if (jobs.size() > 1) {
      threads.emplace_back([&job] { run(job); });
    } else {
      const int device = current_device();
      run(job);
      set_current_device(device);
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const Job& job : jobs) {
    if (job.result == ncclSuccess) continue;
    set_last_error(job.error);
    return job.result;
  }
  return in_progress ? ncclInProgress : ncclSuccess;
}

ncclResult_t launch(std::vector<Pending> pending) {
  while (!pending.empty()) {
    const std::shared_ptr<Communicator> communicator = pending.front().communicator;
    std::vector<Operation> operations;
    std::vector<std::shared_ptr<Stream>> streams;
    std::vector<Pending> others;
    for (Pending& one : pending) {
      if (one.communicator != communicator) {
        others.push_back(std::move(one));
        continue;
      }
      operations.push_back(one.operation);
      if (std::find(streams.begin(), streams.end(), one.stream) == streams.end()) {
        streams.push_back(one.stream);
      }
    }
    const ncclResult_t result = communicator->launch(std::move(operations), streams);
    if (result != ncclSuccess) return result;
    pending = std::move(others);
  }
  return ncclSuccess;
}

}  // namespace

void group_start() { ++current.depth; }

bool in_group() { return current.depth > 0; }

ncclResult_t note(ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress && in_group() &&
      current.error == ncclSuccess) {
    current.error = result;
    current.error_text = last_error();
  }
  return result;
}

ncclResult_t group_end() {
  if (current.depth == 0) {
    return fail(ncclInvalidUsage, "ncclGroupEnd without an ncclGroupStart before it");
  }
  if (--current.depth > 0) return ncclSuccess;
  Group ended = std::move(current);
  current = Group();
  if (ended.error != ncclSuccess) {
    for (Job& job : ended.jobs) job.undo();
    return fail(ended.error, "the group was not launched since a call in it failed: %s",
                ended.error_text.c_str());
  }
  ncclResult_t result = ncclSuccess;
  if (!ended.jobs.empty()) result = run_jobs(std::move(ended.jobs));
  if (result != ncclSuccess && result != ncclInProgress) return result;
  const ncclResult_t launched = launch(std::move(ended.operations));
  return launched != ncclSuccess ? launched : result;
}

ncclResult_t submit(const std::shared_ptr<Communicator>& communicator, const Operation& operation,
                    std::shared_ptr<Stream> stream) {
  if (!in_group()) return communicator->launch({operation}, {std::move(stream)});
  current.operations.push_back({communicator, operation, std::move(stream)});
  return ncclSuccess;
}

ncclResult_t submit(const std::shared_ptr<Communicator>& communicator,
                    std::function<ncclResult_t()> work, std::function<void()> undo) {
  Job job{communicator, std::move(work), std::move(undo), ncclSuccess, {}};
  if (in_group()) {
    current.jobs.push_back(std::move(job));
    return ncclSuccess;
  }
  std::vector<Job> jobs;
  jobs.push_back(std::move(job));
  return run_jobs(std::move(jobs));
}

}  // namespace emu
