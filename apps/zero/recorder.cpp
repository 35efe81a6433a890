#include "recorder.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "text_format.h"

namespace zero::app {

Recorder::Recorder(const std::string& run_folder, const std::string& tensorboard_folder)
    : folder_(run_folder), tensorboard_folder_(tensorboard_folder) {}

RecordPosition Recorder::sync() {
  RecordPosition position;
  position.metrics_nbytes = folder_.sync_metrics();
  if (tensorboard_) {
    position.events_file = tensorboard_->file().filename().string();
    position.events_nbytes = tensorboard_->sync();
  }
  return position;
}

void Recorder::go_back_to(const RecordPosition& position) {
  folder_.cut_metrics(position.metrics_nbytes);
  if (tensorboard_folder_.empty() || position.events_file.empty()) return;
  const auto file = std::filesystem::path(tensorboard_folder_) / position.events_file;
  if (!std::filesystem::exists(file)) return;  // removed by the user
  tensorboard_.emplace(monitor::TensorboardWriter::resume(file, position.events_nbytes));
}

void Recorder::start_over() {
  folder_.cut_metrics(0);
  if (!tensorboard_folder_.starts_with(folder_.path().string())) return;  // a folder of other runs, too
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(tensorboard_folder_, error)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

void Recorder::add_events(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  if (tensorboard_folder_.empty()) return;
  if (!tensorboard_) tensorboard_.emplace(monitor::TensorboardWriter::create(tensorboard_folder_));
  tensorboard_->add_scalars(step, scalars);
}

void Recorder::step(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.grad_norm},
                                 {"lr", metrics.lr},
                                 {"tokens", metrics.tokens},
                                 {"seconds", metrics.seconds},
                                 {"tokens_per_s", metrics.tokens_per_s}};
  if (metrics.skipped) line["skipped"] = true;
  folder_.append_metric(line);
  add_events(metrics.step, {{"train/loss", metrics.loss},
                            {"train/grad_norm", metrics.grad_norm},
                            {"train/lr", metrics.lr},
                            {"speed/tokens_per_s", metrics.tokens_per_s}});
}

void Recorder::validation(std::int64_t step, double nats, double baseline_nats) {
  folder_.append_metric({{"step", step},
                         {"val_loss", nats},
                         {"val_bits_per_byte", to_bits(nats)},
                         {"baseline", baseline_nats},
                         {"val_loss_over_baseline", nats / baseline_nats}});
  add_events(step, {{"validation/loss", nats},
                    {"validation/bits_per_byte", to_bits(nats)},
                    {"validation/unigram_entropy", baseline_nats}});
}

}  // namespace zero::app
