// The emulator's reductions, for a test or a measurement to call.
#include "reduce.h"

namespace {

emu::ReduceLoops* loops = nullptr;

}  // namespace

// Chooses what reduce_with_loops() runs; false where this processor cannot.
extern "C" __attribute__((visibility("default"))) bool choose_loops(const char* instructions) {
  loops = emu::reduce_loops_for(instructions);
  return loops != nullptr;
}

extern "C" __attribute__((visibility("default"))) void reduce_with_loops(
    int type, int op, const void* const* sources, int nsources, const void* scalars,
    void* const* destinations, int ndestinations, std::size_t count) {
  loops(static_cast<emu::Type>(type), static_cast<emu::Op>(op), sources, nsources, scalars,
        destinations, ndestinations, count);
}

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
