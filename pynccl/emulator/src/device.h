#pragma once

#include <array>
#include <cstddef>
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

using Uuid = std::array<unsigned char, 16>;

// The same in every process of the node, different on another node.
Uuid device_uuid(int physical);

// "0000:01:00.0", different for every GPU of the node.
std::string pci_bus_id(int physical);

// Bytes of memory that each GPU has.
std::size_t device_memory();

// What is wrong with the emulator's variables in the environment; empty when nothing is.
const std::string& configuration_error();

// In a child forked from a process that had initialised the driver: nothing works there, as on a
// GPU, and no lock of the parent may be touched.
EMU_API bool in_forked_child();
void watch_for_fork();

}  // namespace emu
