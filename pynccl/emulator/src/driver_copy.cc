#include <algorithm>
#include <cstring>
#include <memory>

#include "driver.h"
#include "memory.h"

using namespace emu;

namespace {

// Below this a copy takes less time than waking the stream's thread to do it.
constexpr std::size_t small = 16384;

void* as_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// What the function's name says of one side of a copy.
enum class Side { device, host, any };

enum class Wait { no, yes };

// `width` bytes from each of `height` rows.
struct Block {
  unsigned char* base;
  std::size_t pitch;
  std::size_t width;
  std::size_t height;

  std::size_t extent() const {
    return width == 0 || height == 0 ? 0 : pitch * (height - 1) + width;
  }
};

CUresult check(const Block& block, Side side, MemoryKind* kind) {
  if (const CUresult result = classify(block.base, block.extent(), kind)) return result;
  const bool on_device = *kind == MemoryKind::device || *kind == MemoryKind::managed;
  if (side == Side::device && *kind == MemoryKind::pageable) return CUDA_ERROR_INVALID_VALUE;
  if (side == Side::host && on_device && *kind != MemoryKind::managed) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void copy_block(const Block& to, const Block& from) {
  if (to.pitch == to.width && from.pitch == from.width) {
    std::memmove(to.base, from.base, to.width * to.height);
    return;
  }
  for (std::size_t row = 0; row < to.height; ++row) {
    std::memmove(to.base + row * to.pitch, from.base + row * from.pitch, to.width);
  }
}

// The call returns when the source may change, though the copy may be yet to come.
void copy_staged(Stream& stream, const Block& to, const Block& from) {
  Mark mark;
  if (stream.try_now([&] { copy_block(to, from); }, &mark)) return;
  const std::shared_ptr<unsigned char[]> staged(new unsigned char[from.width * from.height]);
  const Block packed{staged.get(), from.width, from.width, from.height};
  copy_block(packed, from);
  stream.enqueue([to, packed, staged] { copy_block(to, packed); });
}

races::Access access_to(const Block& block, bool writes, const char* name) {
  return {reinterpret_cast<std::uintptr_t>(block.base), block.width, block.pitch, block.height,
          writes, {name}};
}

CUresult copy(Stream& stream, const Block& to, Side to_side, const Block& from, Side from_side,
              Wait wait) {
  MemoryKind to_kind, from_kind;
  if (to.extent() == 0) return CUDA_SUCCESS;
  if (const CUresult result = check(to, to_side, &to_kind)) return result;
  if (const CUresult result = check(from, from_side, &from_kind)) return result;
  if (const CUresult result = in_order(stream, {access_to(from, false, "copy"),
                                                access_to(to, true, "copy")})) {
    return result;
  }
  const auto work = [to, from] { copy_block(to, from); };
  if (stream.capturing()) {
    // Both sides are read and written at each launch of the graph.
    stream.enqueue(work, WorkKind::memcpy);
    return CUDA_SUCCESS;
  }
  if (wait == Wait::yes || to_kind == MemoryKind::pageable) {
    if (in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
    stream.perform(work).wait();
  } else if (from_kind == MemoryKind::pageable) {
    copy_staged(stream, to, from);
  } else if (to.width * to.height <= small) {
    stream.perform(work);
  } else {
    stream.enqueue(work, WorkKind::memcpy);
  }
  return CUDA_SUCCESS;
}

Block row_of(const void* pointer, std::size_t bytes) {
  return {static_cast<unsigned char*>(const_cast<void*>(pointer)), bytes, bytes, 1};
}

CUresult copy_row(CUstream stream, void* to, Side to_side, const void* from, Side from_side,
                  std::size_t bytes, Wait wait) {
  return work_call(stream, [&](Stream& found) {
    return copy(found, row_of(to, bytes), to_side, row_of(from, bytes), from_side, wait);
  });
}

CUresult block_of(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x,
                  std::size_t y, std::size_t pitch, std::size_t width, std::size_t height,
                  Block* block, Side* side) {
  if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) {
    return type == CU_MEMORYTYPE_ARRAY ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  if (pitch == 0) pitch = width;
  const auto overflows = [pitch](std::size_t rows) { return rows > SIZE_MAX / 4 / pitch; };
  if (width > pitch || x > SIZE_MAX / 4 || overflows(y) || overflows(height)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const void* const base = type == CU_MEMORYTYPE_HOST ? host : as_pointer(device);
  if (base == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *side = type == CU_MEMORYTYPE_HOST     ? Side::host
          : type == CU_MEMORYTYPE_DEVICE ? Side::device
                                         : Side::any;
  *block = Block{static_cast<unsigned char*>(const_cast<void*>(base)) + y * pitch + x, pitch, width,
                 height};
  return CUDA_SUCCESS;
}

CUresult copy_2d(const CUDA_MEMCPY2D* copied, CUstream stream, Wait wait) {
  return work_call(stream, [&](Stream& found) -> CUresult {
    if (copied == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY2D& c = *copied;
    if (c.WidthInBytes == 0 || c.Height == 0) return CUDA_SUCCESS;
    Block from, to;
    Side from_side, to_side;
    if (const CUresult result =
            block_of(c.srcMemoryType, c.srcHost, c.srcDevice, c.srcXInBytes, c.srcY, c.srcPitch,
                     c.WidthInBytes, c.Height, &from, &from_side)) {
      return result;
    }
    if (const CUresult result =
            block_of(c.dstMemoryType, c.dstHost, c.dstDevice, c.dstXInBytes, c.dstY, c.dstPitch,
                     c.WidthInBytes, c.Height, &to, &to_side)) {
      return result;
    }
    return copy(found, to, to_side, from, from_side, wait);
  });
}

template <class T>
void fill(const Block& block, T value) {
  for (std::size_t row = 0; row < block.height; ++row) {
    auto* const first = reinterpret_cast<T*>(block.base + row * block.pitch);
    std::fill_n(first, block.width / sizeof(T), value);
  }
}

template <class T>
CUresult set(CUstream stream, CUdeviceptr address, std::size_t pitch, T value, std::size_t count,
             std::size_t height) {
  return work_call(stream, [&](Stream& found) -> CUresult {
    if (count > SIZE_MAX / sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t width = count * sizeof(T);
    if (height == 1) pitch = width;
    if (address % sizeof(T) != 0 || pitch % sizeof(T) != 0 || pitch < width ||
        (pitch != 0 && height > SIZE_MAX / 4 / pitch)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const Block block{static_cast<unsigned char*>(as_pointer(address)), pitch, width, height};
    if (block.extent() == 0) return CUDA_SUCCESS;
    if (const CUresult result = check_device_range(block.base, block.extent())) return result;
    const CUresult ordered = in_order(found, {access_to(block, true, "memset")});
    if (ordered != CUDA_SUCCESS) return ordered;
    const auto work = [block, value] { fill(block, value); };
    if (width * height <= small) {
      found.perform(work, WorkKind::memset);
    } else {
      found.enqueue(work, WorkKind::memset);
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace

extern "C" {

CU_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_row(nullptr, as_pointer(to), Side::any, as_pointer(from), Side::any, bytes,
                  Wait::yes);
}

CU_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                              CUstream stream) {
  return copy_row(stream, as_pointer(to), Side::any, as_pointer(from), Side::any, bytes, Wait::no);
}

CU_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy_row(nullptr, as_pointer(to), Side::device, from, Side::host, bytes, Wait::yes);
}

CU_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                                     CUstream stream) {
  return copy_row(stream, as_pointer(to), Side::device, from, Side::host, bytes, Wait::no);
}

CU_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  return copy_row(nullptr, to, Side::host, as_pointer(from), Side::device, bytes, Wait::yes);
}

CU_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes,
                                     CUstream stream) {
  return copy_row(stream, to, Side::host, as_pointer(from), Side::device, bytes, Wait::no);
}

CU_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_row(nullptr, as_pointer(to), Side::device, as_pointer(from), Side::device, bytes,
                  Wait::yes);
}

CU_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                     CUstream stream) {
  return copy_row(stream, as_pointer(to), Side::device, as_pointer(from), Side::device, bytes,
                  Wait::no);
}

CU_API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                  CUcontext from_context, std::size_t bytes, CUstream stream) {
  if (const CUresult result = initialized()) return result;
  if (!is_live_context(reinterpret_cast<Context*>(to_context)) ||
      !is_live_context(reinterpret_cast<Context*>(from_context))) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

CU_API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                             CUcontext from_context, std::size_t bytes) {
  return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, nullptr);
}

CU_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copied) {
  return copy_2d(copied, nullptr, Wait::yes);
}

CU_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copied) {
  return copy_2d(copied, nullptr, Wait::yes);
}

CU_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copied, CUstream stream) {
  return copy_2d(copied, stream, Wait::no);
}

