#include "device/device_stream.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "base/log.h"
#include "device/cuda_runtime.h"

namespace zero::device {
namespace {

c10::Stream own_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl backend(device.type());
  try {
    return backend.getStreamFromGlobalPool(device);
  } catch (const c10::Error&) {  // a backend with one stream
    return backend.getStream(device);
  }
}

}  // namespace

DeviceStream::DeviceStream(c10::Device device)
    : stream_(own_stream(device)), others_(device.type()), end_(device.type()) {}

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

c10::Stream DeviceStream::caller() const { return current_stream(stream_.device()); }

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

void note_use(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const c10::impl::VirtualGuardImpl backend(tensor.device().type());
  backend.recordDataPtrOnStream(tensor.storage().data_ptr(), backend.getStream(tensor.device()));
}

void finish_current_stream(c10::Device device) {
  c10::impl::VirtualGuardImpl(device.type()).synchronizeStream(current_stream(device));
}

at::Tensor host_tensor_for(c10::Device device, std::int64_t numel, at::ScalarType type) {
  return at::empty({numel}, at::TensorOptions(type).pinned_memory(device.is_cuda()));
}

std::shared_ptr<void> pin_host_memory(std::shared_ptr<void> memory, void* data, std::size_t nbytes,
                                      c10::Device device) {
  if (!device.is_cuda() || nbytes == 0) return memory;
  const CudaRuntime* const runtime = cuda_runtime();
  constexpr unsigned kPortable = 1;  // for every device of the process
  const c10::DeviceGuard here(device);
  const int code = runtime ? runtime->host_register(data, nbytes, kPortable) : -1;
  if (code != 0) {
    base::log_warning("{} bytes of host memory could not be pinned for {} ({}): copies to and from it take longer",
                      nbytes, device.str(), runtime ? runtime->error(code) : "no CUDA runtime is loaded");
    return memory;
  }
  return {data, [memory = std::move(memory), runtime](void* pinned) {
            if (const int failed = runtime->host_unregister(pinned); failed != 0) runtime->error(failed);
          }};
}

}  // namespace zero::device
