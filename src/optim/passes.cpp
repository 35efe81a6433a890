#include "optim/passes.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "optim/staged_update.h"

namespace zero::optim {
namespace {

/// Calls `run(begin, numel)` for parts of [0, numel), in the threads that operators of libtorch use. Parts begin at
/// whole blocks, so that every element and every block's sum is made as in one part.
template <class Run>
void in_parts(std::int64_t numel, Run run) {
  constexpr std::int64_t kBlock = kSumBlockNumel, kFewestBlocks = 64;
  static_assert(kBlock % kQuantizedBlockNumel == 0);
  at::parallel_for(0, (numel + kBlock - 1) / kBlock, kFewestBlocks, [&](std::int64_t begin, std::int64_t end) {
    run(begin * kBlock, std::min(numel, end * kBlock) - begin * kBlock);
  });
}

template <class T>
T* offset(T* memory, std::int64_t numel) {
  return memory ? memory + numel : nullptr;
}
void* offset(void* memory, std::int64_t nbytes) { return memory ? static_cast<char*>(memory) + nbytes : nullptr; }
const void* offset(const void* memory, std::int64_t nbytes) {
  return memory ? static_cast<const char*>(memory) + nbytes : nullptr;
}

UpdateArgs part_of(const Rule& rule, const UpdateArgs& all, std::int64_t begin, std::int64_t numel) {
  UpdateArgs part = all;
  part.master = offset(all.master, begin);
  part.remainder = offset(all.remainder, begin);
  for (std::size_t s = 0; s < rule.states.size(); ++s)
    part.states[s] = offset(all.states[s], nbytes_of(rule.states[s].format, begin));
  part.gradient = offset(all.gradient, begin);
  part.direction = offset(all.direction, begin);
  part.low = offset(all.low, begin * static_cast<std::int64_t>(element_nbytes(all.low_dtype)));
  part.numel = numel;
  part.narrow.master = offset(all.narrow.master, nbytes_of(all.narrow.master_format, begin));
  part.narrow.gradient = offset(all.narrow.gradient, nbytes_of(all.narrow.gradient_format, begin));
  part.narrow.first_element += static_cast<std::uint64_t>(begin);
  return part;
}

class HostPasses final : public Passes {
 public:
  bool in_host_memory() const override { return true; }
  bool splits_masters() const override { return true; }
  bool updates(const Rule&) const override { return true; }
  bool rounds_stochastically() const override { return true; }

  void reduce(const ReduceArgs& args) const override {
    ZERO_CHECK(args.dtype == DType::kFloat32 || element_nbytes(args.dtype) == 2, "slices of {}",
               dtype_name(args.dtype));
    if (args.numel < kFewestNumel || at::get_num_threads() == 1) return kernels().reduce(args);
    in_parts(args.numel, [&](std::int64_t begin, std::int64_t numel) {
      std::vector<const void*> slices;
      for (const void* const slice : args.slices)
        slices.push_back(offset(slice, begin * static_cast<std::int64_t>(element_nbytes(args.dtype))));
      ReduceArgs part = args;
      part.accumulator =
          offset(args.accumulator, begin * static_cast<std::int64_t>(element_nbytes(args.accumulator_dtype)));
      part.slices = slices;
      part.numel = numel;
      part.block_sumsq = offset(args.block_sumsq, begin / kSumBlockNumel);
      kernels().reduce(part);
    });
  }
  void block_sumsq(const void* values, DType dtype, std::int64_t numel, double* out) const override {
    in_parts(numel, [&](std::int64_t begin, std::int64_t count) {
      sumsq_of_part(offset(values, begin * static_cast<std::int64_t>(element_nbytes(dtype))), dtype, count,
                    out + begin / kSumBlockNumel);
    });
  }
  void update(const Rule& rule, const UpdateArgs& args, const Hyper& hyper) const override {
    in_parts(args.numel, [&](std::int64_t begin, std::int64_t numel) {
      update_part(rule, part_of(rule, args, begin, numel), hyper);
    });
  }
  void round(const float* master, void* low, DType param_dtype, std::int64_t numel) const override {
    in_parts(numel, [&](std::int64_t begin, std::int64_t count) {
      round_part(master + begin, offset(low, begin * static_cast<std::int64_t>(element_nbytes(param_dtype))),
                 param_dtype, count);
    });
  }
  void split(const float* master, std::uint16_t* low, std::uint16_t* remainder, std::int64_t numel) const override {
    kernels().split_master(master, low, remainder, numel);
  }
  void join(const std::uint16_t* low, const std::uint16_t* remainder, float* master,
            std::int64_t numel) const override {
    kernels().join_master(low, remainder, master, numel);
  }
  void copy(void* out, const void* in, std::size_t nbytes) const override { kernels().copy(out, in, nbytes); }

 private:
  static constexpr std::int64_t kFewestNumel = 65'536;  ///< of a reduction that is made in parts

  static void sumsq_of_part(const void* values, DType dtype, std::int64_t numel, double* out) {
    if (dtype == DType::kFloat32) return kernels().block_sumsq(static_cast<const float*>(values), numel, out);
    const StateFormat format = format_of(dtype);
    std::array<float, kSumBlockNumel> block;
    for (std::int64_t begin = 0; begin < numel; begin += kSumBlockNumel) {
      kernels().widen_state(format, static_cast<const char*>(values) + nbytes_of(format, begin), block.data(),
                            kSumBlockNumel);
      kernels().block_sumsq(block.data(), kSumBlockNumel, out + begin / kSumBlockNumel);
    }
  }
  static void update_part(const Rule& rule, const UpdateArgs& args, const Hyper& hyper) {
    const bool fp32_low = args.low && args.low_dtype == DType::kFloat32;
    UpdateArgs alone = args;
    if (fp32_low) alone.low = nullptr;
    is_fp32(rule, args) ? rule.update(alone, hyper) : update_staged(rule, alone, hyper);
    if (fp32_low) round_part(args.master, args.low, args.low_dtype, args.numel);
  }
  static void round_part(const float* master, void* low, DType param_dtype, std::int64_t numel) {
    if (param_dtype == DType::kBFloat16) return kernels().round_master(master, static_cast<std::uint16_t*>(low), numel);
    if (param_dtype == DType::kFloat16) return kernels().round_to_half(master, low, numel);
    ZERO_CHECK(param_dtype == DType::kFloat32, "{} parameters", dtype_name(param_dtype));
    if (numel > 0) std::memcpy(low, master, static_cast<std::size_t>(numel) * sizeof(float));
  }
};

}  // namespace

const Passes& passes_for(c10::Device device) {
  static const auto& host = *new HostPasses;  // engines may go after static objects
  if (device.is_cpu()) return host;
  const Passes* const fused = fused_passes_for(device);
  return fused ? *fused : aten_passes_for(device);
}

}  // namespace zero::optim
