#pragma once

#include "device.h"

namespace emu {

// Makes a GPU current to the calling thread, until the end of the block.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : before_(current_device()), changed_(before_ != device) {
    if (changed_) set_current_device(device);
  }
  ~DeviceScope() {
    if (changed_ && before_ >= 0) set_current_device(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_;
  bool changed_;
};

}  // namespace emu
