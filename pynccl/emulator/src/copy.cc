#include "copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace emu {

namespace {

#if defined(__x86_64__)

constexpr std::size_t line = 64;

void copy_around(unsigned char* destination, const unsigned char* source, std::size_t bytes) {
  const std::size_t before = std::min(bytes, -reinterpret_cast<std::uintptr_t>(destination) % line);
  std::memcpy(destination, source, before);
  std::size_t i = before;
  for (; i + line <= bytes; i += line) {
    const auto* const from = reinterpret_cast<const __m128i*>(source + i);
    auto* const to = reinterpret_cast<__m128i*>(destination + i);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  // Such stores are not in order with others; what tells of them must come after.
  _mm_sfence();
  std::memcpy(destination + i, source + i, bytes - i);
}

#endif

// What one last cache holds, where the machine tells. (sysconf may add up those of all sockets.)
std::size_t cache_bytes() {
  static const std::size_t told = [] {
    std::size_t kilobytes = 0;
    std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kilobytes;  // "32768K"
    return kilobytes << 10;
  }();
  constexpr std::size_t usual = 32 << 20;
  return told != 0 ? told : usual;
}

}  // namespace

Stores stores_for(std::size_t bytes) {
  return bytes > cache_bytes() / 4 * 3 ? Stores::around : Stores::cached;
}

void copy(void* destination, const void* source, std::size_t bytes, Stores stores) {
#if defined(__x86_64__)
  if (stores == Stores::around) {
    copy_around(static_cast<unsigned char*>(destination), static_cast<const unsigned char*>(source),
                bytes);
    return;
  }
#else
  static_cast<void>(stores);
#endif
  std::memcpy(destination, source, bytes);
}

}  // namespace emu
