#include "races.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <unordered_map>

#include "device_heap.h"
#include "graph_capture.h"
#include "races_text.h"
#include "stream.h"

namespace emu {

bool costly_checks() {
  static const bool wanted = [] {
    const char* const given = std::getenv("PYNCCL_EMULATOR_CHECKS");
    return given == nullptr || std::string(given) != "0";
  }();
  return wanted && !in_forked_child();
}

namespace races {

namespace {

// More accesses that later work might race with are not remembered of one allocation.
constexpr std::size_t most_remembered = 128;

struct History {
  std::size_t bytes;
  std::vector<Past> accesses;
};

struct LastUse {
  int device;
  std::uint64_t position;
};

struct State {
  std::mutex mutex;
  Clock host;
  std::uint64_t host_state = 1;
  std::map<std::uintptr_t, History> memory;  // by the base of the allocation
  std::unordered_map<std::uint64_t, LastUse> used_by;
};

// Never destroyed: streams may still end while the process does.
State& state() {
  static State* const all = new State;
  return *all;
}

std::uint64_t position_in(const Clock& clock, std::uint64_t stream) {
  for (const auto& [id, position] : clock) {
    if (id == stream) return position;
  }
  return 0;
}

bool covers(const Clock& clock, const Clock& other) {
  auto mine = clock.begin();
  for (const auto& [id, position] : other) {
    while (mine != clock.end() && mine->first < id) ++mine;
    if (mine == clock.end() || mine->first != id || mine->second < position) return false;
  }
  return true;
}

void advance(Clock& clock, std::uint64_t stream, std::uint64_t position) {
  const auto at = std::lower_bound(clock.begin(), clock.end(), stream,
                                   [](const auto& one, auto id) { return one.first < id; });
  if (at == clock.end() || at->first != stream) {
    clock.insert(at, {stream, position});
  } else {
    at->second = std::max(at->second, position);
  }
}

void merge(Clock& clock, const Clock& other) {
  for (const auto& [id, position] : other) advance(clock, id, position);
}

// A clock is shared by the marks that were made with it, so that it is never changed.
void merge(Known& known, const Clock& other) {
  if (known != nullptr && covers(*known, other)) return;
  const auto made = known == nullptr ? std::make_shared<Clock>() : std::make_shared<Clock>(*known);
  merge(*made, other);
  known = made;
}

void merge(Known& known, const Known& other) {
  if (other == nullptr || other == known) return;
  if (known == nullptr) {
    known = other;
  } else {
    merge(known, *other);
  }
}

void host_advances(std::uint64_t stream, std::uint64_t position, const Known& known) {
  Clock& host = state().host;
  const bool new_here = position_in(host, stream) < position;
  const bool new_before = known != nullptr && !covers(host, *known);
  if (!new_here && !new_before) return;
  if (new_here) advance(host, stream, position);
  if (new_before) merge(host, *known);
  ++state().host_state;
}

// With the lock held. Null for what is no GPU memory, or not allocated.
History* history_of(std::uintptr_t address) {
  auto& memory = state().memory;
  auto after = memory.upper_bound(address);
  if (after != memory.begin()) {
    History& found = std::prev(after)->second;
    if (address - std::prev(after)->first < found.bytes) return &found;
  }
  const DeviceHeap* const heap = heap_containing(reinterpret_cast<const void*>(address));
  if (heap == nullptr) return nullptr;
  const auto allocation = heap->find(address);
  if (!allocation) return nullptr;
  History& made = memory[allocation->base];
  made = History{allocation->bytes, {}};
  return &made;
}

bool conflict(const Past& past, const Access& access) {
  return (past.access.writes || access.writes) && overlap(past.access, access);
}

const Past* race_with(const History& history, const Access& access, std::uint64_t stream,
                      const Clock& known) {
  for (const Past& past : history.accesses) {
    if (past.stream == stream || !conflict(past, access)) continue;
    if (position_in(known, past.stream) < past.position) return &past;
  }
  return nullptr;
}

// Whatever races with a forgotten access later races with the new one too, or with nothing: it is
// in the same order, and touches no less.
bool is_replaced(const Past& past, const Past& by, const Clock& known) {
  if (past.access.writes && !by.access.writes) return false;
  if (!contains(by.access, past.access)) return false;
  return past.stream == by.stream || position_in(known, past.stream) >= past.position;
}

void remember(History& history, const Past& now, const Clock& known) {
  auto& all = history.accesses;
  const Clock& host = state().host;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const Past& past) {
                             return position_in(host, past.stream) >= past.position ||
                                    is_replaced(past, now, known);
                           }),
            all.end());
  if (all.size() >= most_remembered) all.erase(all.begin());
  all.push_back(now);
}

}  // namespace

