#include "device/device_sharing.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

#include "device/cuda_runtime.h"
#include "zero/errors.h"

namespace zero::device {
namespace {

constexpr const char* kRemedy = "\"offload_optimizer\": {\"device\": \"cpu\"} keeps what ranks share in host memory";

class CudaSharing final : public DeviceSharing {
 public:
  explicit CudaSharing(const CudaRuntime& runtime) : runtime_(runtime) {}

  std::shared_ptr<void> allocate(c10::Device device, std::size_t nbytes, SharedHandle& handle) override {
    // Blocks of their own: what is opened elsewhere is the whole block that the driver has cut a smaller one from.
    constexpr std::size_t kBlock = std::size_t{2} << 20;
    const c10::DeviceGuard here(device);
    void* memory = nullptr;
    const std::size_t rounded = (nbytes + kBlock - 1) / kBlock * kBlock;
    int code = runtime_.malloc(&memory, rounded);
    if (code != 0) {  // libtorch may keep what nobody uses
      runtime_.error(code);
      if (auto* const cache = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type())))
        cache->emptyCache({0, 0});
      code = runtime_.malloc(&memory, rounded);
    }
    if (code != 0) {
      throw IoError(
          fmt::format("no {} bytes of memory of {} to share between ranks: {}; use more ranks, a higher ZeRO "
                      "stage or a smaller model, or: {}",
                      rounded, device.str(), runtime_.error(code), kRemedy));
    }
    std::shared_ptr<void> owner(memory, [this, device, process = ::getpid()](void* freed) {
      let_go(device, process, [&] { return runtime_.free(freed); });
    });
    check(runtime_.memset(memory, 0, rounded), "cannot clear", device);
    check(runtime_.device_synchronize(), "cannot clear", device);
    check(runtime_.ipc_get_mem_handle(&handle, memory), "cannot share", device);
    return owner;
  }

  std::shared_ptr<void> open(c10::Device device, const SharedHandle& handle, std::size_t) override {
    constexpr unsigned kLazyEnablePeerAccess = 1;
    const c10::DeviceGuard here(device);
    void* memory = nullptr;
    check(runtime_.ipc_open_mem_handle(&memory, handle, kLazyEnablePeerAccess), "cannot map another rank's", device);
    return {memory, [this, device, process = ::getpid()](void* mapped) {
              let_go(device, process, [&] { return runtime_.ipc_close_mem_handle(mapped); });
            }};
  }

 private:
  /// Nobody can be told what fails here: a device that has failed, or a process that ends. Not in a forked child.
  template <class Free>
  void let_go(c10::Device device, pid_t process, Free free) const noexcept {
    if (::getpid() != process) return;
    try {
      const c10::DeviceGuard there(device);
      if (const int code = free(); code != 0) runtime_.error(code);
    } catch (const std::exception&) {
    }
  }
  void check(int code, const char* what, c10::Device device) const {
    if (code == 0) return;
    throw IoError(fmt::format("{} memory at {}: {}; GPUs of one host must reach each other's memory, or: {}", what,
                              device.str(), runtime_.error(code), kRemedy));
  }

  const CudaRuntime& runtime_;
};

struct Registry {
  std::mutex mutex;
  std::map<c10::DeviceType, std::shared_ptr<DeviceSharing>> by_type;
};

Registry& registry() {
  static auto& made = *new Registry;  // memory may go after static objects
  return made;
}

}  // namespace

std::shared_ptr<DeviceSharing> device_sharing(c10::DeviceType type) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  auto& sharing = known.by_type[type];
  if (!sharing && type == c10::kCUDA && cuda_runtime()) sharing = std::make_shared<CudaSharing>(*cuda_runtime());
  return sharing;
}

void register_device_sharing(c10::DeviceType type, std::shared_ptr<DeviceSharing> sharing) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  known.by_type[type] = std::move(sharing);
}

}  // namespace zero::device
