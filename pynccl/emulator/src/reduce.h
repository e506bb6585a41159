#pragma once

#include <cstddef>

#include "copy.h"

namespace emu {

// Values of ncclDataType_t.
enum class Type : int {
  int8 = 0, uint8 = 1, int32 = 2, uint32 = 3, int64 = 4, uint64 = 5, float16 = 6, float32 = 7,
  float64 = 8, bfloat16 = 9, float8_e4m3 = 10, float8_e5m2 = 11
};

// What is done to elements: ncclRedOp_t's five, and a sum of inputs multiplied by a scalar first.
enum class Op : int { sum = 0, prod = 1, max = 2, min = 3, avg = 4, pre_mul_sum = 5 };

std::size_t size_of(Type type);

// One reduction over `nsources` equal ranges of elements, in the order of the sources, each step
// rounded to the element type as NCCL's kernels do. `scalars`, for pre_mul_sum, has one value of
// the element type per source. Every destination receives the same bits. A destination may be
// one of the sources; ranges do not overlap otherwise.
void reduce(Type type, Op op, const void* const* sources, int nsources, const void* scalars,
            void* const* destinations, int ndestinations, std::size_t count,
            Stores stores = Stores::cached);

// The loops behind reduce(), for one instruction set each, all with the same results.
using ReduceLoops = void(Type type, Op op, const void* const* sources, int nsources,
                         const void* scalars, void* const* destinations, int ndestinations,
                         std::size_t count);

// The loops for "avx512", "avx2" or "plain"; null where this processor cannot run them.
ReduceLoops* reduce_loops_for(const char* instructions);

}  // namespace emu
