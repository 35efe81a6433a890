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
    problems.add(0, fmt::format("{}: got {}, which is read as {}; write that", path_of(pointer),
                                config::shown(value), config::shown(*found)));
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
  problems.throw_if_any();
}

}  // namespace zero
