#define REDUCE_FUNCTION reduce_plain

#include "reduce_loops.h"
