#pragma once

#include <string>

#define EMU_API __attribute__((visibility("default")))

namespace emu {

// GPUs that this process sees, after CUDA_VISIBLE_DEVICES.
EMU_API int device_count();

// Index on the node of a GPU that this process calls `ordinal`.
EMU_API int physical_device(int ordinal);

// Ordinal of the GPU whose context is current to the calling thread, -1 without one.
EMU_API int current_device();

// Makes the primary context of `ordinal` current to the calling thread.
EMU_API void set_current_device(int ordinal);

}  // namespace emu
