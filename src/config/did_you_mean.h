#pragma once
// The nearest valid name to a misspelt one.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zero::config {

/// Edits (insert, delete, replace, swap of neighbours) that turn one into the other; case does not count.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the fewest edits, or empty when none is near (a third of the name may change, or two
/// letters, or one of a name of up to three). The first wins a tie.
std::string_view nearest(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace zero::config
