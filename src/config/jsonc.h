#pragma once
// JSON with comments and trailing commas, and the line of every key. The values themselves are parsed by
// nlohmann-json; this only walks the text once before it.
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <string_view>

#include "config/problems.h"

namespace zero::config {

/// The longest text of a configuration.
constexpr std::size_t kMaxTextNbytes = std::size_t{16} << 20;

struct Document {
  nlohmann::json root;
  /// Path ("zero_optimization.stage") -> line, counted from 1. Elements of lists are "key[0]".
  std::map<std::string, int> lines;

  /// Line of the path, or of its nearest parent; 0 when there is none.
  int line_of(const std::string& path) const;
};

/// Parses `text`. Syntax errors and keys given twice go to `problems`; the document is then empty or partial.
Document parse_jsonc(std::string_view text, Problems& problems);

}  // namespace zero::config
