#pragma once

#include <atomic>

struct CUuserObject_st;

namespace emu {

// Something of the user's that ends with the last reference to it: of the user, or of a graph.
class UserObject {
 public:
  using Destructor = void (*)(void* data);

  static CUuserObject_st* create(void* data, Destructor destroy, unsigned references);
  // Null for a handle that is no live object.
  static UserObject* find(CUuserObject_st* handle);

  void retain(unsigned references) { references_.fetch_add(references); }
  // False where there were not so many.
  bool release(unsigned references);

 private:
  UserObject(void* data, Destructor destroy, unsigned references)
      : data_(data), destroy_(destroy), references_(references) {}

  void* const data_;
  const Destructor destroy_;
  std::atomic<unsigned> references_;
};

}  // namespace emu
