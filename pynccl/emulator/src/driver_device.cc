#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_map>

#include "device_heap.h"
#include "driver.h"

using namespace emu;

namespace {

bool is_device(CUdevice device) { return device >= 0 && device < device_count(); }

// What does not differ from GPU to GPU. Every other attribute is 0: a feature that is not there.
const std::unordered_map<int, int>& attributes() {
  static const auto* const values = new std::unordered_map<int, int>{
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
      {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
      {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
      {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 1},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
      {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
      {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
  };
  return *values;
}

}  // namespace

extern "C" {

CU_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return driver_call([&]() -> CUresult {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDeviceGetCount(int* count) {
  return driver_call([&]() -> CUresult {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = device_count();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return driver_call([&]() -> CUresult {
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(name, static_cast<std::size_t>(length), "pynccl emulated GPU");
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return driver_call([&]() -> CUresult {
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    const Uuid bytes = device_uuid(physical_device(device));
    std::memcpy(uuid->bytes, bytes.data(), bytes.size());
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

CU_API CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  return driver_call([&]() -> CUresult {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = device_memory();
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return driver_call([&]() -> CUresult {
    if (value == nullptr || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    unsigned domain = 0, bus = 0;
    std::sscanf(pci_bus_id(physical_device(device)).c_str(), "%x:%x", &domain, &bus);
    const auto found = attributes().find(attribute);
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) {
      *value = static_cast<int>(domain);
    } else if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
      *value = static_cast<int>(bus);
    } else {
      *value = found == attributes().end() ? 0 : found->second;
    }
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  if (const CUresult result =
          cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)) {
    return result;
  }
  return cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
}

CU_API CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  return driver_call([&]() -> CUresult {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    const std::string text = pci_bus_id(physical_device(device));
    if (id == nullptr || length <= static_cast<int>(text.size())) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(id, text.c_str(), text.size() + 1);
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  return driver_call([&]() -> CUresult {
    if (device == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    const bool whole = std::sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) >= 3;
    if (!whole) {
      domain = 0;
      if (std::sscanf(id, "%x:%x.%x", &bus, &slot, &function) < 2) return CUDA_ERROR_INVALID_VALUE;
    }
    char text[64];
    std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", domain, bus, slot, function);
    for (int ordinal = 0; ordinal < device_count(); ++ordinal) {
      if (pci_bus_id(physical_device(ordinal)) != text) continue;
      *device = ordinal;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
  });
}

CU_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return driver_call([&]() -> CUresult {
    if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device) || !is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
  });
}

CU_API CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                        CUdevice device, CUdevice peer) {
  return driver_call([&]() -> CUresult {
    if (value == nullptr || attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        attribute > CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_device(device) || !is_device(peer) || device == peer) return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"

ALSO_AS(cuDeviceTotalMem, cuDeviceTotalMem_v2);

std::vector<DriverFunction> emu::device_functions() {
  return {
      row<&cuDeviceGet>("cuDeviceGet", 2000),
      row<&cuDeviceGetCount>("cuDeviceGetCount", 2000),
      row<&cuDeviceGetName>("cuDeviceGetName", 2000),
      row<&cuDeviceGetUuid>("cuDeviceGetUuid", 9020),
      row<&cuDeviceGetUuid_v2>("cuDeviceGetUuid", 11040),
      row<&cuDeviceTotalMem_v2>("cuDeviceTotalMem", 3020),
      row<&cuDeviceGetAttribute>("cuDeviceGetAttribute", 2000),
      row<&cuDeviceComputeCapability>("cuDeviceComputeCapability", 2000),
      row<&cuDeviceGetPCIBusId>("cuDeviceGetPCIBusId", 4010),
      row<&cuDeviceGetByPCIBusId>("cuDeviceGetByPCIBusId", 4010),
      row<&cuDeviceCanAccessPeer>("cuDeviceCanAccessPeer", 4000),
      row<&cuDeviceGetP2PAttribute>("cuDeviceGetP2PAttribute", 8000),
  };
}
