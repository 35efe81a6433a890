#include "storage/cuda_runtime.h"

#include <dlfcn.h>

namespace zero::storage {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool load(CudaRuntime& runtime) {
  // Through libtorch's own library, whatever the name of the runtime that it brings.
  for (const char* name : {"libc10_cuda.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
    void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) continue;
    // It stays loaded: libtorch uses it.
    if (!dlsym(library, "cudaMalloc")) continue;
    return find(library, "cudaHostRegister", runtime.host_register) &&
           find(library, "cudaHostUnregister", runtime.host_unregister) &&
           find(library, "cudaGetLastError", runtime.get_last_error) &&
           find(library, "cudaGetErrorString", runtime.get_error_string) &&
           find(library, "cudaMalloc", runtime.malloc) && find(library, "cudaFree", runtime.free) &&
           find(library, "cudaMemset", runtime.memset) &&
           find(library, "cudaDeviceSynchronize", runtime.device_synchronize) &&
           find(library, "cudaIpcGetMemHandle", runtime.ipc_get_mem_handle) &&
           find(library, "cudaIpcOpenMemHandle", runtime.ipc_open_mem_handle) &&
           find(library, "cudaIpcCloseMemHandle", runtime.ipc_close_mem_handle);
  }
  return false;
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

}  // namespace zero::storage
