#pragma once
// Updates of shards whose states, masters or gradients are kept in less than fp32: block by block through
// fp32 memory that stays in the cache. Host memory.
#include "optim/rule.h"

namespace zero::optim {

/// True where `args` and the states of `rule` are fp32 throughout, so that the rule can update them itself.
bool is_fp32(const Rule& rule, const UpdateArgs& args);

/// Each element as the rule would update it from the widened values, each result rounded once. Allocates
/// nothing.
void update_staged(const Rule& rule, const UpdateArgs& args, const Hyper& hyper);

}  // namespace zero::optim
