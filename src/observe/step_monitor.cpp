#include "observe/step_monitor.h"

#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "zero/errors.h"

namespace zero::observe {
namespace {

using Points = std::vector<std::pair<std::string, double>>;

/// A file that cannot be written is no reason to lose a training run: it is said once.
template <class Writer>
void write(std::optional<Writer>& writer, std::int64_t samples, const Points& points, std::string_view what) {
  try {
    if (writer) writer->add_scalars(samples, points);
  } catch (const IoError& error) {
    writer.reset();
    base::log_warning("no more {}: {}", what, error.what());
  }
}

}  // namespace

std::filesystem::path tensorboard_folder(const Config& config) {
  const auto& output = config.tensorboard.output_path;
  return std::filesystem::path(output.empty() ? "runs" : output) / config.tensorboard.job_name;
}

std::filesystem::path csv_folder(const Config& config) {
  return std::filesystem::path(config.csv_monitor.output_path) / config.csv_monitor.job_name;
}

StepMonitor::StepMonitor(const Config& config) {
  if (config.tensorboard.enabled) events_.emplace(monitor::TensorboardWriter::create(tensorboard_folder(config)));
  if (config.csv_monitor.enabled) rows_.emplace(csv_folder(config));
}

void StepMonitor::loss(const at::Tensor& loss) {
  loss_sum_ += loss.item().toDouble();
  ++losses_;
}

void StepMonitor::updated(const Update& update) {
  Points points = {{"Train/Samples/lr", update.lr}, {"Train/Samples/grad_norm", update.grad_norm}};
  if (update.loss_scale) points.emplace_back("Train/Samples/loss_scale", *update.loss_scale);
  if (losses_ > 0) points.emplace_back("Train/Samples/train_loss", loss_sum_ / losses_);
  write(events_, update.samples, points, "events for TensorBoard");
  write(rows_, update.samples, points, "rows of csv_monitor");
  loss_sum_ = 0;
  losses_ = 0;
}

}  // namespace zero::observe
