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

/// The way back: what a file would say. A choice that is not in the list is written as its number.
nlohmann::ordered_json json_of(const Key& key, const Value& value);

/// A choice, as spelt in the key's list.
std::string chosen(const Key& key, const Value& value);

/// True when `json` is one of key.harmless.
bool is_harmless(const Key& key, const nlohmann::json& json);

/// As in the file, cut to a readable length.
std::string shown(const nlohmann::json& json);

/// "true or false", "a whole number, at least 1", ...
std::string wanted(const Key& key);

}  // namespace zero::config
