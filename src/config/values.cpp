#include "config/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/edit_distance.h"
#include "zero/nearest_name.h"

namespace zero::config {
namespace {

using nlohmann::json;

constexpr double kTwoTo63 = 9223372036854775808.0;

bool same_text(std::string_view a, std::string_view b) { return base::edit_distance(a, b) == 0; }

std::string range_of(const Key& key) {
  const bool bounded = std::isfinite(key.maximum);
  if (!bounded) return fmt::format("{} {:.15g}", key.above ? "above" : "at least", key.minimum);
  if (key.above || key.below) {
    return fmt::format("{} {:.15g} and {} {:.15g}", key.above ? "above" : "at least", key.minimum,
                       key.below ? "below" : "at most", key.maximum);
  }
  return fmt::format("{:.15g} to {:.15g}", key.minimum, key.maximum);
}

bool in_range(const Key& key, double x) {
  return std::isfinite(x) && (key.above ? x > key.minimum : x >= key.minimum) &&
         (key.below ? x < key.maximum : x <= key.maximum);
}

std::string mismatch(const Key& key, const json& got) {
  std::string text = fmt::format("got {}, want {}", shown(got), wanted(key));
  const bool quoted = got.is_string() && key.kind != Kind::kSection && key.kind != Kind::kStrings &&
                      key.kind != Kind::kPair && json::accept(got.get<std::string>());
  if (quoted) text += "; remove the quotes";
  return text;
}

std::optional<std::int64_t> whole_number(const json& got) {
  if (got.is_number_unsigned()) {
    const auto number = got.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (got.is_number_integer()) return got.get<std::int64_t>();
  if (!got.is_number_float()) return std::nullopt;
  const double number = got.get<double>();
  if (std::floor(number) != number || number >= kTwoTo63 || number < -kTwoTo63) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

Checked check_choice(const Key& key, const std::string& text) {
  Checked result;
  const auto choices = split(key.choices);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (same_text(choices[i], text)) return {.value = {.choice = i, .text = std::string(choices[i])}, .problem = {}};
  }
  for (const std::string_view refused : split(key.refused_choices)) {
    if (!same_text(refused, text)) continue;
    result.problem = fmt::format("'{}' is not built; available: {}", refused, fmt::join(choices, ", "));
    return result;
  }
  const std::string_view near = nearest_name(text, choices);
  result.problem = fmt::format("got \"{}\", want {}", text, wanted(key));
  if (!near.empty()) result.problem += fmt::format("; did you mean '{}'?", near);
  return result;
}

Checked check_strings(const Key& key, const json& got) {
  Checked result;
  if (got.is_string()) result.value.texts = {got.get<std::string>()};
  if (got.is_array() && std::all_of(got.begin(), got.end(), [](const json& x) { return x.is_string(); })) {
    result.value.texts = got.get<std::vector<std::string>>();
  } else if (!got.is_string()) {
    result.problem = mismatch(key, got);
  }
  return result;
}

Checked check_pair(const Key& key, const json& got) {
  Checked result;
  const bool fits =
      got.is_array() && (got.size() == 2 || (key.takes_third && got.size() == 3)) &&
      std::ranges::all_of(got, [&](const json& x) { return x.is_number() && in_range(key, x.get<double>()); });
  if (!fits) return {.value = {}, .problem = mismatch(key, got)};
  result.value.number = got[0].get<double>();
  result.value.second = got[1].get<double>();
  if (got.size() == 3) result.value.third = got[2].get<double>();
  return result;
}

Checked check_number(const Key& key, const json& got) {
  Checked result;
  if (!got.is_number() || !in_range(key, got.get<double>())) {
    result.problem = mismatch(key, got);
    return result;
  }
  result.value.number = got.get<double>();
  if (key.kind == Kind::kNumber) return result;
  if (const auto count = whole_number(got)) {
    result.value.count = *count;
  } else {
    result.problem = mismatch(key, got);
  }
  return result;
}

}  // namespace

std::string shown(const json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {  // not JSON: set by a program
    return fmt::format("{}", value.get<double>());
  }
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string wanted(const Key& key) {
  switch (key.kind) {
    case Kind::kSection:
      return "an object {...}";
    case Kind::kBool:
      return "true or false";
    case Kind::kCount:
      return "a whole number, " + range_of(key);
    case Kind::kNumber:
      return "a number, " + range_of(key);
    case Kind::kString:
      return "a string";
    case Kind::kChoice:
      return fmt::format("one of \"{}\"", fmt::join(split(key.choices), "\", \""));
    case Kind::kPair:
      return fmt::format("a list of two {}numbers, each {}", key.takes_third ? "or three " : "", range_of(key));
    case Kind::kStrings:
      return "a list of strings";
    case Kind::kAny:
      return "any value";
  }
  return "?";
}

Checked check_value(const Key& key, const json& got) {
  Checked result;
  switch (key.kind) {
    case Kind::kAny:
      return result;
    case Kind::kBool:
      if (!got.is_boolean()) return {.value = {}, .problem = mismatch(key, got)};
      result.value.boolean = got.get<bool>();
      return result;
    case Kind::kCount:
    case Kind::kNumber:
      return check_number(key, got);
    case Kind::kString:
      if (!got.is_string()) return {.value = {}, .problem = mismatch(key, got)};
      result.value.text = got.get<std::string>();
      return result;
    case Kind::kChoice:
      if (!got.is_string()) return {.value = {}, .problem = mismatch(key, got)};
      return check_choice(key, got.get<std::string>());
    case Kind::kPair:
      return check_pair(key, got);
    case Kind::kStrings:
      return check_strings(key, got);
    case Kind::kSection:
      return {.value = {}, .problem = mismatch(key, got)};
  }
  return result;
}

std::string chosen(const Key& key, const Value& value) {
  const auto choices = split(key.choices);
  if (!value.choice) return value.text;
  return *value.choice < choices.size() ? std::string(choices[*value.choice]) : std::to_string(*value.choice);
}

nlohmann::ordered_json json_of(const Key& key, const Value& value) {
  if (!value.given) return nullptr;
  switch (key.kind) {
    case Kind::kBool:
      return value.boolean;
    case Kind::kCount:
      return value.count;
    case Kind::kNumber:
      return value.number;
    case Kind::kString:
      return value.text;
    case Kind::kChoice:
      return chosen(key, value);
    case Kind::kPair:
      return {value.number, value.second};
    case Kind::kStrings:
      return value.texts;
    case Kind::kSection:
    case Kind::kAny:
      break;  // kept nowhere
  }
  return nullptr;
}

bool is_harmless(const Key& key, const json& got) {
  for (const std::string_view alternative : split(key.harmless)) {
    const json value = json::parse(alternative, nullptr, false);
    if (value == got) return true;
    if (value.is_string() && got.is_string() && same_text(value.get<std::string>(), got.get<std::string>()))
      return true;
  }
  return false;
}

}  // namespace zero::config
