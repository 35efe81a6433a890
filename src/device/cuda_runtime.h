#pragma once
// The functions of CUDA's runtime that are needed beside libtorch's. They are found in the library that libtorch has
// loaded, so that nothing of CUDA is needed to build, and one build serves machines with and without GPUs.
#include <c10/core/Device.h>

#include <cstddef>
#include <string>

#include "device/device_sharing.h"

namespace zero::device {

struct CudaRuntime {
  int (*host_register)(void*, std::size_t, unsigned) = nullptr;
  int (*host_unregister)(void*) = nullptr;
  int (*get_last_error)() = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  int (*malloc)(void**, std::size_t) = nullptr;
  int (*free)(void*) = nullptr;
  int (*memset)(void*, int, std::size_t) = nullptr;
  int (*device_synchronize)() = nullptr;
  int (*ipc_get_mem_handle)(SharedHandle*, void*) = nullptr;
  int (*ipc_open_mem_handle)(void**, SharedHandle, unsigned) = nullptr;
  int (*ipc_close_mem_handle)(void*) = nullptr;
  int (*device_get_pci_bus_id)(char*, int, int) = nullptr;

  /// What an error code means; forgets it, as it would be taken for that of a kernel.
  std::string error(int code) const;
};

/// Null where libtorch has loaded no CUDA runtime, or one without these functions. Local.
const CudaRuntime* cuda_runtime();

/// What tells a GPU from all others, also of other machines; empty: of another device, or CUDA does not say. Local.
std::string identity_of(c10::Device device);

/// The memory node of the host that a GPU is on, of one without an index this thread's; -1: of another device, or the
/// system does not say. Local.
int memory_node_of(c10::Device device);

}  // namespace zero::device
