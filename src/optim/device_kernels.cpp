#include "optim/device_kernels.h"

#include <c10/core/Device.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>

#include "base/log.h"

namespace zero::optim {
namespace {

/// The library beside the one that this is in, or where the system looks for libraries.
const DeviceKernels* load_cuda_kernels() {
  constexpr const char* kName = "libzerotorch_cuda.so";
  void* library = nullptr;
  if (Dl_info here; dladdr(reinterpret_cast<const void*>(&device_kernels), &here) != 0 && here.dli_fname) {
    const std::string path = here.dli_fname;
    library = dlopen((path.substr(0, path.rfind('/') + 1) + kName).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (!library) library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library ? dlsym(library, "zerotorch_cuda_kernels") : nullptr;
  if (!symbol) return nullptr;
  const DeviceKernels* const kernels = reinterpret_cast<const DeviceKernels* (*)()>(symbol)();
  if (kernels->version == DeviceKernels::kVersion) return kernels;
  base::log_warning("{} is of another version of zerotorch, and is not used", kName);
  return nullptr;
}

struct Registry {
  std::mutex mutex;
  std::map<c10::DeviceType, const DeviceKernels*> by_type;
};

Registry& registry() {
  static auto& made = *new Registry;
  return made;
}

}  // namespace

const DeviceKernels* device_kernels(const c10::Device& device) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  const auto [found, is_new] = known.by_type.try_emplace(device.type(), nullptr);
  if (is_new && device.is_cuda()) found->second = load_cuda_kernels();
  return found->second;
}

void register_device_kernels(const c10::Device& device, const DeviceKernels* kernels) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  known.by_type[device.type()] = kernels;
}

}  // namespace zero::optim
