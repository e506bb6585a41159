#include "reduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace emu {

ReduceLoops reduce_plain;
#if defined(__x86_64__)
ReduceLoops reduce_avx2;
ReduceLoops reduce_avx512;
#endif

namespace {

ReduceLoops* choose() {
  for (const char* const instructions : {"avx512", "avx2"}) {
    if (ReduceLoops* const loops = reduce_loops_for(instructions)) return loops;
  }
  return reduce_plain;
}

}  // namespace

ReduceLoops* reduce_loops_for(const char* instructions) {
  const auto is = [=](const char* name) { return std::strcmp(instructions, name) == 0; };
#if defined(__x86_64__)
  // Every processor with AVX2 has F16C, which not every compiler can ask for.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (is("avx512") && avx512) return reduce_avx512;
  if (is("avx2") && avx2) return reduce_avx2;
#endif
  return is("plain") ? reduce_plain : nullptr;
}

std::size_t size_of(Type type) {
  static constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[static_cast<int>(type)];
}

void reduce(Type type, Op op, const void* const* sources, int nsources, const void* scalars,
            void* const* destinations, int ndestinations, std::size_t count, Stores stores) {
  static ReduceLoops* const best = choose();
  if (stores == Stores::cached) {
    best(type, op, sources, nsources, scalars, destinations, ndestinations, count);
    return;
  }
  // Small enough to be in the first cache when it is copied from there.
  alignas(64) unsigned char results[16384];
  const std::size_t element = size_of(type), block = sizeof results / element;
  std::vector<const void*> from(sources, sources + nsources);
  void* const here = results;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t part = std::min(block, count - begin);
    for (int s = 0; s < nsources; ++s) {
      from[s] = static_cast<const unsigned char*>(sources[s]) + begin * element;
    }
    best(type, op, from.data(), nsources, scalars, &here, 1, part);
    for (int d = 0; d < ndestinations; ++d) {
      auto* const to = static_cast<unsigned char*>(destinations[d]) + begin * element;
      copy(to, results, part * element, stores);
    }
  }
}

}  // namespace emu
