#include "intercept/second_run.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <xxhash.h>

#include "zero/errors.h"

namespace zero::intercept {

std::uint64_t hash_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != at::kStrided) return 0;
  const at::NoGradGuard no_grad;
  const at::Tensor values = tensor.detach().contiguous();
  std::uint64_t hash = XXH3_64bits(values.const_data_ptr(), values.nbytes());
  for (const std::int64_t size : values.sizes()) hash = XXH3_64bits_withSeed(&size, sizeof size, hash);
  return hash + static_cast<std::uint64_t>(values.scalar_type());
}

std::int64_t version_of(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_inference() ? -1 : static_cast<std::int64_t>(tensor._version());
}

void is_another_run(const std::string& what) {
  throw ModelError(
      fmt::format("zero::recompute: in backward the function {}; it must compute what it has computed in forward: no "
                  "captured value, training flag or global state may change in between",
                  what));
}

}  // namespace zero::intercept
