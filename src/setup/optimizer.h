#pragma once
// The configuration's optimizer as the room optim has it. No libtorch.
#include "optim/rule.h"
#include "zero/config.h"

namespace zero::setup {

/// Throws ConfigError for a type that is not one of optimizer.type's choices.
optim::Algorithm algorithm_of(const Config::Optimizer& optimizer);
optim::Hyper hyper_of(const Config::Optimizer& optimizer);
/// Of parameters without groups of their own.
const optim::Rule& rule_of(const Config::Optimizer& optimizer);

}  // namespace zero::setup
