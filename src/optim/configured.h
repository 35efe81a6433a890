#pragma once
// The configuration's optimizer as the room optim has it. No libtorch.
#include "optim/rule.h"
#include "zero/config.h"

namespace zero::optim {

/// Throws ConfigError for a type that is not one of optimizer.type's choices.
Algorithm algorithm_of(const Config::Optimizer& optimizer);
/// `by_muon`: of Muon, what its matrices have, else what AdamW has that updates the rest.
Hyper hyper_of(const Config::Optimizer& optimizer, bool by_muon = true);
/// What Muon orthogonalises unless a group says otherwise, as DeepSpeed has it: parameters of at least two
/// dimensions whose name has neither "embed" nor "lm_head".
bool is_for_muon(std::string_view name, int dims);
/// Of parameters without groups of their own; `by_muon` as for hyper_of().
const Rule& rule_of(const Config& config, bool by_muon = true);

}  // namespace zero::optim
