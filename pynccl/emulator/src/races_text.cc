// Which bytes an operation touches, and how messages tell of that.

#include "races_text.h"

#include <algorithm>
#include <cstdio>

#include "stream.h"

namespace emu::races {

namespace {

std::size_t extent(const Access& access) {
  return access.pitch * (access.height - 1) + access.width;
}

bool in_one_piece(const Access& access) {
  return access.height == 1 || access.pitch == access.width;
}

bool touches(const Access& access, std::uintptr_t begin, std::uintptr_t end) {
  if (end <= access.begin || begin >= access.begin + extent(access)) return false;
  if (in_one_piece(access) || begin <= access.begin) return true;
  const std::size_t row = (begin - access.begin) / access.pitch;
  const std::uintptr_t row_begin = access.begin + row * access.pitch;
  if (begin < row_begin + access.width) return true;
  return row + 1 < access.height && end > row_begin + access.pitch;
}

std::string hexadecimal(std::uintptr_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "%#zx", static_cast<std::size_t>(value));
  return text;
}

std::string operation(const Access& access) {
  const What& what = access.what;
  std::string text = "the ";
  text += what.say != nullptr
              ? what.say(what)
              : what.name + (" of " + std::to_string(access.width * access.height)) + " bytes";
  if (access.in_graph) text += " in a graph";
  if (what.site != nullptr && *what.site != '\0') text += std::string(" at ") + what.site;
  return text;
}

std::string memory(const Access& access) {
  return std::to_string(extent(access)) + " bytes at " + hexadecimal(access.begin);
}

std::string stream_of(const Past& past) {
  if (past.kind == StreamKind::legacy) return "the default stream";
  return "stream " + hexadecimal(reinterpret_cast<std::uintptr_t>(past.handle));
}

const char* does(const Access& access) { return access.writes ? " writes " : " reads "; }

}  // namespace

bool overlap(const Access& one, const Access& other) {
  const Access& few = one.height <= other.height ? one : other;
  const Access& many = one.height <= other.height ? other : one;
  if (in_one_piece(few)) return touches(many, few.begin, few.begin + extent(few));
  for (std::size_t row = 0; row < few.height; ++row) {
    const std::uintptr_t begin = few.begin + row * few.pitch;
    if (touches(many, begin, begin + few.width)) return true;
  }
  return false;
}

bool contains(const Access& whole, const Access& part) {
  if (!in_one_piece(whole)) {
    return whole.begin == part.begin && whole.pitch == part.pitch && whole.width >= part.width &&
           whole.height >= part.height;
  }
  return part.begin >= whole.begin && part.begin + extent(part) <= whole.begin + extent(whole);
}

std::string race_text(const Past& before, const Past& now) {
  return "a race: " + operation(now.access) + " in " + stream_of(now) + does(now.access) +
         memory(now.access) + ", which " + operation(before.access) + " in " + stream_of(before) +
         (before.access.writes ? " writes" : " reads") + " (" + memory(before.access) +
         "), and nothing orders the two: record an event on " + stream_of(before) +
         " after the first and let " + stream_of(now) +
         " wait for it, or synchronize in between";
}

std::string host_race_text(const Past& before, const Access& now) {
  return std::string("a race: ") + now.what.name + " " + memory(now) + ", which " +
         operation(before.access) + " in " + stream_of(before) +
         (before.access.writes ? " writes" : " reads") + " (" + memory(before.access) +
         "), and nothing has waited for that: synchronize " + stream_of(before) + " first";
}

std::string freed_text(const Access& captured) {
  return operation(captured) + does(captured) + memory(captured) +
         ", which was freed since the graph was captured: memory must be kept as long as the graph "
         "is launched";
}

}  // namespace emu::races
