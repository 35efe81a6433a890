#pragma once
// What a load found to match and what not.
#include <string>
#include <vector>

#include "zero/checkpoint.h"

namespace zero::checkpoint {

/// "a, b, c and 9 more".
std::string some_of(const std::vector<std::string>& names);
/// "name: [2, 3] in the model, [3] in `where`".
std::string shape_mismatch(const std::string& name, const std::vector<std::int64_t>& model,
                           const std::vector<std::int64_t>& found, const std::string& where);
/// Throws CheckpointError with all that does not match; `what` begins the sentence, `remedy` ends it.
void require_all_match(const LoadReport& report, const std::string& what, const std::string& remedy);

}  // namespace zero::checkpoint
