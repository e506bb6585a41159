#pragma once

#include <string>

#include "races.h"

namespace emu::races {

// An access of a stream's work.
struct Past {
  std::uint64_t stream;
  std::uint64_t position;
  StreamKind kind;
  const void* handle;  // of the stream, which may be gone
  Access access;
};

bool overlap(const Access& one, const Access& other);
// Whether all that `part` touches lies within `whole`.
bool contains(const Access& whole, const Access& part);

std::string race_text(const Past& before, const Past& now);
std::string host_race_text(const Past& before, const Access& now);
std::string freed_text(const Access& captured);

}  // namespace emu::races
