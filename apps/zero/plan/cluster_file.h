#pragma once
// Machines to plan for, described in a file: their number, memory and speeds (docs/plan.md).
#include <string>

#include "zero/plan.h"

namespace zero::app {

/// JSON with comments. Sizes and rates have units ("80GB", "400Gbit/s"). A field of the result that the file does not
/// name is 0; `gpus` is set where it has a section "gpu". Local. Throws ConfigError with file, key and remedy, IoError.
plan::Cluster read_cluster(const std::string& path);

}  // namespace zero::app
