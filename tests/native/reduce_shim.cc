// The emulator's reductions, for a test to call.
#include "reduce.h"

extern "C" __attribute__((visibility("default"))) void reduce_elements(
    int type, int op, const void* const* sources, int nsources, const void* scalars,
    void* const* destinations, int ndestinations, std::size_t count, bool around) {
  emu::reduce(static_cast<emu::Type>(type), static_cast<emu::Op>(op), sources, nsources, scalars,
              destinations, ndestinations, count,
              around ? emu::Stores::around : emu::Stores::cached);
}

extern "C" __attribute__((visibility("default"))) void copy_bytes(void* destination,
                                                                 const void* source,
                                                                 std::size_t bytes, bool around) {
  emu::copy(destination, source, bytes, around ? emu::Stores::around : emu::Stores::cached);
}
