#include "rank_device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "zero/errors.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;

/// Beside the library that has libtorch's operators.
void load_cuda() {
  Dl_info here{};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): of a function its address, for the loader
  if (::dladdr(reinterpret_cast<void*>(&c10::DeviceTypeName), &here) == 0) return;
  const fs::path library = fs::path(here.dli_fname).parent_path() / "libtorch_cuda.so";
  if (!fs::exists(library)) {
    throw ConfigError(fmt::format(
        "--device cuda: {} has no libtorch_cuda.so: this libtorch is for CPUs. Build with one for CUDA (pip's "
        "torch, or TORCH_DIR=...), or leave --device away",
        library.parent_path().string()));
  }
  // It stays loaded, and registers itself.
  if (::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    throw ConfigError(fmt::format("--device cuda: {}", ::dlerror()));
}

at::Device parse(const std::string& name) {
  try {
    const at::Device device(name);
    if (c10::impl::hasDeviceGuardImpl(device.type())) return device;
  } catch (const c10::Error&) {  // no name of a device
  }
  throw ConfigError(fmt::format("--device: got '{}', want cpu, cuda or another backend that libtorch has here", name));
}

}  // namespace

int visible_gpus() {
  std::error_code error;
  const fs::directory_iterator all("/proc/driver/nvidia/gpus", error);
  const int count = error ? 0 : static_cast<int>(std::distance(begin(all), end(all)));
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return count;
  const std::string_view named(text);
  if (named.empty() || named.starts_with("-")) return 0;
  return std::min(count, static_cast<int>(std::ranges::count(named, ',')) + 1);
}

at::Device device_of_rank(const std::string& name, const Group& group) {
  if (name == "cpu") return at::kCPU;
  if (name == "cuda" || name.starts_with("cuda:")) load_cuda();
  const at::Device device = parse(name);
  const auto count = static_cast<int>(c10::impl::VirtualGuardImpl(device.type()).deviceCount());
  if (count == 0 || (device.has_index() && device.index() >= count)) {
    throw ConfigError(fmt::format(
        "--device {}: libtorch finds {} such device{} here{}", name, count, count == 1 ? "" : "s",
        device.is_cuda() ? "; nvidia-smi says whether there is a GPU and a driver, CUDA_VISIBLE_DEVICES hides some"
                         : ""));
  }
  if (device.has_index()) return device;
  return {device.type(), static_cast<c10::DeviceIndex>(group.local_rank() % count)};
}

}  // namespace zero::app
