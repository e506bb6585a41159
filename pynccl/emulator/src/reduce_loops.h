// The loops of reduce(). Included by one source for each instruction set, which names what it
// defines in REDUCE_FUNCTION. Everything else is local to the including source: were it shared, the
// linker might take code for a processor that this machine does not have.

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
    if ((value & 0x7f) == 0x7f) return __builtin_nanf("");
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
    const bool first = x == y ? !__builtin_signbit(x) : x > y || y != y;
    return Format::narrow(first ? x : y);
  }
  static Stored min(Stored a, Stored b) {
    const auto x = Format::widen(a), y = Format::widen(b);
    const bool first = x == y ? __builtin_signbit(x) != 0 : x < y || y != y;
    return Format::narrow(first ? x : y);
  }
  // An average is the sum of inputs multiplied by 1/n first.
  static constexpr bool scales = true;
  static Stored share(int n) {
    return Format::narrow(static_cast<decltype(Format::widen(Stored()))>(1.0 / n));
  }
  static Stored finish(Stored sum, int) { return sum; }
};

template <typename T>
T load(const void* from, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const unsigned char*>(from) + i * sizeof(T), sizeof value);
  return value;
}

// So many elements are reduced at a time: what they come to stays in the first cache.
constexpr std::size_t block = 2048;

// All results for two bytes: a float8 step takes longer than looking it up.
template <typename Arithmetic>
const std::uint8_t* results_of(Op op) {
  static const auto* const tables = [] {
    auto* const all = new std::uint8_t[4][65536];
    for (unsigned pair = 0; pair < 65536; ++pair) {
      const auto a = static_cast<std::uint8_t>(pair >> 8);
      const auto b = static_cast<std::uint8_t>(pair);
      all[static_cast<int>(Op::sum)][pair] = Arithmetic::sum(a, b);
      all[static_cast<int>(Op::prod)][pair] = Arithmetic::prod(a, b);
      all[static_cast<int>(Op::max)][pair] = Arithmetic::max(a, b);
      all[static_cast<int>(Op::min)][pair] = Arithmetic::min(a, b);
    }
    return all;
  }();
  return tables[op == Op::prod || op == Op::max || op == Op::min ? static_cast<int>(op) : 0];
}

#if defined(REDUCE_WITH_F16C)

// Eight at a time; returns how many were done. The processor's NaN is brought to NCCL's.
std::size_t add_halves(std::uint16_t* total, const unsigned char* source, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    auto* const at = reinterpret_cast<__m128i*>(total + i);
    const __m256 a = _mm256_cvtph_ps(_mm_loadu_si128(at));
    const __m256 b =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 2 * i)));
    const __m256 sum = _mm256_add_ps(a, b);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
    const __m128i nans =
        _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    const __m128i half = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(at, _mm_blendv_epi8(half, _mm_set1_epi16(0x7fff), nans));
  }
  return i;
}

#else

std::size_t add_halves(std::uint16_t*, const unsigned char*, std::size_t) { return 0; }

#endif

template <typename Arithmetic, typename Stored>
void accumulate(Op op, Stored* __restrict total, const unsigned char* __restrict source,
                std::size_t count) {
  if constexpr (sizeof(Stored) == 1 && Arithmetic::scales) {
    const std::uint8_t* const results = results_of<Arithmetic>(op);
    for (std::size_t i = 0; i < count; ++i) total[i] = results[total[i] << 8 | source[i]];
    return;
  }
  switch (op) {
    case Op::prod:
      for (std::size_t i = 0; i < count; ++i) {
        total[i] = Arithmetic::prod(total[i], load<Stored>(source, i));
      }
      break;
    case Op::max:
      for (std::size_t i = 0; i < count; ++i) {
        total[i] = Arithmetic::max(total[i], load<Stored>(source, i));
      }
      break;
    case Op::min:
      for (std::size_t i = 0; i < count; ++i) {
        total[i] = Arithmetic::min(total[i], load<Stored>(source, i));
      }
      break;
    default:
      std::size_t i = 0;
      if constexpr (std::is_same_v<Arithmetic, Floating<Float16>>) {
        i = add_halves(total, source, count);
      }
      for (; i < count; ++i) total[i] = Arithmetic::sum(total[i], load<Stored>(source, i));
  }
}

template <typename Arithmetic, typename Stored>
void accumulate_scaled(Stored* __restrict total, const unsigned char* __restrict source,
                       Stored scale, bool first, std::size_t count) {
  if constexpr (sizeof(Stored) == 1 && Arithmetic::scales) {
    const std::uint8_t* const products = results_of<Arithmetic>(Op::prod);
    const std::uint8_t* const sums = results_of<Arithmetic>(Op::sum);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint8_t product = products[source[i] << 8 | scale];
      total[i] = first ? product : sums[total[i] << 8 | product];
    }
    return;
  }
  if (first) {
    for (std::size_t i = 0; i < count; ++i) {
      total[i] = Arithmetic::prod(load<Stored>(source, i), scale);
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    total[i] = Arithmetic::sum(total[i], Arithmetic::prod(load<Stored>(source, i), scale));
  }
}

template <typename Arithmetic>
void reduce_as(Op op, const void* const* sources, int nsources, const void* scalars,
               void* const* destinations, int ndestinations, std::size_t count) {
  using Stored = typename Arithmetic::Stored;
  alignas(64) Stored total[block];
  const Stored share = Arithmetic::share(nsources);
  const bool scaled = op == Op::pre_mul_sum || (op == Op::avg && Arithmetic::scales);
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t here = count - begin < block ? count - begin : block;
    for (int s = 0; s < nsources; ++s) {
      const auto* const source =
          static_cast<const unsigned char*>(sources[s]) + begin * sizeof(Stored);
      if (scaled) {
        const Stored scale = op == Op::avg ? share : load<Stored>(scalars, s);
        accumulate_scaled<Arithmetic>(total, source, scale, s == 0, here);
      } else if (s == 0) {
        std::memcpy(total, source, here * sizeof(Stored));
      } else {
        accumulate<Arithmetic>(op, total, source, here);
      }
    }
    if (op == Op::avg) {
      for (std::size_t i = 0; i < here; ++i) total[i] = Arithmetic::finish(total[i], nsources);
    }
    for (int d = 0; d < ndestinations; ++d) {
      auto* const destination =
          static_cast<unsigned char*>(destinations[d]) + begin * sizeof(Stored);
      std::memcpy(destination, total, here * sizeof(Stored));
    }
  }
}

}  // namespace

void REDUCE_FUNCTION(Type type, Op op, const void* const* sources, int nsources,
                     const void* scalars, void* const* destinations, int ndestinations,
                     std::size_t count) {
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

}  // namespace emu
