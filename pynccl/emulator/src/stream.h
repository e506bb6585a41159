#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "device.h"

struct CUstream_st;

namespace emu {

class Stream;

// A place in a stream's work: reached when everything enqueued before it has run.
struct EMU_API Mark {
  std::shared_ptr<Stream> stream;
  std::uint64_t position = 0;
  bool reached() const;
  void wait() const;
};

// A queue of work that one thread runs in order. The legacy default stream keeps CUDA's ordering
// rules with the other streams of its device; enqueue() and wait_for() apply them by themselves.
class EMU_API Stream : public std::enable_shared_from_this<Stream> {
 public:
  int device() const;
  // Appends work and returns at once. The work must not throw.
  Mark enqueue(std::function<void()> work);
  // Work enqueued from now on starts only when `mark` is reached.
  void wait_for(const Mark& mark);
  // After the work enqueued so far.
  Mark tail();
};

// Resolves a driver handle, also 0/1 (legacy) and 2 (per-thread) for the calling thread's device.
// Null for a handle that is no live stream.
EMU_API std::shared_ptr<Stream> find_stream(CUstream_st* handle);

}  // namespace emu
