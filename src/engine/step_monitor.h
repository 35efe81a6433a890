#pragma once
// StepMonitor: what the "tensorboard" section of the configuration asks for, on rank 0.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

#include "monitor/tensorboard_writer.h"
#include "zero/config.h"

namespace zero::engine {

/// output_path/job_name, "runs" for an empty output_path.
std::filesystem::path tensorboard_folder(const Config& config);

class StepMonitor {
 public:
  /// Makes the folder and a new event file. Throws IoError.
  explicit StepMonitor(const Config& config);

  /// The loss of a micro-batch of this rank.
  void add_loss(const at::Tensor& loss);
  /// After an optimizer step: Train/Samples/train_loss, lr and grad_norm against the samples of all ranks so
  /// far, as DeepSpeed has them.
  void add_step(std::int64_t samples, double lr, double grad_norm);

 private:
  monitor::TensorboardWriter writer_;
  double loss_sum_ = 0;
  int losses_ = 0;
  bool broken_ = false;  ///< an event could not be written; said once
};

}  // namespace zero::engine
