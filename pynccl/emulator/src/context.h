#pragma once

#include <atomic>
#include <cstdint>
#include <set>

namespace emu {

// What a CUcontext points to. All contexts of a device share its memory and default stream.
struct Context {
  int device;
  std::uint64_t id;
  bool primary;
  std::atomic<unsigned> flags{0};
  std::atomic<int> retained{0};  // of a primary context
  std::set<int> peers{};         // devices; for enable_peer() and disable_peer() alone
};

// Null for an ordinal that is no device. Lives for ever, retained or not.
Context* primary_context(int ordinal);

Context* create_context(int device, unsigned flags);
// False for a handle that is no live context other than a primary one.
bool destroy_context(Context* context);
bool is_live_context(const Context* context);

// Whether the context's peers changed.
bool enable_peer(Context& context, int device);
bool disable_peer(Context& context, int device);

// The calling thread's stack of current contexts.
Context* current_context();
void set_current_context(Context* context);  // replaces the top; null empties it
void push_context(Context* context);
Context* pop_context();  // null when the stack is empty

}  // namespace emu
