#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "communicator.h"

namespace emu {

// Between ncclGroupStart and ncclGroupEnd a thread's calls are collected; the outermost end runs
// them together. Outside a group each runs at once.

void group_start();
ncclResult_t group_end();
// Ends the group without running it, and estimates how long it would have taken.
ncclResult_t group_simulate_end(float* microseconds);

// Makes the end of the group refuse everything that was collected; hands the result through.
ncclResult_t note(ncclResult_t result);

// Gives an operation to its communicator, now or at the end of the group. `launched`, if any, is
// recorded on the stream behind it.
ncclResult_t submit(const std::shared_ptr<Communicator>& communicator, Operation operation,
                    std::shared_ptr<Stream> stream, cudaStream_t handle,
                    cudaEvent_t launched = nullptr);

// What blocks until other ranks have come, as the making of a communicator does. It runs here and
// now, or at the end of the group, or in a thread of its own where it must not block. A group's jobs
// run side by side, but those of one communicator in the order of their calls.
struct Job {
  std::shared_ptr<Communicator> communicator;
  int device;
  bool blocking;
  std::vector<std::shared_ptr<Communicator>> concerned;  // in progress as long as the job
  std::function<ncclResult_t()> work;
  std::function<void()> undo;  // where it fails and the caller is told so at once
  ncclResult_t result = ncclSuccess;
  std::string error{};
};

ncclResult_t submit(Job job);

}  // namespace emu