Coming::Coming(Place& place) : lock_(state().mutex), place_(place) {
  if (place_.host_seen == state().host_state) return;
  place_.host_seen = state().host_state;
  merge(place_.known, state().host);
}

void Coming::after(std::uint64_t stream, std::uint64_t position, const Known& known) {
  merge(place_.known, known);
  if (position != 0) merge(place_.known, Clock{{stream, position}});
}

void Coming::after(std::uint64_t stream, std::uint64_t position, const Place& place) {
  after(stream, position, place.known);
}

Known known_to(const Place& place) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return place.known;
}

void host_saw(std::uint64_t stream, std::uint64_t position, const Known& known) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  host_advances(stream, position, known);
}

void host_saw_device(int device) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  for (const auto& [stream, last] : state().used_by) {
    if (last.device == device) host_advances(stream, last.position, nullptr);
  }
}

void forget_stream(std::uint64_t stream) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  Clock& host = state().host;
  const auto found = state().used_by.find(stream);
  if (found != state().used_by.end()) {
    // Who races with it may come yet, unless the host has seen it all.
    if (position_in(host, stream) < found->second.position) return;
    state().used_by.erase(found);
    const auto is_its = [stream](const auto& one) { return one.stream == stream; };
    for (auto& [base, history] : state().memory) {
      auto& all = history.accesses;
      all.erase(std::remove_if(all.begin(), all.end(), is_its), all.end());
    }
  }
  host.erase(std::remove_if(host.begin(), host.end(),
                            [stream](const auto& one) { return one.first == stream; }),
             host.end());
}

void forget_memory(std::uintptr_t base) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().memory.erase(base);
}

std::string use(Stream& stream, const Access* accesses, std::size_t count) {
  if (!costly_checks()) return {};
  if (stream.capturing()) {
    if (const auto point = stream.capture_point()) {
      point->capture->note_accesses(accesses, count);
      return {};
    }
  }
  const Known known = stream.come();
  const std::uint64_t position = stream.next_position();
  const std::lock_guard<std::mutex> lock(state().mutex);
  static const Clock nothing;
  const Clock& before = known == nullptr ? nothing : *known;
  for (std::size_t i = 0; i < count; ++i) {
    const Access& access = accesses[i];
    if (access.width == 0) continue;
    const History* const history = history_of(access.begin);
    if (history == nullptr) continue;
    if (const Past* const past = race_with(*history, access, stream.id(), before)) {
      return race_text(*past, Past{stream.id(), position, stream.kind(), &stream, access});
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (accesses[i].width == 0) continue;
    History* const history = history_of(accesses[i].begin);
    if (history == nullptr) continue;
    remember(*history, Past{stream.id(), position, stream.kind(), &stream, accesses[i]}, before);
    state().used_by[stream.id()] = LastUse{stream.device(), position};
  }
  return {};
}

std::string freed_since(const std::vector<Access>& captured) {
  for (const Access& access : captured) {
    if (access.allocation == 0 || allocation_at(access.begin) == access.allocation) continue;
    return freed_text(access);
  }
  return {};
}

std::string use_by_host(const Access& access, Extent extent) {
  if (!costly_checks() || access.width == 0) return {};
  const std::lock_guard<std::mutex> lock(state().mutex);
  const History* const history = history_of(access.begin);
  if (history == nullptr) return {};
  for (const Past& past : history->accesses) {
    if (!conflict(past, access)) continue;
    if (extent == Extent::any_part && !contains(past.access, access)) continue;
    if (position_in(state().host, past.stream) < past.position) return host_race_text(past, access);
  }
  return {};
}

}  // namespace races

}  // namespace emu
