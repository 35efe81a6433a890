#pragma once
// For rules without kernels of their own: their update sees fp32 weights, however the masters are kept.
#include <algorithm>

#include "base/small_floats.h"
#include "optim/kernels.h"

namespace zero::optim {

/// Calls `update(weights, begin, numel)` for consecutive blocks of `args`: `weights` are fp32 [numel], the elements
/// from `begin` on, to change in place; gradient and states are the caller's to offset. Host memory.
template <class Update>
void update_in_blocks(const UpdateArgs& args, Update update) {
  constexpr std::int64_t kBlock = 2048;
  alignas(64) float joined[kBlock];
  auto* const low = static_cast<std::uint16_t*>(args.low);
  for (std::int64_t begin = 0; begin < args.numel; begin += kBlock) {
    const std::int64_t numel = std::min(kBlock, args.numel - begin);
    float* const weights = args.remainder ? joined : args.master + begin;
    if (args.remainder) kernels().join_master(low + begin, args.remainder + begin, joined, numel);
    update(weights, begin, numel);
    if (args.remainder) {
      kernels().split_master(joined, low + begin, args.remainder + begin, numel);
    } else if (low && args.low_dtype == DType::kFloat16) {
      auto* const out = reinterpret_cast<base::Float16*>(low + begin);
      for (std::int64_t i = 0; i < numel; ++i) base::narrow(weights[i], out[i]);
    } else if (low) {
      kernels().round_master(weights, low + begin, numel);
    }
  }
}

}  // namespace zero::optim
