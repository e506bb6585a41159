// The loops of reduce(). Included by one source for each instruction set, which names what it
// defines in REDUCE_FUNCTION. Everything else is local to the including source: were it shared, the
// linker might take code for a processor that this machine does not have.

#include "reduce_formats.h"
#include "reduce_lanes.h"

namespace emu {

namespace {

template <typename T>
T load(const void* from, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const unsigned char*>(from) + i * sizeof(T), sizeof value);
  return value;
}

// So many elements are reduced at a time: what they come to stays in the first cache.
constexpr std::size_t block = 2048;

// Whether elements are reduced by looking results up.
template <typename Arithmetic>
constexpr bool looked_up = sizeof(typename Arithmetic::Stored) == 1 && Arithmetic::scales &&
                           std::is_void_v<typename LanesOf<Arithmetic>::type>;

// All results for two bytes: without lanes, a float8 step takes longer than looking it up.
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

template <typename Arithmetic, typename Stored>
void combine_each(Op op, Stored* __restrict total, const unsigned char* __restrict source,
                  std::size_t count) {
  if constexpr (looked_up<Arithmetic>) {
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
      for (std::size_t i = 0; i < count; ++i) {
        total[i] = Arithmetic::sum(total[i], load<Stored>(source, i));
      }
  }
}

template <typename Arithmetic, typename Stored>
void scale_each(Stored* __restrict total, const unsigned char* __restrict source,
                Stored scalar, bool first, std::size_t count) {
  if constexpr (looked_up<Arithmetic>) {
    const std::uint8_t* const products = results_of<Arithmetic>(Op::prod);
    const std::uint8_t* const sums = results_of<Arithmetic>(Op::sum);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint8_t product = products[source[i] << 8 | scalar];
      total[i] = first ? product : sums[total[i] << 8 | product];
    }
    return;
  }
  if (first) {
    for (std::size_t i = 0; i < count; ++i) {
      total[i] = Arithmetic::prod(load<Stored>(source, i), scalar);
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    total[i] = Arithmetic::sum(total[i], Arithmetic::prod(load<Stored>(source, i), scalar));
  }
}

template <typename Arithmetic, typename Stored>
void combine(Op op, Stored* total, const unsigned char* source, std::size_t count) {
  std::size_t done = 0;
  using Lanes = typename LanesOf<Arithmetic>::type;
  if constexpr (!std::is_void_v<Lanes>) done = combine_lanes<Lanes>(op, total, source, count);
  combine_each<Arithmetic>(op, total + done, source + done * sizeof(Stored), count - done);
}

template <typename Arithmetic, typename Stored>
void scale(Stored* total, const unsigned char* source, Stored scalar, bool first,
           std::size_t count) {
  std::size_t done = 0;
  using Lanes = typename LanesOf<Arithmetic>::type;
  if constexpr (!std::is_void_v<Lanes>) {
    done = scale_lanes<Lanes>(total, source, Arithmetic::widen(scalar), first, count);
  }
  scale_each<Arithmetic>(total + done, source + done * sizeof(Stored), scalar, first, count - done);
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
        const Stored scalar = op == Op::avg ? share : load<Stored>(scalars, s);
        scale<Arithmetic>(total, source, scalar, s == 0, here);
      } else if (s == 0) {
        std::memcpy(total, source, here * sizeof(Stored));
      } else {
        combine<Arithmetic>(op, total, source, here);
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
