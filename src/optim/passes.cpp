#include "optim/passes.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "optim/staged_update.h"

namespace zero::optim {
namespace {

class HostPasses final : public Passes {
 public:
  bool in_host_memory() const override { return true; }
  bool splits_masters() const override { return true; }

  void reduce(const ReduceArgs& args) const override {
    ZERO_CHECK(args.dtype == DType::kFloat32 || element_nbytes(args.dtype) == 2, "slices of {}",
               dtype_name(args.dtype));
    kernels().reduce(args);
  }
  void block_sumsq(const void* values, DType dtype, std::int64_t numel, double* out) const override {
    if (dtype == DType::kFloat32) return kernels().block_sumsq(static_cast<const float*>(values), numel, out);
    const StateFormat format = format_of(dtype);
    std::array<float, kSumBlockNumel> block;
    for (std::int64_t begin = 0; begin < numel; begin += kSumBlockNumel) {
      kernels().widen_state(format, static_cast<const char*>(values) + nbytes_of(format, begin), block.data(),
                            kSumBlockNumel);
      kernels().block_sumsq(block.data(), kSumBlockNumel, out + begin / kSumBlockNumel);
    }
  }
  void update(const Rule& rule, const UpdateArgs& args, const Hyper& hyper) const override {
    const bool fp32_low = args.low && args.low_dtype == DType::kFloat32;
    UpdateArgs alone = args;
    if (fp32_low) alone.low = nullptr;
    is_fp32(rule, args) ? rule.update(alone, hyper) : update_staged(rule, alone, hyper);
    if (fp32_low) round(args.master, args.low, args.low_dtype, args.numel);
  }
  void round(const float* master, void* low, DType param_dtype, std::int64_t numel) const override {
    if (param_dtype == DType::kBFloat16) return kernels().round_master(master, static_cast<std::uint16_t*>(low), numel);
    if (param_dtype == DType::kFloat16) return kernels().round_to_half(master, low, numel);
    ZERO_CHECK(param_dtype == DType::kFloat32, "{} parameters", dtype_name(param_dtype));
    if (numel > 0) std::memcpy(low, master, static_cast<std::size_t>(numel) * sizeof(float));
  }
  void split(const float* master, std::uint16_t* low, std::uint16_t* remainder, std::int64_t numel) const override {
    kernels().split_master(master, low, remainder, numel);
  }
  void join(const std::uint16_t* low, const std::uint16_t* remainder, float* master,
            std::int64_t numel) const override {
    kernels().join_master(low, remainder, master, numel);
  }
  void copy(void* out, const void* in, std::size_t nbytes) const override { kernels().copy(out, in, nbytes); }
};

}  // namespace

const Passes& passes_for(c10::Device device) {
  static const auto& host = *new HostPasses;  // engines may go after static objects
  return device.is_cpu() ? host : aten_passes_for(device);
}

}  // namespace zero::optim
