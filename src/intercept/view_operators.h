#pragma once
#include <string_view>

namespace zero::intercept {

/// Operators that return a view and read no data, whatever their arguments. By name and on purpose
/// short: `to`, `reshape`, `contiguous` and `flatten` may copy and are not among them.
bool is_view_operator(std::string_view name);

}  // namespace zero::intercept
