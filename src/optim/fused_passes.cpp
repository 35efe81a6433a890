// The passes as a device's own kernels, with the bits of the host's.
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "optim/device_kernels.h"
#include "optim/passes.h"
#include "zero/errors.h"

namespace zero::optim {
namespace {

class FusedPasses final : public Passes {
 public:
  FusedPasses(c10::Device device, const DeviceKernels& kernels)
      : device_(device), kernels_(kernels), aten_(aten_passes_for(device)) {}

  bool in_host_memory() const override { return false; }
  bool splits_masters() const override { return true; }
  bool updates(const Rule& rule) const override { return rule.update_by != nullptr; }
  bool rounds_stochastically() const override { return true; }

  void reduce(const ReduceArgs& args) const override {
    launch([&](void* stream) { kernels_.reduce(args, stream); });
  }
  void block_sumsq(const void* values, DType dtype, std::int64_t numel, double* out) const override {
    launch([&](void* stream) { kernels_.block_sumsq(values, dtype, numel, out, stream); });
  }
  void update(const Rule& rule, const UpdateArgs& args, const Hyper& hyper) const override {
    ZERO_CHECK(updates(rule), "{} has no update on {}", rule.name, device_.str());
    std::array<StateFormat, kMostStates> formats{};
    for (std::size_t s = 0; s < rule.states.size(); ++s) formats[s] = rule.states[s].format;
    launch([&](void* stream) { rule.update_by(kernels_, args, formats.data(), hyper, stream); });
  }
  void round(const float* master, void* low, DType param_dtype, std::int64_t numel) const override {
    launch([&](void* stream) { kernels_.round(master, low, param_dtype, numel, stream); });
  }
  void split(const float* master, std::uint16_t* low, std::uint16_t* remainder, std::int64_t numel) const override {
    launch([&](void* stream) { kernels_.split(master, low, remainder, numel, stream); });
  }
  void join(const std::uint16_t* low, const std::uint16_t* remainder, float* master,
            std::int64_t numel) const override {
    launch([&](void* stream) { kernels_.join(low, remainder, master, numel, stream); });
  }
  void copy(void* out, const void* in, std::size_t nbytes) const override { aten_.copy(out, in, nbytes); }

 private:
  template <class Launch>
  void launch(Launch start) const {
    const c10::DeviceGuard here(device_);
    const c10::impl::VirtualGuardImpl backend(device_.type());
    start(backend.getStreamNativeHandle(backend.getStream(device_)));
    const char* const error = kernels_.error();
    if (error) throw IoError(fmt::format("a kernel of zerotorch on {}: {}", device_.str(), error));
  }

  const c10::Device device_;
  const DeviceKernels& kernels_;
  const Passes& aten_;
};

}  // namespace

const Passes* fused_passes_for(c10::Device device) {
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  // Engines may go after static objects.
  static auto& mutex = *new std::mutex;
  struct Made {
    c10::Device device;
    const DeviceKernels* kernels;
    std::unique_ptr<FusedPasses> passes;
  };
  static auto& made = *new std::vector<Made>;
  const DeviceKernels* const kernels = device_kernels(device);
  if (!kernels) return nullptr;
  const std::lock_guard lock(mutex);
  for (const Made& one : made) {
    if (one.device == device && one.kernels == kernels) return one.passes.get();
  }
  Made& one = made.emplace_back(Made{device, kernels, nullptr});
  const c10::DeviceGuard here(device);
  if (const char* const problem = kernels->problem ? kernels->problem() : nullptr) {
    base::log_warning("zerotorch's own kernels do not run on {}: {}", device.str(), problem);
  } else {
    one.passes = std::make_unique<FusedPasses>(device, *kernels);
  }
  return one.passes.get();
}

}  // namespace zero::optim
