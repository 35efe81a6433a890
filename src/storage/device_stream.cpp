#include "storage/device_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <dlfcn.h>

#include "base/log.h"

namespace zero::storage {
namespace {

c10::Stream own_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl backend(device.type());
  try {
    return backend.getStreamFromGlobalPool(device);
  } catch (const c10::Error&) {  // a backend with one stream
    return backend.getStream(device);
  }
}

/// Functions of the CUDA runtime that libtorch has loaded; null without.
struct CudaRuntime {
  int (*host_register)(void*, std::size_t, unsigned) = nullptr;
  int (*host_unregister)(void*) = nullptr;
  int (*get_last_error)() = nullptr;

  CudaRuntime() {
    for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
      void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
      if (!library) continue;
      host_register = reinterpret_cast<decltype(host_register)>(dlsym(library, "cudaHostRegister"));
      host_unregister = reinterpret_cast<decltype(host_unregister)>(dlsym(library, "cudaHostUnregister"));
      get_last_error = reinterpret_cast<decltype(get_last_error)>(dlsym(library, "cudaGetLastError"));
      return;  // stays loaded: libtorch uses it
    }
  }
  explicit operator bool() const { return host_register && host_unregister && get_last_error; }
};

}  // namespace

DeviceStream::DeviceStream(c10::Device device)
    : stream_(own_stream(device)), others_(device.type()), end_(device.type()) {}

c10::Stream DeviceStream::caller() const {
  return c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device());
}

void DeviceStream::wait_for(const c10::Stream& stream) {
  if (stream == stream_) return;
  others_.record(stream);
  others_.block(stream_);
}

void DeviceStream::copy(const at::Tensor& to, const at::Tensor& from) const {
  const c10::StreamGuard here(stream_);
  to.copy_(from, /*non_blocking=*/true);
}

void DeviceStream::finish() {
  end_.record(stream_);
  end_.synchronize();
}

std::shared_ptr<void> pin_host_memory(std::shared_ptr<void> memory, void* data, std::size_t nbytes,
                                      c10::Device device) {
  if (!device.is_cuda() || nbytes == 0) return memory;
  static const CudaRuntime runtime;
  constexpr unsigned kPortable = 1;  // for every device of the process
  if (!runtime || runtime.host_register(data, nbytes, kPortable) != 0) {
    if (runtime) runtime.get_last_error();  // it would be taken for that of a kernel
    base::log_warning("{} bytes of host memory could not be pinned for {}: copies to and from it take longer", nbytes,
                      device.str());
    return memory;
  }
  return {data, [memory = std::move(memory)](void* pinned) { runtime.host_unregister(pinned); }};
}

}  // namespace zero::storage
