#include "context.h"

#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "device.h"

namespace emu {

namespace {

struct Contexts {
  std::mutex mutex;
  std::vector<std::unique_ptr<Context>> primary;
  std::unordered_set<const Context*> created;
  std::uint64_t next_id = 1;
};

Contexts& contexts() {
  static Contexts* const all = [] {
    auto* const made = new Contexts;
    for (int ordinal = 0; ordinal < device_count(); ++ordinal) {
      made->primary.emplace_back(new Context{ordinal, made->next_id++, true});
    }
    return made;
  }();
  return *all;
}

thread_local std::vector<Context*> stack;

}  // namespace

Context* primary_context(int ordinal) {
  if (ordinal < 0 || ordinal >= device_count()) return nullptr;
  return contexts().primary[ordinal].get();
}

Context* create_context(int device, unsigned flags) {
  const std::lock_guard<std::mutex> lock(contexts().mutex);
  auto* const context = new Context{device, contexts().next_id++, false};
  context->flags = flags;
  contexts().created.insert(context);
  return context;
}

bool destroy_context(Context* context) {
  {
    const std::lock_guard<std::mutex> lock(contexts().mutex);
    if (contexts().created.erase(context) == 0) return false;
  }
  // The object stays: it may still be on the stack of another thread.
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  return true;
}

bool is_live_context(const Context* context) {
  if (context == nullptr) return false;
  for (const auto& primary : contexts().primary) {
    if (primary.get() == context) return true;
  }
  const std::lock_guard<std::mutex> lock(contexts().mutex);
  return contexts().created.count(context) != 0;
}

bool enable_peer(Context& context, int device) {
  const std::lock_guard<std::mutex> lock(contexts().mutex);
  return context.peers.insert(device).second;
}

bool disable_peer(Context& context, int device) {
  const std::lock_guard<std::mutex> lock(contexts().mutex);
  return context.peers.erase(device) != 0;
}

Context* current_context() { return stack.empty() ? nullptr : stack.back(); }

void set_current_context(Context* context) {
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
}

void push_context(Context* context) { stack.push_back(context); }

Context* pop_context() {
  if (stack.empty()) return nullptr;
  Context* const top = stack.back();
  stack.pop_back();
  return top;
}

}  // namespace emu
