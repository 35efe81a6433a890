// The passes as ATen operators, for devices that have no kernels of ours.
#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <memory>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "optim/passes.h"
#include "optim/staged_update.h"

namespace zero::optim {
namespace {

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat32:
      return at::kFloat;
    default:
      ZERO_CHECK(false, "{} in a pass", dtype_name(dtype));
  }
}

at::ScalarType scalar_type_of(StateFormat format) {
  ZERO_CHECK(!is_quantized(format), "8-bit states in a pass without kernels");
  return scalar_type_of(dtype_of(format));
}

at::Tensor view_of(const void* data, at::ScalarType type, std::int64_t numel, c10::Device device) {
  // Named, the device is not looked up from the address, which a backend need not be able to do.
  return at::for_blob(const_cast<void*>(data), {numel})
      .options(at::TensorOptions().dtype(type).device(device))
      .target_device(device)
      .make_tensor();
}

class AtenPasses final : public Passes {
 public:
  explicit AtenPasses(c10::Device device) : device_(device) {}

  bool in_host_memory() const override { return false; }
  bool splits_masters() const override { return false; }
  bool updates(const Rule& rule) const override { return rule.update_on_device != nullptr; }
  bool rounds_stochastically() const override { return false; }

  void reduce(const ReduceArgs& args) const override {
    const at::NoGradGuard no_grad;
    const at::Tensor accumulator = view(args.accumulator, scalar_type_of(args.accumulator_dtype), args.numel);
    if (args.first) accumulator.zero_();
    if (args.slices.empty()) accumulator.add_(0.0);
    for (const void* slice : args.slices) {
      const at::Tensor values = view(slice, scalar_type_of(args.dtype), args.numel);
      accumulator.copy_(accumulator.to(at::kFloat).add_(values));
    }
    if (args.block_sumsq) block_sumsq(args.accumulator, args.accumulator_dtype, args.numel, args.block_sumsq);
  }

  void block_sumsq(const void* values, DType dtype, std::int64_t numel, double* out) const override {
    const at::NoGradGuard no_grad;
    if (numel == 0) return;
    const at::Tensor blocks = view(values, scalar_type_of(dtype), numel).view({-1, kSumBlockNumel});
    view(out, at::kDouble, numel / kSumBlockNumel).copy_(blocks.to(at::kDouble).square().sum(1));
  }

  void update(const Rule& rule, const UpdateArgs& args, const Hyper& hyper) const override {
    ZERO_CHECK(updates(rule), "{} has no update on {}", rule.name, device_.str());
    if (!is_fp32(rule, args)) return update_widened(rule, args, hyper);
    rule.update_on_device(args, hyper, device_);
    if (args.low) round(args.master, args.low, args.low_dtype, args.numel);
  }

  void round(const float* master, void* low, DType param_dtype, std::int64_t numel) const override {
    const at::NoGradGuard no_grad;
    view(low, scalar_type_of(param_dtype), numel).copy_(view(master, at::kFloat, numel));
  }

  void split(const float*, std::uint16_t*, std::uint16_t*, std::int64_t) const override { refuse(); }
  void join(const std::uint16_t*, const std::uint16_t*, float*, std::int64_t) const override { refuse(); }

  void copy(void* out, const void* in, std::size_t nbytes) const override {
    const at::NoGradGuard no_grad;
    const auto numel = static_cast<std::int64_t>(nbytes);
    view(out, at::kByte, numel).copy_(view(in, at::kByte, numel));
  }

 private:
  at::Tensor view(const void* data, at::ScalarType type, std::int64_t numel) const {
    return view_of(data, type, numel, device_);
  }
  void update_widened(const Rule& rule, const UpdateArgs& args, const Hyper& hyper) const {
    const at::NoGradGuard no_grad;
    const auto& narrow = args.narrow;
    ZERO_CHECK(!narrow.stochastic, "stochastic rounding on {}", device_.str());
    UpdateArgs wide = args;
    std::vector<std::pair<at::Tensor, at::Tensor>> kept_and_wide;
    const auto widened = [&](const void* data, StateFormat format) {
      const at::Tensor kept = view(data, scalar_type_of(format), args.numel);
      return kept_and_wide.emplace_back(kept, kept.to(at::kFloat)).second.mutable_data_ptr<float>();
    };
    if (narrow.gradient) {
      wide.gradient = widened(narrow.gradient, narrow.gradient_format);
      kept_and_wide.back().first = at::Tensor();
    }
    if (narrow.master) wide.master = widened(narrow.master, narrow.master_format);
    for (std::size_t s = 0; s < rule.states.size(); ++s)
      wide.states[s] = widened(args.states[s], rule.states[s].format);
    rule.update_on_device(wide, hyper, device_);
    for (const auto& [kept, its_wide] : kept_and_wide) {
      if (kept.defined()) kept.copy_(its_wide);
    }
    if (args.low) round(wide.master, args.low, args.low_dtype, args.numel);
  }
  [[noreturn]] void refuse() const { throw InternalError(fmt::format("masters are not split on {}", device_.str())); }

  c10::Device device_;
};

}  // namespace

const Passes& aten_passes_for(c10::Device device) {
  // Engines may go after static objects.
  static auto& mutex = *new std::mutex;
  static auto& made = *new std::vector<std::pair<c10::Device, std::unique_ptr<AtenPasses>>>;
  const std::lock_guard lock(mutex);
  for (const auto& [its_device, passes] : made) {
    if (its_device == device) return *passes;
  }
  return *made.emplace_back(device, std::make_unique<AtenPasses>(device)).second;
}

}  // namespace zero::optim
