#pragma once
// JSON that anybody may have written.
#include <nlohmann/json.hpp>
#include <string_view>

namespace zero::checkpoint {

/// Printing and comparing JSON recurse: what is nested deeper is not taken, or a file of a few kilobytes
/// could end the process.
inline constexpr int kMaxJsonDepth = 256;

/// Discarded (see is_discarded()) where it is not valid or nested too deep. Never throws for what it reads.
nlohmann::json parse_json(std::string_view text);

}  // namespace zero::checkpoint
