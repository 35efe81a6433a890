// Fields that were filled in by hand: the same checks as for a file's.
#include <fmt/format.h>

#include <algorithm>

#include "config/binder.h"
#include "config/values.h"

namespace zero {
namespace {

using nlohmann::json;

/// "/optimizer/params/lr" -> "optimizer.params.lr".
std::string path_of(std::string pointer) {
  pointer.erase(0, 1);
  std::ranges::replace(pointer, '/', '.');
  return pointer;
}

/// Values that a reader takes, and turns into others.
void compare(const json& written, const json& read, config::Problems& problems) {
  const json before = written.flatten(), after = read.flatten();
  for (const auto& [pointer, value] : before.items()) {
    const auto found = after.find(pointer);
    if (found == after.end() || *found == value) continue;
    problems.add(0, fmt::format("{}: got {}, which is read as {}; write that", path_of(pointer), config::shown(value),
                                config::shown(*found)));
  }
}

/// Parameters of the optimizer that its type does not take: they would be lost without a word.
void check_hand_filled(const Config& config, config::Problems& problems) {
  const Config unset;
  for (const config::Key& key : config::optimizer_keys()) {
    if (key.field.unbind == nullptr || config::takes(config.optimizer.type, key)) continue;
    const json got = config::json_of(key, key.field.unbind(config));
    const json left = config::json_of(key, key.field.unbind(unset));
    if (got == left) continue;
    const std::string& type = config.optimizer.type;
    problems.add(0, fmt::format("{}: got {}, but {} takes {}; leave it at {}", key.path, config::shown(got), type,
                                config::parameters_of(type, config::optimizer_keys()), config::shown(left)));
  }
}

}  // namespace

void Config::validate() const {
  config::Problems problems("Config");
  Config written = *this;
  // The fields of an optimizer or schedule that is not used are checked too.
  written.optimizer.given = true;
  if (scheduler.type == Scheduler::Type::kNone) written.scheduler.type = Scheduler::Type::kWarmupLR;
  const config::Document document{json(config::unbind(written)), {}};
  Config read;
  const config::GivenKeys given = config::bind(document, read, problems);
  config::cross_check(given, read, problems);
  if (problems.empty()) compare(document.root, config::unbind(read), problems);
  if (problems.empty()) check_hand_filled(*this, problems);
  problems.throw_if_any();
}

}  // namespace zero
