#if defined(__x86_64__)

// Before the target is set: these declare functions that all sources share.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c,bmi2")
#endif

#define REDUCE_WITH_F16C
#define REDUCE_FUNCTION reduce_avx2
#include "reduce_loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
