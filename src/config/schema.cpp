#include "config/schema.h"

#include <algorithm>
#include <unordered_map>

namespace zero {

std::string_view status_name(KeyStatus status) {
  switch (status) {
    case KeyStatus::kHonoured:
      return "honoured";
    case KeyStatus::kNoEffect:
      return "no effect";
    case KeyStatus::kRefused:
      return "refused";
  }
  return "?";
}

std::span<const KeyInfo> schema() {
  static const std::vector<KeyInfo> infos = [] {
    std::vector<KeyInfo> made;
    for (const config::Key* key : config::all_keys()) {
      made.push_back({.path = key->path,
                      .kind = config::kind_name(key->kind),
                      .default_value = key->fallback,
                      .status = key->status,
                      .note = key->note,
                      .accepted_values = key->kind == config::Kind::kSection ? "" : key->harmless,
                      .alias_of = key->alias_of});
    }
    return made;
  }();
  return infos;
}

}  // namespace zero

namespace zero::config {
namespace {

std::string_view parent_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string_view name_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

}  // namespace

const std::vector<const Key*>& all_keys() {
  static const std::vector<const Key*> keys = [] {
    std::vector<const Key*> made;
    for (const auto part :
         {batch_keys(), optimizer_keys(), scheduler_keys(), precision_keys(), step_keys(), monitor_keys(),
          checkpoint_keys(), zero_keys(), offload_keys(), zerotorch_keys(), not_built_keys()}) {
      for (const Key& key : part) made.push_back(&key);
    }
    return made;
  }();
  return keys;
}

const Key* find_key(std::string_view path) {
  static const std::unordered_map<std::string_view, const Key*> by_path = [] {
    std::unordered_map<std::string_view, const Key*> made;
    for (const Key* key : all_keys()) made.emplace(key->path, key);
    return made;
  }();
  const auto found = by_path.find(path);
  return found == by_path.end() ? nullptr : found->second;
}

std::vector<std::string_view> names_in(std::string_view section) {
  std::vector<std::string_view> names;
  for (const Key* key : all_keys()) {
    if (parent_of(key->path) == section) names.push_back(name_of(key->path));
  }
  return names;
}

std::vector<std::string_view> sections_with(std::string_view name) {
  std::vector<std::string_view> sections;
  for (const Key* key : all_keys()) {
    if (name_of(key->path) == name && sections.size() < 3) sections.push_back(parent_of(key->path));
  }
  return sections;
}

bool takes(std::string_view type, const Key& parameter) {
  const auto types = split(parameter.taken_by);
  return types.empty() || std::ranges::find(types, type) != types.end();
}

std::string parameters_of(std::string_view type, std::span<const Key> keys) {
  std::string taken;
  for (const Key& key : keys) {
    const bool is_parameter = key.path.find(".params.") != std::string_view::npos;
    if (!is_parameter || key.status != KeyStatus::kHonoured || !takes(type, key)) continue;
    taken += (taken.empty() ? "" : ", ") + std::string(name_of(key.path));
  }
  return taken;
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kSection:
      return "section";
    case Kind::kBool:
      return "bool";
    case Kind::kCount:
      return "count";
    case Kind::kNumber:
      return "number";
    case Kind::kString:
      return "string";
    case Kind::kChoice:
      return "choice";
    case Kind::kPair:
      return "two numbers";
    case Kind::kStrings:
      return "strings";
    case Kind::kAny:
      return "any";
  }
  return "?";
}

std::vector<std::string_view> split(std::string_view joined) {
  std::vector<std::string_view> parts;
  while (!joined.empty()) {
    const std::size_t bar = joined.find('|');
    parts.push_back(joined.substr(0, bar));
    if (bar == std::string_view::npos) break;
    joined.remove_prefix(bar + 1);
  }
  return parts;
}

}  // namespace zero::config
