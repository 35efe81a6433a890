#include "recorder.h"

#include <nlohmann/json.hpp>

#include "text_format.h"

namespace zero::app {

Recorder::Recorder(const std::string& run_folder, const std::string& tensorboard_folder)
    : folder_(run_folder) {
  if (!tensorboard_folder.empty()) tensorboard_.emplace(tensorboard_folder);
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
  if (!tensorboard_) return;
  tensorboard_->add_scalars(metrics.step, {{"train/loss", metrics.loss},
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
  if (!tensorboard_) return;
  tensorboard_->add_scalars(step, {{"validation/loss", nats},
                                   {"validation/bits_per_byte", to_bits(nats)},
                                   {"validation/unigram_entropy", baseline_nats}});
}

}  // namespace zero::app
