#pragma once
// How large the engine's two buffer pools grow: found by going through a few training steps as
// zero/copying_store.cpp and zero/gradient_reducer.cpp do, without memory. tests/dist/plan_agrees_test.cpp
// holds them to the engine's ledger.
#include "plan/laid_out.h"

namespace zero::plan {

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
