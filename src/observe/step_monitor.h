#pragma once
// StepMonitor: what the sections "tensorboard" and "csv_monitor" of the configuration ask for, on rank 0.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "monitor/csv_writer.h"
#include "monitor/tensorboard_writer.h"
#include "observe/step_observer.h"
#include "zero/config.h"

namespace zero::observe {

/// output_path/job_name, "runs" for an empty output_path.
std::filesystem::path tensorboard_folder(const Config& config);
/// output_path/job_name, below the working folder for an empty output_path, as in DeepSpeed.
std::filesystem::path csv_folder(const Config& config);

class StepMonitor final : public StepObserver {
 public:
  static bool is_wanted(const Config& config) { return config.tensorboard.enabled || config.csv_monitor.enabled; }

  /// Makes the folders and a new event file. Throws IoError.
  explicit StepMonitor(const Config& config);

  void loss(const at::Tensor& loss) override;
  /// Writes Train/Samples/train_loss, lr, loss_scale and grad_norm against the samples, as DeepSpeed does.
  void updated(const Update& update) override;

 private:
  std::optional<monitor::TensorboardWriter> events_;  ///< none: not wanted, or one could not be written
  std::optional<monitor::CsvWriter> rows_;            ///< the same
  double loss_sum_ = 0;
  int losses_ = 0;
};

}  // namespace zero::observe
