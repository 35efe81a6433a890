#pragma once
// Rank 0's record of a run: metrics.jsonl and TensorBoard. Other ranks have none.
#include <cstdint>
#include <optional>
#include <string>

#include "run_folder.h"
#include "tensorboard_writer.h"

namespace zero::app {

struct StepMetrics {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0;        ///< mean over the global batch, nats per byte
  double grad_norm = 0;
  double lr = 0;            ///< used for this step
  std::int64_t tokens = 0;  ///< so far
  double seconds = 0;       ///< of training so far, without validation
  double tokens_per_s = 0;  ///< in this step
  bool skipped = false;     ///< the gradient was not finite, the parameters were not changed
};

class Recorder {
 public:
  /// `tensorboard_folder` empty: no event files. Throws IoError.
  Recorder(const std::string& run_folder, const std::string& tensorboard_folder);

  void step(const StepMetrics& metrics);
  /// `step`: steps done so far.
  void validation(std::int64_t step, double nats, double baseline_nats);
  const RunFolder& folder() const { return folder_; }

 private:
  RunFolder folder_;
  std::optional<TensorboardWriter> tensorboard_;
};

}  // namespace zero::app
