#pragma once
// Where a run stands, beside its tensors: one value, of which a checkpoint's `state` is made and from which it goes on
// (persistence/saved_state.h).
#include <cstdint>
#include <optional>
#include <vector>

#include "optim/loss_scaler.h"

namespace zero::engine {

struct TrainingState {
  std::uint64_t seed = 0;  ///< of the random streams
  std::int64_t global_steps = 0;
  std::int64_t micro_batches = 0;                  ///< of all data-parallel ranks, since the start
  std::int64_t window_begin = 0;                   ///< micro_batches when the running accumulation window began
  std::optional<std::int64_t> accumulation_steps;  ///< set by the program, in place of the configuration's
  optim::LossScaler scaler;
  std::int64_t schedule_begin = 0;                  ///< updates that the schedule does not count: it began after them
  std::vector<std::optional<double>> lr_overrides;  ///< by optimizer group
};

}  // namespace zero::engine