CU_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t count) {
  return set(nullptr, to, 0, value, count, 1);
}

CU_API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, std::size_t count) {
  return set(nullptr, to, 0, value, count, 1);
}

CU_API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, std::size_t count) {
  return set(nullptr, to, 0, value, count, 1);
}

CU_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count,
                                CUstream stream) {
  return set(stream, to, 0, value, count, 1);
}

CU_API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count,
                                 CUstream stream) {
  return set(stream, to, 0, value, count, 1);
}

CU_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count,
                                 CUstream stream) {
  return set(stream, to, 0, value, count, 1);
}

CU_API CUresult cuMemsetD2D8_v2(CUdeviceptr to, std::size_t pitch, unsigned char value,
                                std::size_t width, std::size_t height) {
  return set(nullptr, to, pitch, value, width, height);
}

CU_API CUresult cuMemsetD2D16_v2(CUdeviceptr to, std::size_t pitch, unsigned short value,
                                 std::size_t width, std::size_t height) {
  return set(nullptr, to, pitch, value, width, height);
}

CU_API CUresult cuMemsetD2D32_v2(CUdeviceptr to, std::size_t pitch, unsigned value,
                                 std::size_t width, std::size_t height) {
  return set(nullptr, to, pitch, value, width, height);
}

CU_API CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value,
                                  std::size_t width, std::size_t height, CUstream stream) {
  return set(stream, to, pitch, value, width, height);
}

