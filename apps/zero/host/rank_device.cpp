#include "host/rank_device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/text_format.h"
#include "zero/errors.h"
#include "zero/launch.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;

/// Beside the library that knows devices.
fs::path cuda_library() {
  Dl_info here{};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): of a function its address, for the loader
  if (::dladdr(reinterpret_cast<void*>(&c10::DeviceTypeName), &here) == 0) return {};
  return fs::path(here.dli_fname).parent_path() / "libtorch_cuda.so";
}

void load_cuda() {
  const fs::path library = cuda_library();
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

/// Not every libtorch's has it.
template <class Allocator>
std::int64_t free_nbytes(Allocator& allocator, c10::DeviceIndex index) {
  if constexpr (requires { allocator.getMemoryInfo(index); }) {
    try {
      return static_cast<std::int64_t>(allocator.getMemoryInfo(index).first);
    } catch (const c10::Error&) {  // nor every device's
    }
  }
  return 0;
}

int number_of(at::Device device) { return static_cast<int>(c10::impl::VirtualGuardImpl(device.type()).deviceCount()); }

/// Of CUDA_VISIBLE_DEVICES: numbers or names, up to the first that is neither.
int count_named(std::string_view text) {
  int count = 0;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view one = text.substr(0, comma);
    const bool is_number = !one.empty() && std::ranges::all_of(one, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number && !one.starts_with("GPU-") && !one.starts_with("MIG-")) return count;
    ++count;
    if (comma == std::string_view::npos) return count;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

int visible_gpus() {
  std::error_code error;
  const fs::directory_iterator all("/proc/driver/nvidia/gpus", error);
  int count = error ? 0 : static_cast<int>(std::distance(begin(all), end(all)));
  if (count == 0 && fs::exists("/dev/dxg", error)) count = 1;  // Windows' own, as Linux on it has them
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  return text == nullptr ? count : std::min(count, count_named(text));
}

bool libtorch_has_cuda() {
  std::error_code error;
  return fs::exists(cuda_library(), error);
}

int default_ranks(const std::string& device, int on_cpu) {
  if (device.starts_with("cuda:")) return 1;
  return device == "cuda" ? std::max(1, visible_gpus()) : on_cpu;
}

void finish_device(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

at::Device parse_device(const std::string& name) {
  try {
    const at::Device device(name);
    if (device.is_cpu()) return at::kCPU;
    if (device.is_cuda()) return device;  // whose library is loaded when it is needed
    if (!device.is_meta() && c10::impl::hasDeviceGuardImpl(device.type())) return device;
  } catch (const c10::Error&) {  // no name of a device
  }
  throw ConfigError(fmt::format("--device: got '{}', want cpu, cuda or another backend that libtorch has here", name));
}

at::Device check_device(const std::string& name) {
  const at::Device device = parse_device(name);
  if (device.is_cuda()) load_cuda();
  const int count = device.is_cpu() ? 1 : number_of(device);
  if (count == 0 || (device.has_index() && device.index() >= count)) {
    throw ConfigError(fmt::format(
        "--device {}: libtorch finds {} such device{} here{}", name, count, count == 1 ? "" : "s",
        device.is_cuda() ? "; nvidia-smi says whether there is a GPU and a driver, CUDA_VISIBLE_DEVICES hides some"
                         : ""));
  }
  return device;
}

std::vector<std::int64_t> free_memory(const std::string& name) {
  const at::Device device = check_device(name);
  if (device.is_cpu()) return {};
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  std::vector<std::int64_t> free;
  const int first = device.has_index() ? device.index() : 0;
  const int end = device.has_index() ? first + 1 : number_of(device);
  for (int i = first; i < end; ++i)
    free.push_back(allocator ? free_nbytes(*allocator, static_cast<c10::DeviceIndex>(i)) : 0);
  return free;
}

std::vector<std::int64_t> ask_free_memory(const std::string& name) {
  const std::string command =
      fmt::format("{} doctor --free-memory-of {}", for_shell(own_command()[0]), for_shell(name));
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::string text;
  for (int c = 0; pipe && (c = std::fgetc(pipe.get())) != EOF;) text += static_cast<char>(c);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_array() ? json.get<std::vector<std::int64_t>>() : std::vector<std::int64_t>();
}

at::Device device_of_rank(const std::string& name, const Group& group) {
  try {
    const at::Device device = check_device(name);
    if (device.is_cpu() || device.has_index()) return device;
    return {device.type(), static_cast<c10::DeviceIndex>(group.local_rank() % number_of(device))};
  } catch (const ConfigError& error) {
    if (group.rank() == 0) throw;
    throw IoError(error.what());
  }
}

}  // namespace zero::app
