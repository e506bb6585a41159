#include "graph_user_object.h"

#include <mutex>
#include <unordered_set>

namespace emu {

namespace {

struct Objects {
  std::mutex mutex;
  std::unordered_set<UserObject*> live;
};

Objects& objects() {
  static Objects* const all = new Objects;
  return *all;
}

}  // namespace

CUuserObject_st* UserObject::create(void* data, Destructor destroy, unsigned references) {
  auto* const object = new UserObject(data, destroy, references);
  const std::lock_guard<std::mutex> lock(objects().mutex);
  objects().live.insert(object);
  return reinterpret_cast<CUuserObject_st*>(object);
}

UserObject* UserObject::find(CUuserObject_st* handle) {
  auto* const object = reinterpret_cast<UserObject*>(handle);
  const std::lock_guard<std::mutex> lock(objects().mutex);
  return objects().live.count(object) == 0 ? nullptr : object;
}

bool UserObject::release(unsigned references) {
  unsigned held = references_.load();
  do {
    if (held < references) return false;
  } while (!references_.compare_exchange_weak(held, held - references));
  if (held > references) return true;
  {
    const std::lock_guard<std::mutex> lock(objects().mutex);
    objects().live.erase(this);
  }
  destroy_(data_);
  delete this;
  return true;
}

}  // namespace emu
