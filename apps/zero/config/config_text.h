#pragma once
// A configuration and its keys as people read them.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero/config.h"

namespace zero::app {

struct CheckedConfig {
  std::string file;
  Config given;     ///< as the file has it
  Config resolved;  ///< with its batch sizes
  int ranks = 1;
  std::optional<std::int64_t> steps;  ///< of the run; not given: as the schedule says
};

/// Everything that was decided, by subject.
std::string config_text(const CheckedConfig& checked);

/// One line: path, status, kind, default, note.
std::string key_text(const KeyInfo& key);
/// The same in lines of a terminal's width.
std::string wrapped_key_text(const KeyInfo& key);
/// The same of all of them, as a JSON array.
std::string keys_json(const std::vector<KeyInfo>& keys);

}  // namespace zero::app
