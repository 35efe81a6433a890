#pragma once
// How many floating-point operations an operator takes, from the sizes of its arguments: two for every product that is
// added, as in torch.utils.flop_counter. Matrix products, convolutions and attention count; all else counts nothing.
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace zero::intercept {

/// Of an operator ("aten::mm") with these arguments; nothing for one that does not count. Thread-safe.
std::optional<std::int64_t> flops_of(std::string_view op, c10::ArrayRef<const c10::IValue> arguments);

}  // namespace zero::intercept
