#pragma once
// From a JSON value to a checked Value.
#include <nlohmann/json.hpp>

#include <string>

#include "config/schema.h"

namespace zero::config {

struct Checked {
  Value value;
  /// Empty when the value fits; else "got ..., want ...; remedy".
  std::string problem;
  bool ok() const { return problem.empty(); }
};

/// Checks kind, range and choice. Sections are not values.
Checked check_value(const Key& key, const nlohmann::json& json);

/// True when `json` is one of key.harmless.
bool is_harmless(const Key& key, const nlohmann::json& json);

/// As in the file, cut to a readable length.
std::string shown(const nlohmann::json& json);

/// "true or false", "a whole number, at least 1", ...
std::string wanted(const Key& key);

}  // namespace zero::config
