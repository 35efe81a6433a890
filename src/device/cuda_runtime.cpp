#include "device/cuda_runtime.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <fstream>
#include <string>

#include "base/cores.h"
#include "device/library_functions.h"

namespace zero::device {
namespace {

bool load(CudaRuntime& runtime) {
  // Through libtorch's own library, whatever the name of the runtime that it brings.
  for (const char* name : {"libc10_cuda.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
    void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) continue;
    // It stays loaded: libtorch uses it.
    if (!dlsym(library, "cudaMalloc")) continue;
    return find_function(library, "cudaHostRegister", runtime.host_register) &&
           find_function(library, "cudaHostUnregister", runtime.host_unregister) &&
           find_function(library, "cudaGetLastError", runtime.get_last_error) &&
           find_function(library, "cudaGetErrorString", runtime.get_error_string) &&
           find_function(library, "cudaMalloc", runtime.malloc) && find_function(library, "cudaFree", runtime.free) &&
           find_function(library, "cudaMemset", runtime.memset) &&
           find_function(library, "cudaDeviceSynchronize", runtime.device_synchronize) &&
           find_function(library, "cudaIpcGetMemHandle", runtime.ipc_get_mem_handle) &&
           find_function(library, "cudaIpcOpenMemHandle", runtime.ipc_open_mem_handle) &&
           find_function(library, "cudaIpcCloseMemHandle", runtime.ipc_close_mem_handle) &&
           find_function(library, "cudaDeviceGetPCIBusId", runtime.device_get_pci_bus_id);
  }
  return false;
}

/// Where it is on the bus of its host, of one without an index this thread's; empty: not known.
std::string pci_address_of(c10::Device device) {
  const CudaRuntime* const runtime = device.is_cuda() ? cuda_runtime() : nullptr;
  if (!runtime) return {};
  std::array<char, 32> address{};
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  const int code = runtime->device_get_pci_bus_id(address.data(), static_cast<int>(address.size()), device.index());
  if (code == 0) return address.data();
  runtime->error(code);
  return {};
}

}  // namespace

std::string CudaRuntime::error(int code) const {
  get_last_error();
  return get_error_string(code);
}

const CudaRuntime* cuda_runtime() {
  static CudaRuntime runtime;
  static const bool is_there = load(runtime);
  return is_there ? &runtime : nullptr;
}

std::string identity_of(c10::Device device) {
  const std::string address = pci_address_of(device);
  if (address.empty()) return {};
  std::string machine;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> machine;
  return machine + ' ' + address;
}

int memory_node_of(c10::Device device) {
  const std::string address = pci_address_of(device);
  return address.empty() ? -1 : base::memory_node_of_pci(address);
}

}  // namespace zero::device
