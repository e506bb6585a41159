#pragma once

#include <cstddef>

namespace emu {

// Where what is written goes: into the caches, or around them. Around takes two thirds of the
// memory's traffic, as a line is not read before it is overwritten, and leaves the caches alone: it
// is for more bytes than those hold.
enum class Stores { cached, around };

// The better for operations that touch so many bytes together.
Stores stores_for(std::size_t bytes);

// Ranges do not overlap.
void copy(void* destination, const void* source, std::size_t bytes, Stores stores);

}  // namespace emu
