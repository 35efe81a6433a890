#pragma once
#include <optional>
#include <string>

#include "zero/kept_results.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace zero::app {

/// --recompute-keep.
CLI::Option* add_recompute_keep(CLI::App& command, std::optional<KeptResults>& keep, const std::string& group);

}  // namespace zero::app
