#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "stream.h"

struct CUevent_st;

namespace emu {

// What a CUevent names: the last place in a stream that it was recorded at.
class Event {
 public:
  struct Record {
    Mark mark;
    std::uint64_t number = 0;  // among all records of this process
    std::atomic<std::int64_t> nanoseconds{0};  // when the mark was reached
  };

  Event(int device, unsigned flags) : device(device), flags(flags) {}

  const int device;
  const unsigned flags;

  // In a stream that captures, the place in the graph.
  void record(Stream& stream);
  // Null before the first record().
  std::shared_ptr<const Record> last() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Record> last_;
};

// How many records there were in this process.
EMU_API std::uint64_t events_recorded();

CUevent_st* register_event(const std::shared_ptr<Event>& event);
// Null for a handle that is no live event.
std::shared_ptr<Event> find_event(CUevent_st* handle);
std::shared_ptr<Event> unregister_event(CUevent_st* handle);

}  // namespace emu
