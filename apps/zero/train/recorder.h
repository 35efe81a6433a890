#pragma once
// What a run of `zero train` writes of its steps: metrics.jsonl and TensorBoard.
#include <cstdint>
#include <optional>
#include <vector>

#include "train/train_plan.h"
#include "zero/report.h"
#include "zero/train.h"

namespace zero::app {

struct StepMetrics {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0;        ///< mean over the global batch, nats per token
  double grad_norm = 0;
  double lr = 0;                           ///< used for this step
  std::int64_t tokens = 0;                 ///< so far
  double seconds = 0;                      ///< of training so far, without validation
  double tokens_per_s = 0;                 ///< in this step
  bool skipped = false;                    ///< the gradient was not finite, the parameters were not changed
  std::optional<double> noise_scale = {};  ///< in sequences
};

void record_step(MetricsRecord& record, const StepMetrics& metrics);
/// `step`: steps done so far.
void record_validation(MetricsRecord& record, const TrainPlan& plan, std::int64_t step, double nats);

}  // namespace zero::app
