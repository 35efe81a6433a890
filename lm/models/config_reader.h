#pragma once
// Objects of a config.json, read by key.
#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "zero/errors.h"

namespace zero::models {

/// An object whose members are read by name; what nobody asked for is an error.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw ConfigError(fmt::format("{}: want a JSON object", where_));
  }

  bool has(const char* key) {
    asked_.insert(key);
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }
  /// There, and null.
  bool is_null(const char* key) {
    asked_.insert(key);
    const auto found = object_.find(key);
    return found != object_.end() && found->is_null();
  }
  const nlohmann::json& at(const char* key) { return object_.at(key); }

  template <class T>
  T get(const char* key, T otherwise) {
    if (!has(key)) return otherwise;
    const nlohmann::json& value = object_.at(key);
    const bool fits = std::is_same_v<T, bool>          ? value.is_boolean()
                      : std::is_integral_v<T>          ? value.is_number_integer()
                      : std::is_floating_point_v<T>    ? value.is_number()
                      : std::is_same_v<T, std::string> ? value.is_string()
                                                       : value.is_array();
    if (!fits) refuse(key, "has another type");
    try {
      return value.get<T>();
    } catch (const nlohmann::json::exception&) {
      refuse(key, "has another type");
    }
  }
  template <class T>
  std::optional<T> find(const char* key) {
    return has(key) ? std::optional(get<T>(key, T())) : std::nullopt;
  }
  /// A key that is built for one value only.
  void require(const char* key, const nlohmann::json& only) {
    if (has(key) && object_.at(key) != only) refuse(key, fmt::format("only {} is built", only.dump()));
  }
  void pass_over(std::string_view key) { asked_.insert(std::string(key)); }

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw ConfigError(fmt::format("{}: '{}' is {}: {}", where_, key, object_.at(key).dump(), why));
  }
  void check_all_known() const {
    for (const auto& [key, value] : object_.items()) {
      if (asked_.contains(key) || key.starts_with('_')) continue;  // _name_or_path and its like: where it came from
      throw ConfigError(
          fmt::format("{}: '{}' is not known: if it changes what the model computes, the model is not one "
                      "that is built here; if not, remove it",
                      where_, key));
    }
  }
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  const std::string where_;
  std::set<std::string, std::less<>> asked_;
};

/// Throws ConfigError of a CausalLMConfig where `holds` is false.
inline void require_config(bool holds, const std::string& what) {
  if (!holds) throw ConfigError(fmt::format("CausalLMConfig: {}", what));
}

}  // namespace zero::models
