// The arithmetic of each element type, one element at a time. Part of reduce_loops.h, and local to the
// source that includes that.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduce.h"

// Each step is rounded on its own: no fused multiply-add.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

namespace emu {

namespace {

template <typename To, typename From>
To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "");
  To bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Integers, in unsigned arithmetic: it wraps.
template <typename T>
struct Integer {
  using Stored = T;
  using Unsigned = std::make_unsigned_t<T>;
  using Wide = std::conditional_t<std::is_signed<T>::value, std::int64_t, std::uint64_t>;
  static T sum(T a, T b) {
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  }
  static T prod(T a, T b) {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
  static T max(T a, T b) { return a > b ? a : b; }
  static T min(T a, T b) { return a < b ? a : b; }
  // An average is the sum, divided at the end.
  static constexpr bool scales = false;
  static T share(int) { return 1; }
  static T finish(T sum, int n) {
    if constexpr (sizeof(T) < 8) return static_cast<T>(static_cast<double>(sum) / n);
    return static_cast<T>(static_cast<Wide>(sum) / static_cast<Wide>(n));
  }
};

template <typename T>
struct Native {
  using Stored = T;
  static T widen(T value) { return value; }
  static T narrow(T value) { return value; }
};

// The conversions choose between results and never branch, so that compilers make vector code of
// them.
struct Float16 {
  using Stored = std::uint16_t;
  static float widen(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    // The exponent is rebiased by a multiplication, which subnormals survive.
    const std::uint32_t finite = bits_of<std::uint32_t>(bits_of<float>(magnitude << 13) * 0x1p112f);
    const std::uint32_t special = 0x7f800000u | (magnitude & 0x3ff) << 13;
    return bits_of<float>(sign | (magnitude >= 0x7c00 ? special : finite));
  }
  static std::uint16_t narrow(float value) {
    const std::uint32_t bits = bits_of<std::uint32_t>(value), magnitude = bits & 0x7fffffffu;
    // Adding 0.5 puts the last bit of a subnormal in the last place.
    const float aligned = bits_of<float>(magnitude) + 0.5f;
    const std::uint32_t subnormal = bits_of<std::uint32_t>(aligned) - 0x3f000000u;
    const std::uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const std::uint32_t number = magnitude >= 0x477ff000u ? 0x7c00u : finite;
    const std::uint32_t signed_number = (bits >> 16 & 0x8000u) | number;
    return static_cast<std::uint16_t>(magnitude > 0x7f800000u ? 0x7fffu : signed_number);
  }
};

struct Bfloat16 {
  using Stored = std::uint16_t;
  static float widen(std::uint16_t value) {
    return bits_of<float>(static_cast<std::uint32_t>(value) << 16);
  }
  static std::uint16_t narrow(float value) {
    const std::uint32_t bits = bits_of<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
  }
};

// Both float8 types are the upper byte of a float16, once the value is scaled to its exponents.
struct Float8E5M2 {
  using Stored = std::uint8_t;
  static float widen(std::uint8_t value) {
    return Float16::widen(static_cast<std::uint16_t>(value << 8));
  }
  static std::uint8_t narrow(float value) {
    const unsigned half = Float16::narrow(value), sign = half >> 8 & 0x80, magnitude = half & 0x7fff;
    const unsigned rounded = (magnitude + 0x7f + (magnitude >> 8 & 1)) >> 8;
    const unsigned number = sign | (rounded > 0x7b ? 0x7b : rounded);
    return static_cast<std::uint8_t>(magnitude > 0x7c00 ? 0x7f : number);
  }
};

struct Float8E4M3 {
  using Stored = std::uint8_t;
  static float widen(std::uint8_t value) {
    const float number = 0x1p8f * Float16::widen(static_cast<std::uint16_t>(
                                      (value & 0x80) << 8 | (value & 0x7f) << 7));
    return (value & 0x7f) == 0x7f ? __builtin_nanf("") : number;
  }
  static std::uint8_t narrow(float value) {
    const unsigned half = Float16::narrow(value * 0x1p-8f);
    const unsigned sign = half >> 8 & 0x80, magnitude = half & 0x7fff;
    const unsigned rounded = (magnitude + 0x3f + (magnitude >> 7 & 1)) >> 7;
    const unsigned number = sign | (rounded > 0x7e ? 0x7e : rounded);
    return static_cast<std::uint8_t>(magnitude > 0x7c00 ? 0x7f : number);
  }
};

inline bool negative(float x) { return bits_of<std::int32_t>(x) < 0; }
inline bool negative(double x) { return bits_of<std::int64_t>(x) < 0; }

template <typename Format>
struct Floating {
  using Stored = typename Format::Stored;
  static auto widen(Stored value) { return Format::widen(value); }
  static Stored sum(Stored a, Stored b) {
    return Format::narrow(Format::widen(a) + Format::widen(b));
  }
  static Stored prod(Stored a, Stored b) {
    return Format::narrow(Format::widen(a) * Format::widen(b));
  }
  // A number wins over a NaN, and -0 is less than +0.
  static Stored max(Stored a, Stored b) {
    const auto x = Format::widen(a), y = Format::widen(b);
    const bool first = x > y || y != y || (x == y && !negative(x));
    return Format::narrow(first ? x : y);
  }
  static Stored min(Stored a, Stored b) {
    const auto x = Format::widen(a), y = Format::widen(b);
    const bool first = x < y || y != y || (x == y && negative(x));
    return Format::narrow(first ? x : y);
  }
  // An average is the sum of inputs multiplied by 1/n first.
  static constexpr bool scales = true;
  static Stored share(int n) {
    return Format::narrow(static_cast<decltype(Format::widen(Stored()))>(1.0 / n));
  }
  static Stored finish(Stored sum, int) { return sum; }
};

}  // namespace

}  // namespace emu
