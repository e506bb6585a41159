#include "event.h"

#include <chrono>
#include <unordered_map>

namespace emu {

namespace {

struct Handles {
  std::mutex mutex;
  std::unordered_map<CUevent_st*, std::shared_ptr<Event>> live;
};

Handles& handles() {
  static Handles* const all = new Handles;
  return *all;
}

std::atomic<std::uint64_t> records{0};

std::int64_t now() {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_start).count();
}

}  // namespace

std::uint64_t events_recorded() { return records.load(std::memory_order_relaxed); }

void Event::record(Stream& stream) {
  const auto made = std::make_shared<Record>();
  made->number = ++records;
  if (stream.capturing()) {
    made->mark = stream.tail();
  } else {
    made->mark = stream.perform([made_weak = std::weak_ptr<Record>(made)] {
      // Nobody can ask for the time of a record that is gone.
      if (const auto record = made_weak.lock()) record->nanoseconds = now();
    });
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  last_ = made;
}

std::shared_ptr<const Event::Record> Event::last() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_;
}

CUevent_st* register_event(const std::shared_ptr<Event>& event) {
  auto* const handle = reinterpret_cast<CUevent_st*>(event.get());
  const std::lock_guard<std::mutex> lock(handles().mutex);
  handles().live[handle] = event;
  return handle;
}

std::shared_ptr<Event> find_event(CUevent_st* handle) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto found = handles().live.find(handle);
  return found == handles().live.end() ? nullptr : found->second;
}

std::shared_ptr<Event> unregister_event(CUevent_st* handle) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto found = handles().live.find(handle);
  if (found == handles().live.end()) return nullptr;
  const std::shared_ptr<Event> event = found->second;
  handles().live.erase(found);
  return event;
}

}  // namespace emu