CU_API CUresult cuMemsetD2D16Async(CUdeviceptr to, std::size_t pitch, unsigned short value,
                                   std::size_t width, std::size_t height, CUstream stream) {
  return set(stream, to, pitch, value, width, height);
}

CU_API CUresult cuMemsetD2D32Async(CUdeviceptr to, std::size_t pitch, unsigned value,
                                   std::size_t width, std::size_t height, CUstream stream) {
  return set(stream, to, pitch, value, width, height);
}

}  // extern "C"

ALSO_AS(cuMemcpyHtoD, cuMemcpyHtoD_v2);
ALSO_AS(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2);
ALSO_AS(cuMemcpyDtoH, cuMemcpyDtoH_v2);
ALSO_AS(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2);
ALSO_AS(cuMemcpyDtoD, cuMemcpyDtoD_v2);
ALSO_AS(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2);
ALSO_AS(cuMemcpy2D, cuMemcpy2D_v2);
ALSO_AS(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2);
ALSO_AS(cuMemcpy2DAsync, cuMemcpy2DAsync_v2);
ALSO_AS(cuMemsetD8, cuMemsetD8_v2);
ALSO_AS(cuMemsetD16, cuMemsetD16_v2);
ALSO_AS(cuMemsetD32, cuMemsetD32_v2);
ALSO_AS(cuMemsetD2D8, cuMemsetD2D8_v2);
ALSO_AS(cuMemsetD2D16, cuMemsetD2D16_v2);
ALSO_AS(cuMemsetD2D32, cuMemsetD2D32_v2);

std::vector<DriverFunction> emu::copy_functions() {
  return {
      row<&cuMemcpy>("cuMemcpy", 4000),
      row<&cuMemcpyAsync>("cuMemcpyAsync", 4000),
      row<&cuMemcpyHtoD_v2>("cuMemcpyHtoD", 3020),
      row<&cuMemcpyHtoDAsync_v2>("cuMemcpyHtoDAsync", 3020),
      row<&cuMemcpyDtoH_v2>("cuMemcpyDtoH", 3020),
      row<&cuMemcpyDtoHAsync_v2>("cuMemcpyDtoHAsync", 3020),
      row<&cuMemcpyDtoD_v2>("cuMemcpyDtoD", 3020),
      row<&cuMemcpyDtoDAsync_v2>("cuMemcpyDtoDAsync", 3020),
      row<&cuMemcpyPeer>("cuMemcpyPeer", 4000),
      row<&cuMemcpyPeerAsync>("cuMemcpyPeerAsync", 4000),
      row<&cuMemcpy2D_v2>("cuMemcpy2D", 3020),
      row<&cuMemcpy2DUnaligned_v2>("cuMemcpy2DUnaligned", 3020),
      row<&cuMemcpy2DAsync_v2>("cuMemcpy2DAsync", 3020),
      row<&cuMemsetD8_v2>("cuMemsetD8", 3020),
      row<&cuMemsetD16_v2>("cuMemsetD16", 3020),
      row<&cuMemsetD32_v2>("cuMemsetD32", 3020),
      row<&cuMemsetD8Async>("cuMemsetD8Async", 3020),
      row<&cuMemsetD16Async>("cuMemsetD16Async", 3020),
      row<&cuMemsetD32Async>("cuMemsetD32Async", 3020),
      row<&cuMemsetD2D8_v2>("cuMemsetD2D8", 3020),
      row<&cuMemsetD2D16_v2>("cuMemsetD2D16", 3020),
      row<&cuMemsetD2D32_v2>("cuMemsetD2D32", 3020),
      row<&cuMemsetD2D8Async>("cuMemsetD2D8Async", 3020),
      row<&cuMemsetD2D16Async>("cuMemsetD2D16Async", 3020),
      row<&cuMemsetD2D32Async>("cuMemsetD2D32Async", 3020),
  };
}
