#pragma once

// Every result code of the driver interface up to CUDA 13.0, with what it says.
#define CUDA_RESULTS(X)                                                                   \
  X(CUDA_SUCCESS, 0, "no error")                                                          \
  X(CUDA_ERROR_INVALID_VALUE, 1, "an argument is out of range or no valid pointer")       \
  X(CUDA_ERROR_OUT_OF_MEMORY, 2, "not enough memory")                                     \
  X(CUDA_ERROR_NOT_INITIALIZED, 3, "the driver is not initialized (or was, before fork)") \
  X(CUDA_ERROR_DEINITIALIZED, 4, "the driver is shutting down")                           \
  X(CUDA_ERROR_PROFILER_DISABLED, 5, "the profiler is disabled")                          \
  X(CUDA_ERROR_PROFILER_NOT_INITIALIZED, 6, "the profiler is not initialized")            \
  X(CUDA_ERROR_PROFILER_ALREADY_STARTED, 7, "the profiler has already started")           \
  X(CUDA_ERROR_PROFILER_ALREADY_STOPPED, 8, "the profiler has already stopped")           \
  X(CUDA_ERROR_STUB_LIBRARY, 34, "the driver library is a stub")                          \
  X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 36, "the call needs a newer driver")           \
  X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "the device is busy or unavailable")               \
  X(CUDA_ERROR_NO_DEVICE, 100, "no device is visible")                                    \
  X(CUDA_ERROR_INVALID_DEVICE, 101, "no such device")                                     \
  X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102, "the device has no license")                     \
  X(CUDA_ERROR_INVALID_IMAGE, 200, "the kernel image is not valid")                       \
  X(CUDA_ERROR_INVALID_CONTEXT, 201, "no context is current, or it is not a valid one")   \
  X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202, "the context is already current")            \
  X(CUDA_ERROR_MAP_FAILED, 205, "mapping failed")                                         \
  X(CUDA_ERROR_UNMAP_FAILED, 206, "unmapping failed")                                     \
  X(CUDA_ERROR_ARRAY_IS_MAPPED, 207, "the array is mapped")                               \
  X(CUDA_ERROR_ALREADY_MAPPED, 208, "the resource is already mapped")                     \
  X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image for this device")                 \
  X(CUDA_ERROR_ALREADY_ACQUIRED, 210, "the resource is already acquired")                 \
  X(CUDA_ERROR_NOT_MAPPED, 211, "the resource is not mapped")                             \
  X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, 212, "the resource is not mapped as an array")        \
  X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, 213, "the resource is not mapped as a pointer")     \
  X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable memory error")                      \
  X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215, "the device does not support this limit")          \
  X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216, "the context is in use by another thread")    \
  X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported")              \
  X(CUDA_ERROR_INVALID_PTX, 218, "PTX compilation failed")                                \
  X(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, 219, "not a valid graphics context")             \
  X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220, "uncorrectable NVLink error")                   \
  X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221, "no PTX compiler was found")                  \
  X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "the PTX version is not supported")          \
  X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223, "PTX compilation is disabled")              \
  X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224, "this affinity is not supported")          \
  X(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, 225, "device-side waiting is not supported")     \
  X(CUDA_ERROR_CONTAINED, 226, "a contained error happened")                              \
  X(CUDA_ERROR_INVALID_SOURCE, 300, "the kernel source is not valid")                     \
  X(CUDA_ERROR_FILE_NOT_FOUND, 301, "file not found")                                     \
  X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, 302, "a shared object lacks a symbol")     \
  X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, 303, "a shared object failed to initialize")    \
  X(CUDA_ERROR_OPERATING_SYSTEM, 304, "a call to the operating system failed")            \
  X(CUDA_ERROR_INVALID_HANDLE, 400, "the handle names nothing of its kind")               \
  X(CUDA_ERROR_ILLEGAL_STATE, 401, "the resource is not in a state for this")             \
  X(CUDA_ERROR_LOSSY_QUERY, 402, "the answer would lose information")                     \
  X(CUDA_ERROR_NOT_FOUND, 500, "the name was not found")                                  \
  X(CUDA_ERROR_NOT_READY, 600, "the work is not complete yet")                            \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal address was accessed")                   \
  X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "the launch needs too many resources")       \
  X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out")                               \
  X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, 703, "incompatible texturing mode")         \
  X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access is already enabled")        \
  X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access is not enabled")                \
  X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "the primary context is active")              \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "the context is destroyed")                     \
  X(CUDA_ERROR_ASSERT, 710, "a device-side assertion failed")                             \
  X(CUDA_ERROR_TOO_MANY_PEERS, 711, "too many peers")                                     \
  X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "the memory is already registered")   \
  X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "the memory is not registered")           \
  X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error")                         \
  X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715, "illegal instruction")                           \
  X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address")                             \
  X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717, "wrong address space")                         \
  X(CUDA_ERROR_INVALID_PC, 718, "the program counter left the program")                   \
  X(CUDA_ERROR_LAUNCH_FAILED, 719, "the launch failed")                                   \
  X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720, "too many blocks to cooperate")         \
  X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721, "tensor memory was not freed")                    \
  X(CUDA_ERROR_NOT_PERMITTED, 800, "not permitted here")                                  \
  X(CUDA_ERROR_NOT_SUPPORTED, 801, "not supported here")                                  \
  X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "the system is not ready")                          \
  X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803, "driver and system do not match")             \
  X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "no forward compatibility here")      \
  X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805, "no connection to the MPS control daemon")     \
  X(CUDA_ERROR_MPS_RPC_FAILURE, 806, "a call to the MPS server failed")                   \
  X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807, "the MPS server is not ready")                  \
  X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808, "too many MPS clients")                      \
  X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809, "too many MPS connections")              \
  X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810, "the MPS client was terminated")               \
  X(CUDA_ERROR_CDP_NOT_SUPPORTED, 811, "dynamic parallelism is not supported")            \
  X(CUDA_ERROR_CDP_VERSION_MISMATCH, 812, "versions of dynamic parallelism differ")       \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "not permitted while a stream captures")  \
  X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "the capture was spoilt before")          \
  X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "two captures would be merged")                 \
  X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "the capture did not begin on this stream") \
  X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "a forked stream was not joined again")      \
  X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "a dependency would leave the capture")     \
  X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "implicit dependency on the default stream") \
  X(CUDA_ERROR_CAPTURED_EVENT, 907, "the event was last recorded in a capture")           \
  X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "the capture began on another thread")   \
  X(CUDA_ERROR_TIMEOUT, 909, "the time ran out")                                          \
  X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "the graph differs too much to update")    \
  X(CUDA_ERROR_EXTERNAL_DEVICE, 911, "an external device failed")                         \
  X(CUDA_ERROR_INVALID_CLUSTER_SIZE, 912, "the cluster size is not valid")                \
  X(CUDA_ERROR_FUNCTION_NOT_LOADED, 913, "the function is not loaded")                    \
  X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914, "wrong type of resource")                      \
  X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915, "not a valid resource configuration") \
  X(CUDA_ERROR_KEY_ROTATION, 916, "a key rotation failed")                                \
  X(CUDA_ERROR_UNKNOWN, 999, "unknown error")
