#pragma once
// How far two names are from each other; zero/nearest_name.h has what is nearest.
#include <cstddef>
#include <string_view>

namespace zero::base {

/// Edits (insert, delete, replace, swap of neighbours) that turn one into the other; case does not count.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace zero::base
