#pragma once
// What excludes what: pairs of settings that cannot be combined, each with its reason and its remedy. The reader of
// configurations, the engine and the plan apply them; docs/config.md prints them.
#include <string>
#include <string_view>
#include <vector>

#include "config/features.h"

namespace zero::config {

struct Exclusion {
  const Feature* one;  ///< a message begins with its key
  const Feature* other;
  std::string_view reason, remedy;
  /// The command line may still change one of them: not checked while a file is read.
  bool may_change = false;

  /// "zerotorch.store: node_shared with ...: reason; remedy".
  std::string message(const Setting& setting) const;
};

/// All of them; those of schedules of updates are in config/update_kind.cpp.
const std::vector<Exclusion>& exclusions();

/// Those that the setting violates.
std::vector<const Exclusion*> violations(const Setting& setting);

/// Throws ConfigError with the message of the first violation.
void refuse_excluded(const Setting& setting);

}  // namespace zero::config
