#pragma once
// StepMonitor: what the sections "tensorboard" and "csv_monitor" of the configuration ask for, on rank 0.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "monitor/csv_writer.h"
#include "monitor/tensorboard_writer.h"
#include "zero/config.h"

namespace zero::engine {

/// output_path/job_name, "runs" for an empty output_path.
std::filesystem::path tensorboard_folder(const Config& config);
/// output_path/job_name, below the working folder for an empty output_path, as in DeepSpeed.
std::filesystem::path csv_folder(const Config& config);

class StepMonitor {
 public:
  static bool is_wanted(const Config& config) { return config.tensorboard.enabled || config.csv_monitor.enabled; }

  /// Makes the folders and a new event file. Throws IoError.
  explicit StepMonitor(const Config& config);

  /// The loss of a micro-batch of this rank.
  void add_loss(const at::Tensor& loss);

  struct Step {
    std::int64_t samples = 0;  ///< of all ranks so far
    double lr = 0;
    double grad_norm = 0;
    std::optional<double> loss_scale;  ///< fp16: of the next step
  };
  /// After an optimizer step: Train/Samples/train_loss, lr, loss_scale and grad_norm against the samples, as DeepSpeed
  /// has them.
  void add_step(const Step& step);

 private:
  std::optional<monitor::TensorboardWriter> events_;  ///< none: not wanted, or one could not be written
  std::optional<monitor::CsvWriter> rows_;            ///< the same
  double loss_sum_ = 0;
  int losses_ = 0;
};

}  // namespace zero::engine
