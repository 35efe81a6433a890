#pragma once
// The schema: one row per key of the JSON, declarative, so that the binder, the documentation and the tests
// all read the same table. The rows are in keys_*.cpp, one file per part of the JSON.
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/config.h"

namespace zero::config {

enum class Kind : std::uint8_t {
  kSection,
  kBool,
  kCount,  // whole number, also written 5e8
  kNumber,
  kString,
  kChoice,   // string out of `choices`, any case
  kPair,     // two numbers
  kStrings,  // list of strings, or one string
  kAny,
};

/// A value whose kind and range have been checked; only the member of its kind is set.
struct Value {
  bool given = true;  // false: null
  bool boolean = false;
  std::int64_t count = 0;
  double number = 0;
  double second = 0;                  // of a pair; the first is `number`
  std::optional<double> third;        // where the key takes one
  std::optional<std::size_t> choice;  // which of the key's `choices`; not given for one that is kept as text
  std::string text;                   // also of a choice that was read, as spelt in `choices`
  std::vector<std::string> texts;
};

/// Where a key's value is kept (see fields.h): into Config, and back.
struct Field {
  void (*bind)(Config&, const Value&) = nullptr;
  Value (*unbind)(const Config&) = nullptr;
};

/// Upper bounds of counts, far from where sums and products of them overflow.
constexpr double kMostSamples = 1e12;  ///< of a batch
constexpr double kMostSteps = 1e15;    ///< of a run
constexpr double kMostNumel = 1e18;    ///< elements

struct Key {
  std::string_view path;
  Kind kind = Kind::kAny;
  std::string_view fallback = {};  // default, as JSON
  KeyStatus status = KeyStatus::kHonoured;
  std::string_view note = {};
  /// kNoEffect and kRefused: values that are accepted without a word, as JSON, separated by '|'.
  std::string_view harmless = {};
  /// kCount and kNumber: inclusive range; `above` makes the lower end exclusive, `below` the upper.
  double minimum = 0;
  double maximum = std::numeric_limits<double>::infinity();
  bool above = false;
  bool below = false;
  /// kChoice: what is taken, separated by '|'; and what DeepSpeed has and we refuse by name.
  std::string_view choices = {};
  std::string_view refused_choices = {};
  /// kSection, refused: members (separated by '|') that switch it on unless they are null or `harmless`. "*": any
  /// member; "**": any "enabled" at any depth. Members have rows of their own or are not read.
  std::string_view gate = {};
  std::string_view alias_of = {};
  /// An old switch whose `true` is now this choice of `alias_of`; `false` says nothing.
  std::string_view means = {};
  /// null is "not given", as where DeepSpeed's field is optional. Keys whose `fallback` is null take it anyway.
  bool nullable = false;
  /// kPair: there may be a third number.
  bool takes_third = false;
  /// A parameter of an optimizer or schedule: the types that take it, separated by '|'; empty: all.
  std::string_view taken_by = {};
  Field field = {};
};

// Rows in short. Keys of other forms are written out.

constexpr Key section(std::string_view path, std::string_view note, KeyStatus status = KeyStatus::kHonoured) {
  return {.path = path, .kind = Kind::kSection, .fallback = "null", .status = status, .note = note};
}
/// A section of a service: what it would do is no part of training, and a notice says that it is not done.
constexpr Key service(std::string_view path, std::string_view note) {
  return {.path = path,
          .kind = Kind::kSection,
          .fallback = "null",
          .status = KeyStatus::kNoEffect,
          .note = note,
          .harmless = "false",
          .gate = "enabled"};
}
/// A section that is refused as a whole.
constexpr Key not_built(std::string_view path, std::string_view note, std::string_view gate = "enabled",
                        std::string_view off = "false") {
  return {.path = path,
          .kind = Kind::kSection,
          .fallback = "null",
          .status = KeyStatus::kRefused,
          .note = note,
          .harmless = off,
          .gate = gate};
}
constexpr Key honoured(std::string_view path, Kind kind, std::string_view fallback, std::string_view note,
                       Field field) {
  return {.path = path, .kind = kind, .fallback = fallback, .note = note, .field = field};
}
constexpr Key no_effect(std::string_view path, Kind kind, std::string_view fallback, std::string_view note,
                        std::string_view harmless = {}) {
  return {.path = path,
          .kind = kind,
          .fallback = fallback,
          .status = KeyStatus::kNoEffect,
          .note = note,
          .harmless = harmless};
}
constexpr Key refused(std::string_view path, Kind kind, std::string_view fallback, std::string_view note,
                      std::string_view harmless = {}) {
  Key key = no_effect(path, kind, fallback, note, harmless);
  key.status = KeyStatus::kRefused;
  return key;
}
/// Of keys that programs write as null where they leave them out.
constexpr Key or_null(Key key) {
  key.nullable = true;
  return key;
}
constexpr Key old_name(std::string_view path, Kind kind, std::string_view fallback, std::string_view alias_of,
                       KeyStatus status = KeyStatus::kHonoured) {
  return {.path = path, .kind = kind, .fallback = fallback, .status = status, .alias_of = alias_of};
}
constexpr Key was_a_switch(std::string_view path, std::string_view alias_of, std::string_view choice) {
  return {.path = path, .kind = Kind::kBool, .fallback = "false", .alias_of = alias_of, .means = choice};
}

std::span<const Key> batch_keys();
std::span<const Key> optimizer_keys();
std::span<const Key> scheduler_keys();
std::span<const Key> precision_keys();
std::span<const Key> step_keys();
std::span<const Key> monitor_keys();
std::span<const Key> checkpoint_keys();
std::span<const Key> zero_keys();
std::span<const Key> offload_keys();
std::span<const Key> zerotorch_keys();
std::span<const Key> not_built_keys();

/// All of the above, in this order, which is that of Config::to_json().
const std::vector<const Key*>& all_keys();

/// Null when there is none.
const Key* find_key(std::string_view path);

/// Names that may follow `section` ("" for the top level), aliases included.
std::vector<std::string_view> names_in(std::string_view section);

/// Sections (at most three) in which `name` is a key; "" stands for the top level.
std::vector<std::string_view> sections_with(std::string_view name);

/// Whether an optimizer or schedule of this type takes the parameter.
bool takes(std::string_view type, const Key& parameter);
/// The honoured parameters among `keys` that it takes, by name, for messages: "lr, weight_decay".
std::string parameters_of(std::string_view type, std::span<const Key> keys);

/// The key as an optimizer of this type has it: of optimizer.params, its own range. Else unchanged.
Key for_optimizer(std::string_view type, const Key& key);

std::string_view kind_name(Kind kind);

/// "a|b|c" -> {"a", "b", "c"}; empty -> {}.
std::vector<std::string_view> split(std::string_view joined);

}  // namespace zero::config
