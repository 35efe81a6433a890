#pragma once
// Tensors of values that are no round numbers, the same each time.
#include <ATen/Functions.h>

namespace zero::testing {

/// Between -1 and 1, another for each element and phase.
inline at::Tensor filled(at::IntArrayRef sizes, double phase) {
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) numel *= size;
  return at::arange(numel).to(at::kFloat).mul(0.7).add(phase).sin().view(sizes);
}

}  // namespace zero::testing
