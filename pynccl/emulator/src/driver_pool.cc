#include <cstring>

#include "driver.h"
#include "memory.h"
#include "memory_pool.h"

using namespace emu;

namespace {

using PoolPointer = std::shared_ptr<MemoryPool>;

bool is_device(CUdevice device) { return device >= 0 && device < device_count(); }

template <class Body>
CUresult pool_call(CUmemoryPool handle, Body&& body) {
  return driver_call([&]() -> CUresult {
    const PoolPointer pool = find_pool(handle);
    return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : body(pool);
  });
}

CUresult give_pool(CUmemoryPool* handle, CUdevice device, PoolPointer (*pool_of)(int)) {
  return driver_call([&]() -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *handle = pool_of(device)->handle();
    return CUDA_SUCCESS;
  });
}

// Pools of host memory, and of managed memory, are not there.
CUresult device_at(const CUmemLocation* location, CUmemAllocationType type, int* device) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  *device = location->id;
  return is_device(*device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult allocate(CUdeviceptr* address, std::size_t bytes, const PoolPointer& pool) {
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!pool->add(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  void* const memory = allocate_device_memory(pool->device, bytes, false, pool->handle());
  if (memory == nullptr) {
    pool->subtract(bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}

// The stream may hand the memory to whatever comes next in it.
CUresult free_in_order(Stream& stream, void* base) {
  const DeviceHeap* const heap = heap_containing(base);
  const auto allocation =
      heap == nullptr ? std::nullopt : heap->find(reinterpret_cast<std::uintptr_t>(base));
  if (!allocation) return CUDA_SUCCESS;
  return in_order(stream, {races::writes(base, allocation->bytes, {"cuMemFreeAsync"})});
}

bool is_flag(CUmemPool_attribute attribute) {
  return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
         attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

}  // namespace

extern "C" {

CU_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* handle, CUdevice device) {
  return give_pool(handle, device, default_pool);
}

CU_API CUresult cuDeviceGetMemPool(CUmemoryPool* handle, CUdevice device) {
  return give_pool(handle, device, current_pool);
}

CU_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  return pool_call(handle, [&](const PoolPointer& pool) -> CUresult {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (pool->device != device) return CUDA_ERROR_INVALID_VALUE;
    set_current_pool(device, pool);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuMemGetDefaultMemPool(CUmemoryPool* handle, CUmemLocation* location,
                                       CUmemAllocationType type) {
  int device = 0;
  if (const CUresult result = device_at(location, type, &device)) return result;
  return cuDeviceGetDefaultMemPool(handle, device);
}

CU_API CUresult cuMemGetMemPool(CUmemoryPool* handle, CUmemLocation* location,
                                CUmemAllocationType type) {
  int device = 0;
  if (const CUresult result = device_at(location, type, &device)) return result;
  return cuDeviceGetMemPool(handle, device);
}

CU_API CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                                CUmemoryPool handle) {
  int device = 0;
  if (const CUresult result = device_at(location, type, &device)) return result;
  return cuDeviceSetMemPool(device, handle);
}

CU_API CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  return driver_call([&]() -> CUresult {
    if (handle == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes != 0) return CUDA_ERROR_NOT_SUPPORTED;
    int device = 0;
    if (const CUresult result =
            device_at(&properties->location, properties->allocType, &device)) {
      return result;
    }
    *handle = create_pool(device, properties->maxSize)->handle();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return pool_call(handle, [&](const PoolPointer&) {
    return destroy_pool(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CU_API CUresult cuMemPoolTrimTo(CUmemoryPool handle, std::size_t) {
  return pool_call(handle, [](const PoolPointer&) { return CUDA_SUCCESS; });
}

CU_API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                      void* value) {
  return pool_call(handle, [&](const PoolPointer& pool) -> CUresult {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (is_flag(attribute)) {
      int flag = 0;
      std::memcpy(&flag, value, sizeof flag);
      pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = flag != 0;
      return CUDA_SUCCESS;
    }
    cuuint64_t number = 0;
    std::memcpy(&number, value, sizeof number);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
      pool->release_threshold = number;
      return CUDA_SUCCESS;
    }
    const bool high_mark = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH ||
                           attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    if (!high_mark || number != 0) return CUDA_ERROR_INVALID_VALUE;
    pool->used_high = pool->used.load();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                      void* value) {
  return pool_call(handle, [&](const PoolPointer& pool) -> CUresult {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (is_flag(attribute)) {
      const int flag = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
      std::memcpy(value, &flag, sizeof flag);
      return CUDA_SUCCESS;
    }
    cuuint64_t number = 0;
    switch (attribute) {
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        number = pool->release_threshold;
        break;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        number = pool->used;
        break;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        number = pool->used_high;
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* accesses,
                                   std::size_t count) {
  return pool_call(handle, [&](const PoolPointer& pool) -> CUresult {
    if (accesses == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      int device = 0;
      if (const CUresult result =
              device_at(&accesses[i].location, CU_MEM_ALLOCATION_TYPE_PINNED, &device)) {
        return result;
      }
      const CUmemAccess_flags flags = accesses[i].flags;
      if (device == pool->device && flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      pool->set_access(device, flags);
    }
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                   CUmemLocation* location) {
  return pool_call(handle, [&](const PoolPointer& pool) -> CUresult {
    int device = 0;
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = device_at(location, CU_MEM_ALLOCATION_TYPE_PINNED, &device)) {
      return result;
    }
    *flags = static_cast<CUmemAccess_flags>(pool->access(device));
    return CUDA_SUCCESS;
  });
}

// The memory may be used at once, which the order of the stream permits. Graphs cannot allocate.
CU_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes,
                                        CUmemoryPool handle, CUstream stream) {
  return stream_call(stream, [&](Stream& found) -> CUresult {
    if (found.capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const PoolPointer pool = find_pool(handle);
    return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : allocate(address, bytes, pool);
  });
}

CU_API CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  return stream_call(stream, [&](Stream& found) -> CUresult {
    if (found.capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return allocate(address, bytes, current_pool(found.device()));
  });
}

CU_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return stream_call(stream, [&](Stream& found) -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    if (found.capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    void* const base = reinterpret_cast<void*>(address);
    if (const CUresult result = free_in_order(found, base)) return result;
    return free_device_memory_after(base, {found.tail()}) ? CUDA_SUCCESS
                                                          : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"

std::vector<DriverFunction> emu::pool_functions() {
  return {
      row<&cuDeviceGetDefaultMemPool>("cuDeviceGetDefaultMemPool", 11020),
      row<&cuDeviceGetMemPool>("cuDeviceGetMemPool", 11020),
      row<&cuDeviceSetMemPool>("cuDeviceSetMemPool", 11020),
      row<&cuMemGetDefaultMemPool>("cuMemGetDefaultMemPool", 13000),
      row<&cuMemGetMemPool>("cuMemGetMemPool", 13000),
      row<&cuMemSetMemPool>("cuMemSetMemPool", 13000),
      row<&cuMemPoolCreate>("cuMemPoolCreate", 11020),
      row<&cuMemPoolDestroy>("cuMemPoolDestroy", 11020),
      row<&cuMemPoolTrimTo>("cuMemPoolTrimTo", 11020),
      row<&cuMemPoolSetAttribute>("cuMemPoolSetAttribute", 11020),
      row<&cuMemPoolGetAttribute>("cuMemPoolGetAttribute", 11020),
      row<&cuMemPoolSetAccess>("cuMemPoolSetAccess", 11020),
      row<&cuMemPoolGetAccess>("cuMemPoolGetAccess", 11020),
      row<&cuMemAllocAsync>("cuMemAllocAsync", 11020),
      row<&cuMemAllocFromPoolAsync>("cuMemAllocFromPoolAsync", 11020),
      row<&cuMemFreeAsync>("cuMemFreeAsync", 11020),
  };
}
