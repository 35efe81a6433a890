#pragma once
// What tells whether the second run of a part is the first one again.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace zero::intercept {

/// Of values, shape and dtype; 0 where they are not looked at (undefined, not dense, not on the CPU).
std::uint64_t hash_of(const at::Tensor& tensor);

/// How often it was changed in place; -1 for what has no version.
std::int64_t version_of(const at::Tensor& tensor);

/// Throws ModelError: in backward the function `what`.
[[noreturn]] void is_another_run(const std::string& what);

}  // namespace zero::intercept
