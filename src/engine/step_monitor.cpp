#include "engine/step_monitor.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "zero/errors.h"

namespace zero::engine {

std::filesystem::path tensorboard_folder(const Config& config) {
  const auto& output = config.tensorboard.output_path;
  return std::filesystem::path(output.empty() ? "runs" : output) / config.tensorboard.job_name;
}

StepMonitor::StepMonitor(const Config& config)
    : writer_(monitor::TensorboardWriter::create(tensorboard_folder(config))) {}

void StepMonitor::add_loss(const at::Tensor& loss) {
  loss_sum_ += loss.item().toDouble();
  ++losses_;
}

void StepMonitor::add_step(std::int64_t samples, double lr, double grad_norm) {
  std::vector<std::pair<std::string, double>> points = {{"Train/Samples/lr", lr},
                                                        {"Train/Samples/grad_norm", grad_norm}};
  if (losses_ > 0) points.emplace_back("Train/Samples/train_loss", loss_sum_ / losses_);
  try {
    if (!broken_) writer_.add_scalars(samples, points);
  } catch (const IoError& error) {  // no reason to lose a training run
    broken_ = true;
    base::log_warning("no more events for TensorBoard: {}", error.what());
  }
  loss_sum_ = 0;
  losses_ = 0;
}

}  // namespace zero::engine
