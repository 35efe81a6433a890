#pragma once
// The name that a misspelt one may mean, for messages.
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace zero {

/// What others call something, and its name here.
using OtherName = std::pair<std::string_view, std::string_view>;

/// The candidate that a misspelt name is nearest to, by itself or by its other name; empty: none is near. A third of
/// the name may differ, or two letters, or one of a name of up to three; or it is the beginning of one candidate. The
/// first wins a tie. Local.
std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& candidates,
                              std::span<const OtherName> other_names = {});

}  // namespace zero
