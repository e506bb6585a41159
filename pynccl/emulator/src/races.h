#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace emu {

class Stream;
enum class StreamKind;

// Whether checks that cost time are made: not where PYNCCL_EMULATOR_CHECKS is 0.
EMU_API bool costly_checks();

// Finds operations of two streams that touch the same GPU memory, one of them writing, with no
// event or synchronization between them: by vector clocks, so that it does not matter which of them
// happened to run first. All functions are thread safe.
namespace races {

// How far in each stream's work, by the stream's id: a position as of Stream's marks. Sorted.
using Clock = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
using Known = std::shared_ptr<const Clock>;

// What is known to have run before the next item of one stream: belongs to it, and to races.cc.
struct Place {
  Known known;
  std::uint64_t host_seen = 0;  // which state of the host's clock is in it
};

// Gives the next item of a stream what it comes after: what the host has seen complete, and what
// is added here. Takes the lock of the whole check: to be short.
class Coming {
 public:
  explicit Coming(Place& place);
  void after(std::uint64_t stream, std::uint64_t position, const Known& known);
  void after(std::uint64_t stream, std::uint64_t position, const Place& place);
  Known known() const { return place_.known; }

 private:
  const std::lock_guard<std::mutex> lock_;
  Place& place_;
};

Known known_to(const Place& place);

// The host has seen the stream's work complete, up to a position.
void host_saw(std::uint64_t stream, std::uint64_t position, const Known& known);
// The same for all work of a device.
void host_saw_device(int device);
// The stream is gone: nothing comes after it any more.
void forget_stream(std::uint64_t stream);
// The allocation is gone.
void forget_memory(std::uintptr_t base);

// An operation as messages tell of it. `say` makes its text from `data`; without one the text is
// the name with the bytes touched.
struct What {
  const char* name;
  std::string (*say)(const What&) = nullptr;
  std::array<std::uint64_t, 4> data{};
  const char* site = nullptr;  // in the program, where known: text that is never freed
};

// Memory that an operation reads or writes: `width` bytes from each of `height` rows.
struct Access {
  std::uintptr_t begin;
  std::size_t width;
  std::size_t pitch;
  std::size_t height;
  bool writes;
  What what;
  bool in_graph = false;
  std::uint64_t allocation = 0;  // of a graph's: at its capture; 0 for none
};

inline Access reads(const void* begin, std::size_t bytes, const What& what) {
  return {reinterpret_cast<std::uintptr_t>(begin), bytes, bytes, 1, false, what};
}

inline Access writes(void* begin, std::size_t bytes, const What& what) {
  return {reinterpret_cast<std::uintptr_t>(begin), bytes, bytes, 1, true, what};
}

// To be called before an operation is given to the stream: notes what it touches, or returns the
// text of a race, in which case nothing is noted. Host memory is passed over. Where the stream
// captures, the accesses go into the graph.
EMU_API std::string use(Stream& stream, const Access* accesses, std::size_t count);

// Tells of memory that a graph touches and that was freed since it was captured; empty for none.
std::string freed_since(const std::vector<Access>& captured);

// How much of the memory is touched: all, or perhaps a part, so that only what touches all of it
// races for certain.
enum class Extent { all, any_part };

// The same for the host, and at once.
std::string use_by_host(const Access& access, Extent extent);

}  // namespace races

}  // namespace emu
