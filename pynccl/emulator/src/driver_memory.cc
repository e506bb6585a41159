#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "driver.h"
#include "driver_faults.h"
#include "memory.h"

using namespace emu;

namespace {

constexpr std::size_t page = 4096;

void* as_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
CUdeviceptr as_address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

CUresult allocate(CUdeviceptr* address, std::size_t bytes, bool managed) {
  return context_call([&](Context& context) {
    if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (capture_forbids_here()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    void* const memory = allocate_device_memory(context.device, bytes, managed, nullptr);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = as_address(memory);
    return CUDA_SUCCESS;
  });
}

// All that can be asked about a pointer.
struct PointerFacts {
  bool known = false;
  bool pinned = false;
  Allocation allocation{};
  int device = -2;  // as the driver answers for memory that it does not know
  std::uint64_t id = 0;
};

PointerFacts facts_about(CUdeviceptr address) {
  PointerFacts facts;
  if (const DeviceHeap* const heap = heap_containing(as_pointer(address))) {
    if (const auto allocation = heap->find(address)) {
      facts.known = true;
      facts.allocation = *allocation;
      facts.device = heap->device();
      facts.id = allocation->id;
    }
  } else if (const auto range = find_pinned(address)) {
    facts.known = facts.pinned = true;
    facts.allocation = Allocation{range->base, range->bytes};
    facts.device = range->device;
    facts.id = range->id;
  }
  return facts;
}

template <class T>
CUresult answer(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult attribute_of(const PointerFacts& facts, CUdeviceptr address, int attribute, void* data) {
  const bool host_can_use = facts.pinned || facts.allocation.managed;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return answer(data, primary_context(facts.device));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer<unsigned>(data, facts.pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return answer(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host_can_use) return CUDA_ERROR_INVALID_VALUE;
      return answer(data, as_pointer(address));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return answer<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return answer<unsigned long long>(data, facts.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer<unsigned>(data, facts.allocation.managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer<int>(data, facts.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return answer<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return answer<CUdeviceptr>(data, facts.allocation.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return answer<std::size_t>(data, facts.allocation.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer<unsigned>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer<cuuint64_t>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return answer<int>(data, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer(data, facts.allocation.pool);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

std::size_t size_of_attribute(int attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return 4;
    default:
      return 8;
  }
}

CUresult pin(void* memory, std::size_t bytes, unsigned flags, bool registered, int device) {
  return add_pinned(memory, bytes, flags, registered, device)
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

}  // namespace

extern "C" {

CU_API CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return context_call([&](Context& context) {
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const DeviceHeap& heap = heap_of_device(context.device);
    *total = heap.capacity();
    const std::size_t left = capacity_left(physical_device(context.device), heap.capacity());
    *free = left - std::min(left, heap.used());
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  return allocate(address, bytes, false);
}

CU_API CUresult cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                   std::size_t height, unsigned element) {
  if (pitch == nullptr || (element != 4 && element != 8 && element != 16)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  constexpr std::size_t row_alignment = 512;
  if (width > SIZE_MAX - row_alignment) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row_bytes = (width + row_alignment - 1) / row_alignment * row_alignment;
  if (height != 0 && row_bytes > SIZE_MAX / height) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = allocate(address, row_bytes * height, false);
  if (result == CUDA_SUCCESS) *pitch = row_bytes;
  return result;
}

CU_API CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return allocate(address, bytes, true);
}

CU_API CUresult cuMemFree_v2(CUdeviceptr address) {
  return driver_call([&]() -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    // Freeing what a pool gave waits for nothing, unlike freeing what cuMemAlloc gave.
    const PointerFacts facts = facts_about(address);
    if (facts.allocation.pool != nullptr && facts.allocation.base == address) {
      const CUresult ordered = refuse_race(races::use_by_host(races::writes(
          as_pointer(address), facts.allocation.bytes, {"cuMemFree frees"}), races::Extent::all));
      if (ordered != CUDA_SUCCESS) return ordered;
    }
    return free_device_memory(as_pointer(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CU_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes,
                                        CUdeviceptr address) {
  return driver_call([&]() -> CUresult {
    const PointerFacts facts = facts_about(address);
    if (!facts.known) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = facts.allocation.base;
    if (bytes != nullptr) *bytes = facts.allocation.bytes;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  return context_call([&](Context& context) -> CUresult {
    constexpr unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                               CU_MEMHOSTALLOC_WRITECOMBINED;
    if (pointer == nullptr || bytes == 0 || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    void* memory = nullptr;
    if (bytes > SIZE_MAX - page || posix_memalign(&memory, page, bytes) != 0) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = memory;
    return pin(memory, bytes, flags, false, context.device);
  });
}

CU_API CUresult cuMemAllocHost_v2(void** pointer, std::size_t bytes) {
  return cuMemHostAlloc(pointer, bytes, 0);
}

CU_API CUresult cuMemFreeHost(void* pointer) {
  return driver_call([&]() -> CUresult {
    return free_pinned_memory(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CU_API CUresult cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned flags) {
  return context_call([&](Context& context) -> CUresult {
    constexpr unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                               CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    if (pointer == nullptr || bytes == 0 || (flags & ~known) != 0 ||
        heap_containing(pointer) != nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return pin(pointer, bytes, flags, true, context.device);
  });
}

CU_API CUresult cuMemHostUnregister(void* pointer) {
  return driver_call([&]() -> CUresult {
    return remove_pinned(pointer, true) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  });
}

CU_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* pointer, unsigned flags) {
  return context_call([&](Context&) {
    if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!find_pinned(as_address(pointer))) return CUDA_ERROR_INVALID_VALUE;
    *address = as_address(pointer);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuMemHostGetFlags(unsigned* flags, void* pointer) {
  return driver_call([&]() -> CUresult {
    const auto range = find_pinned(as_address(pointer));
    if (flags == nullptr || !range) return CUDA_ERROR_INVALID_VALUE;
    *flags = range->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                      CUdeviceptr address) {
  return driver_call([&]() -> CUresult {
    if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const PointerFacts facts = facts_about(address);
    return facts.known ? attribute_of(facts, address, attribute, data) : CUDA_ERROR_INVALID_VALUE;
  });
}

// Unlike for a single attribute, memory that the driver does not know is no error here.
CU_API CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                       CUdeviceptr address) {
  return driver_call([&]() -> CUresult {
    if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const PointerFacts facts = facts_about(address);
    for (unsigned i = 0; i < count; ++i) {
      if (attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT ||
          attributes[i] > CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID || data[i] == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (facts.known && attribute_of(facts, address, attributes[i], data[i]) == CUDA_SUCCESS) {
        continue;
      }
      std::memset(data[i], 0, size_of_attribute(attributes[i]));
      if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) answer<int>(data[i], facts.device);
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"

ALSO_AS(cuMemGetInfo, cuMemGetInfo_v2);
ALSO_AS(cuMemAlloc, cuMemAlloc_v2);
ALSO_AS(cuMemAllocPitch, cuMemAllocPitch_v2);
ALSO_AS(cuMemFree, cuMemFree_v2);
ALSO_AS(cuMemGetAddressRange, cuMemGetAddressRange_v2);
ALSO_AS(cuMemAllocHost, cuMemAllocHost_v2);
ALSO_AS(cuMemHostRegister, cuMemHostRegister_v2);
ALSO_AS(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2);

std::vector<DriverFunction> emu::memory_functions() {
  return {
      row<&cuMemGetInfo_v2>("cuMemGetInfo", 3020),
      row<&cuMemAlloc_v2>("cuMemAlloc", 3020),
      row<&cuMemAllocPitch_v2>("cuMemAllocPitch", 3020),
      row<&cuMemAllocManaged>("cuMemAllocManaged", 6000),
      row<&cuMemFree_v2>("cuMemFree", 3020),
      row<&cuMemGetAddressRange_v2>("cuMemGetAddressRange", 3020),
      row<&cuMemHostAlloc>("cuMemHostAlloc", 2020),
      row<&cuMemAllocHost_v2>("cuMemAllocHost", 3020),
      row<&cuMemFreeHost>("cuMemFreeHost", 2000),
      row<&cuMemHostRegister_v2>("cuMemHostRegister", 4000),
      row<&cuMemHostUnregister>("cuMemHostUnregister", 4000),
      row<&cuMemHostGetDevicePointer_v2>("cuMemHostGetDevicePointer", 3020),
      row<&cuMemHostGetFlags>("cuMemHostGetFlags", 2030),
      row<&cuPointerGetAttribute>("cuPointerGetAttribute", 4000),
      row<&cuPointerGetAttributes>("cuPointerGetAttributes", 7000),
  };
}
