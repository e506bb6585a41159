// Eight elements at a time of the types that the processor widens to float32 (F16C): float16, and
// both float8, which are halves of fewer bits. Bit for bit what reduce_formats.h does. Part of
// reduce_loops.h, and local to the source that includes that.

namespace emu {

namespace {

// The lanes of an element type; void where it has none.
template <typename Arithmetic>
struct LanesOf {
  using type = void;
};

// Reduces as many elements of a source into the total as there are full eights; returns how many.
template <typename Lanes, typename Stored>
std::size_t combine_lanes(Op op, Stored* total, const unsigned char* source, std::size_t count);

// The same of a source that is multiplied first, each product rounded. The first source is the
// total.
template <typename Lanes, typename Stored>
std::size_t scale_lanes(Stored* total, const unsigned char* source, float scalar, bool first,
                        std::size_t count);

#if defined(REDUCE_WITH_F16C)

// Elements are in lanes of 16 bits between load() and store(). Widened ones count in units.
struct HalfLanes {
  static constexpr float unit = 1;
  static __m128i load(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  }
  static void store(void* to, __m128i lanes) { _mm_storeu_si128(static_cast<__m128i*>(to), lanes); }
  static __m256 widen(__m128i lanes) { return _mm256_cvtph_ps(lanes); }
  // The processor's NaN is brought to NCCL's.
  static __m128i narrow(__m256 values) {
    const __m128i half = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    return _mm_blendv_epi8(half, _mm_set1_epi16(0x7fff), is_nan(half));
  }
  static __m128i is_nan(__m128i half) {
    const __m128i magnitude = _mm_and_si128(half, _mm_set1_epi16(0x7fff));
    return _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00));
  }
};

// What the float8 types share: the half of which `dropped` low bits are rounded away, with the
// largest number at `largest`.
template <int dropped, int largest>
struct ByteLanes {
  static __m128i load(const void* from) {
    return _mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
  }
  static void store(void* to, __m128i lanes) {
    _mm_storel_epi64(static_cast<__m128i*>(to), _mm_packus_epi16(lanes, lanes));
  }
  static __m128i narrow(__m256 values) {
    const __m128i half = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    const __m128i sign = _mm_and_si128(_mm_srli_epi16(half, 8), _mm_set1_epi16(0x80));
    const __m128i magnitude = _mm_and_si128(half, _mm_set1_epi16(0x7fff));
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(half, dropped), _mm_set1_epi16(1));
    const __m128i nudged = _mm_add_epi16(
        magnitude, _mm_add_epi16(odd, _mm_set1_epi16((1 << (dropped - 1)) - 1)));
    const __m128i rounded = _mm_min_epu16(_mm_srli_epi16(nudged, dropped), _mm_set1_epi16(largest));
    return _mm_blendv_epi8(_mm_or_si128(rounded, sign), _mm_set1_epi16(0x7f),
                           HalfLanes::is_nan(half));
  }
};

struct E5M2Lanes : ByteLanes<8, 0x7b> {
  static constexpr float unit = 1;
  static __m256 widen(__m128i lanes) { return _mm256_cvtph_ps(_mm_slli_epi16(lanes, 8)); }
};

// A half's exponents are for values 256 times smaller: between widen() and narrow(), they are.
struct E4M3Lanes : ByteLanes<7, 0x7e> {
  static constexpr float unit = 256;
  static __m256 widen(__m128i lanes) {
    const __m128i magnitude = _mm_and_si128(lanes, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(lanes, _mm_set1_epi16(0x80)), 8);
    const __m128i half = _mm_or_si128(_mm_slli_epi16(magnitude, 7), sign);
    const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    const __m128i with_nan = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7fff)));
    return _mm256_cvtph_ps(with_nan);
  }
};

// The operations of Floating, for eight.
inline __m256 sum_lanes(__m256 x, __m256 y) { return _mm256_add_ps(x, y); }
template <typename Lanes>
__m256 prod_lanes(__m256 x, __m256 y) {
  return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_set1_ps(Lanes::unit)), y);
}
// The blend looks at signs only: x is taken where it is greater, where y is not a number, and
// where both are equal and x is not negative.
inline __m256 max_lanes(__m256 x, __m256 y) {
  const __m256 greater =
      _mm256_or_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ), _mm256_cmp_ps(y, y, _CMP_UNORD_Q));
  const __m256 equal = _mm256_andnot_ps(x, _mm256_cmp_ps(x, y, _CMP_EQ_OQ));
  return _mm256_blendv_ps(y, x, _mm256_or_ps(greater, equal));
}
inline __m256 min_lanes(__m256 x, __m256 y) {
  const __m256 less =
      _mm256_or_ps(_mm256_cmp_ps(x, y, _CMP_LT_OQ), _mm256_cmp_ps(y, y, _CMP_UNORD_Q));
  const __m256 equal = _mm256_and_ps(x, _mm256_cmp_ps(x, y, _CMP_EQ_OQ));
  return _mm256_blendv_ps(y, x, _mm256_or_ps(less, equal));
}

template <typename Lanes, typename Stored, typename Combine>
std::size_t combine_lanes_by(Stored* total, const unsigned char* source, std::size_t count,
                             Combine combine) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 a = Lanes::widen(Lanes::load(total + i));
    const __m256 b = Lanes::widen(Lanes::load(source + i * sizeof(Stored)));
    Lanes::store(total + i, Lanes::narrow(combine(a, b)));
  }
  return i;
}

template <typename Lanes, typename Stored>
std::size_t scale_lanes(Stored* total, const unsigned char* source, float scalar, bool first,
                        std::size_t count) {
  const __m256 scales = _mm256_set1_ps(scalar);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 b = Lanes::widen(Lanes::load(source + i * sizeof(Stored)));
    __m128i result = Lanes::narrow(_mm256_mul_ps(b, scales));
    if (!first) {
      const __m256 a = Lanes::widen(Lanes::load(total + i));
      result = Lanes::narrow(_mm256_add_ps(a, Lanes::widen(result)));
    }
    Lanes::store(total + i, result);
  }
  return i;
}

template <typename Lanes, typename Stored>
std::size_t combine_lanes(Op op, Stored* total, const unsigned char* source, std::size_t count) {
  switch (op) {
    case Op::prod: return combine_lanes_by<Lanes>(total, source, count, prod_lanes<Lanes>);
    case Op::max: return combine_lanes_by<Lanes>(total, source, count, max_lanes);
    case Op::min: return combine_lanes_by<Lanes>(total, source, count, min_lanes);
    default: return combine_lanes_by<Lanes>(total, source, count, sum_lanes);
  }
}

template <>
struct LanesOf<Floating<Float16>> {
  using type = HalfLanes;
};
template <>
struct LanesOf<Floating<Float8E5M2>> {
  using type = E5M2Lanes;
};
template <>
struct LanesOf<Floating<Float8E4M3>> {
  using type = E4M3Lanes;
};

#endif

}  // namespace

}  // namespace emu
