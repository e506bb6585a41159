#include "reduce.h"

#include <cstring>

namespace emu {

using Reduce = decltype(reduce);

Reduce reduce_plain;
#if defined(__x86_64__)
Reduce reduce_avx2;
Reduce reduce_avx512;
#endif

namespace {

// The best that this processor has.
Reduce* choose() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return reduce_avx512;
  if (avx2) return reduce_avx2;
#endif
  return reduce_plain;
}

}  // namespace

std::size_t size_of(Type type) {
  static constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[static_cast<int>(type)];
}

void reduce(Type type, Op op, const void* const* sources, int nsources, const void* scalars,
            void* const* destinations, int ndestinations, std::size_t count) {
  static Reduce* const best = choose();
  best(type, op, sources, nsources, scalars, destinations, ndestinations, count);
}

void copy(void* destination, const void* source, std::size_t bytes) {
  std::memcpy(destination, source, bytes);
}

}  // namespace emu
