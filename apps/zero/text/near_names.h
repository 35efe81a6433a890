#pragma once
// Names that were meant by others.
#include <string>
#include <vector>

namespace zero::app {

/// "; did you mean 'train'?", by the fewest letters that differ or by what other programs call it; nothing where no
/// name is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names);

}  // namespace zero::app
