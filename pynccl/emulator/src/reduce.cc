#include "reduce.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

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
  static T share(int) { return 1; }
  static T finish(T sum, int n) {
    return static_cast<T>(static_cast<Wide>(sum) / static_cast<Wide>(n));
  }
};

template <typename T>
struct Native {
  using Stored = T;
  static T widen(T value) { return value; }
  static T narrow(T value) { return value; }
};

struct Float16 {
  using Stored = std::uint16_t;
  static float widen(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00) return bits_of<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    // The exponent is rebiased by a multiplication, which subnormals survive.
    const float value = bits_of<float>(magnitude << 13) * 0x1p112f;
    return bits_of<float>(sign | bits_of<std::uint32_t>(value));
  }
  static std::uint16_t narrow(float value) {
    const std::uint32_t bits = bits_of<std::uint32_t>(value), magnitude = bits & 0x7fffffffu;
    const std::uint32_t sign = bits >> 16 & 0x8000u;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00);
    if (magnitude < 0x38800000u) {  // adding 0.5 puts the last bit of a subnormal in the last place
      const float aligned = bits_of<float>(magnitude) + 0.5f;
      return static_cast<std::uint16_t>(sign | (bits_of<std::uint32_t>(aligned) - 0x3f000000u));
    }
    const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23);
    return static_cast<std::uint16_t>(sign | rounded >> 13);
  }
};

struct Bfloat16 {
  using Stored = std::uint16_t;
  static float widen(std::uint16_t value) {
    return bits_of<float>(static_cast<std::uint32_t>(value) << 16);
  }
  static std::uint16_t narrow(float value) {
    const std::uint32_t bits = bits_of<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
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
    if (magnitude > 0x7c00) return 0x7f;
    const unsigned rounded = (magnitude + 0x7f + (magnitude >> 8 & 1)) >> 8;
    return static_cast<std::uint8_t>(sign | (rounded > 0x7b ? 0x7b : rounded));
  }
};

struct Float8E4M3 {
  using Stored = std::uint8_t;
  static float widen(std::uint8_t value) {
    if ((value & 0x7f) == 0x7f) return std::nanf("");
    return Float16::widen(static_cast<std::uint16_t>((value & 0x80) << 8 | (value & 0x7f) << 7)) *
           0x1p8f;
  }
  static std::uint8_t narrow(float value) {
    const unsigned half = Float16::narrow(value * 0x1p-8f);
    const unsigned sign = half >> 8 & 0x80, magnitude = half & 0x7fff;
    if (magnitude > 0x7c00) return 0x7f;
    const unsigned rounded = (magnitude + 0x3f + (magnitude >> 7 & 1)) >> 7;
    return static_cast<std::uint8_t>(sign | (rounded > 0x7e ? 0x7e : rounded));
  }
};

template <typename Format>
struct Floating {
  using Stored = typename Format::Stored;
  static Stored sum(Stored a, Stored b) {
    return Format::narrow(Format::widen(a) + Format::widen(b));
  }
  static Stored prod(Stored a, Stored b) {
    return Format::narrow(Format::widen(a) * Format::widen(b));
  }
  // A number wins over a NaN, and -0 is less than +0.
  static Stored max(Stored a, Stored b) {
    const auto x = Format::widen(a), y = Format::widen(b);
    if (x == y) return Format::narrow(std::signbit(x) ? y : x);
    return Format::narrow(x > y || std::isnan(y) ? x : y);
  }
  static Stored min(Stored a, Stored b) {
    const auto x = Format::widen(a), y = Format::widen(b);
    if (x == y) return Format::narrow(std::signbit(x) ? x : y);
    return Format::narrow(x < y || std::isnan(y) ? x : y);
  }
  // An average is the sum of inputs multiplied by 1/n first.
  static Stored share(int n) {
    return Format::narrow(static_cast<decltype(Format::widen(Stored()))>(1.0 / n));
  }
  static Stored finish(Stored sum, int) { return sum; }
};

template <typename Arithmetic, typename Stored = typename Arithmetic::Stored>
Stored combine(Op op, Stored a, Stored b) {
  switch (op) {
    case Op::prod: return Arithmetic::prod(a, b);
    case Op::max: return Arithmetic::max(a, b);
    case Op::min: return Arithmetic::min(a, b);
    default: return Arithmetic::sum(a, b);
  }
}

template <typename T>
T load(const void* from, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const unsigned char*>(from) + i * sizeof(T), sizeof value);
  return value;
}

template <typename Arithmetic>
void reduce_as(Op op, const void* const* sources, int nsources, const void* scalars,
               void* const* destinations, int ndestinations, std::size_t count) {
  using Stored = typename Arithmetic::Stored;
  const Stored share = Arithmetic::share(nsources);
  for (std::size_t i = 0; i < count; ++i) {
    Stored result{};
    for (int s = 0; s < nsources; ++s) {
      Stored value = load<Stored>(sources[s], i);
      if (op == Op::pre_mul_sum) value = Arithmetic::prod(value, load<Stored>(scalars, s));
      if (op == Op::avg) value = Arithmetic::prod(value, share);
      result = s == 0 ? value : combine<Arithmetic>(op, result, value);
    }
    if (op == Op::avg) result = Arithmetic::finish(result, nsources);
    for (int d = 0; d < ndestinations; ++d)
      std::memcpy(static_cast<unsigned char*>(destinations[d]) + i * sizeof result, &result,
                  sizeof result);
  }
}

}  // namespace

std::size_t size_of(Type type) {
  static constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[static_cast<int>(type)];
}

void reduce(Type type, Op op, const void* const* sources, int nsources, const void* scalars,
            void* const* destinations, int ndestinations, std::size_t count) {
  const auto as = [=](auto arithmetic) {
    reduce_as<decltype(arithmetic)>(op, sources, nsources, scalars, destinations, ndestinations,
                                    count);
  };
  switch (type) {
    case Type::int8: return as(Integer<std::int8_t>());
    case Type::uint8: return as(Integer<std::uint8_t>());
    case Type::int32: return as(Integer<std::int32_t>());
    case Type::uint32: return as(Integer<std::uint32_t>());
    case Type::int64: return as(Integer<std::int64_t>());
    case Type::uint64: return as(Integer<std::uint64_t>());
    case Type::float16: return as(Floating<Float16>());
    case Type::float32: return as(Floating<Native<float>>());
    case Type::float64: return as(Floating<Native<double>>());
    case Type::bfloat16: return as(Floating<Bfloat16>());
    case Type::float8_e4m3: return as(Floating<Float8E4M3>());
    case Type::float8_e5m2: return as(Floating<Float8E5M2>());
  }
}

void copy(void* destination, const void* source, std::size_t bytes) {
  std::memcpy(destination, source, bytes);
}

}  // namespace emu
