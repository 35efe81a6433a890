#pragma once
// How large the engine's two buffer pools grow: found by carrying out the schedules of gathers and buckets
// (layout/gather_schedule.h, layout/bucket_schedule.h) over a few training steps, without memory.
// tests/dist/plan_agrees_test.cpp holds them to the engine's ledger.
#include "setup/laid_out.h"
#include "zero/plan.h"

namespace zero::plan {

using setup::LaidOut;

/// Models that are cut into more buckets get a bound instead of the figure.
inline constexpr std::int64_t kMostBuckets = 200'000;

/// Throws ConfigError as initialize() does: unknown unit names, 'node_shared' over hosts with different numbers of
/// ranks.
LaidOut lay_out(const ModelShape& model, const Config& config, int world_size, int ranks_per_node, bool gpus);

/// model.uses, or every module once.
std::vector<Use> uses_of(const ModelShape& model);

struct GatherUse {
  std::int64_t pool_numel = 0;      ///< buffers of the pool together, at most
  std::int64_t gathered_numel = 0;  ///< elements of all gathers of one step, once the order is known
  std::int64_t peak_live_numel = 0;
};

/// The copying store's gather buffers.
GatherUse gather_use(const ModelShape& model, const LaidOut& laid, const Config& config);

/// Elements of the reducer's buckets: all of them where gradients are replicated, else what its pool grows
/// to. An upper bound where reductions overlap backward.
std::int64_t bucket_numel(const ModelShape& model, const LaidOut& laid);

}  // namespace zero::plan
