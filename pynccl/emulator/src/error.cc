#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace emu {

namespace {

thread_local std::string last;

std::string format_list(const char* text, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  std::string result(std::vsnprintf(nullptr, 0, text, again), '\0');
  va_end(again);
  std::vsnprintf(result.data(), result.size() + 1, text, arguments);
  return result;
}

}  // namespace

std::string format(const char* text, ...) {
  va_list arguments;
  va_start(arguments, text);
  std::string result = format_list(text, arguments);
  va_end(arguments);
  return result;
}

ncclResult_t fail(ncclResult_t code, const char* text, ...) {
  va_list arguments;
  va_start(arguments, text);
  last = format_list(text, arguments);
  va_end(arguments);
  return code;
}

const std::string& last_error() { return last; }

void set_last_error(std::string text) { last = std::move(text); }

}  // namespace emu
