#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "communicator.h"

namespace emu {

// Between ncclGroupStart and ncclGroupEnd a thread's calls are collected; the outermost end runs
// them together. Outside a group each runs at once.

void group_start();
ncclResult_t group_end();
bool in_group();

// Makes the end of the group refuse everything that was collected; hands the result through.
ncclResult_t note(ncclResult_t result);

// Gives an operation to its communicator, now or at the end of the group.
ncclResult_t submit(const std::shared_ptr<Communicator>& communicator, const Operation& operation,
                    std::shared_ptr<Stream> stream);

// Runs what creates or splits a communicator, which blocks until the other ranks have come: here
// and now, at the end of the group, or in a thread for a communicator that is not blocking.
// `undo` runs where it fails.
ncclResult_t submit(const std::shared_ptr<Communicator>& communicator,
                    std::function<ncclResult_t()> work, std::function<void()> undo);

}  // namespace emu
