#include "train/recorder.h"

#include <nlohmann/json.hpp>

#include "train/report_tables.h"

namespace zero::app {

void record_step(MetricsRecord& record, const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.grad_norm},
                                 {"lr", metrics.lr},
                                 {"tokens", metrics.tokens},
                                 {"seconds", metrics.seconds},
                                 {"tokens_per_s", metrics.tokens_per_s}};
  if (metrics.skipped) line["skipped"] = true;
  if (metrics.noise_scale) {
    line["gradient_noise_scale"] = *metrics.noise_scale;
    record.add_events(metrics.step, {{"train/gradient_noise_scale", *metrics.noise_scale}});
  }
  record.add_line(line.dump());
  record.add_events(metrics.step, {{"train/loss", metrics.loss},
                                   {"train/grad_norm", metrics.grad_norm},
                                   {"train/lr", metrics.lr},
                                   {"speed/tokens_per_s", metrics.tokens_per_s}});
}

void record_validation(MetricsRecord& record, const TrainPlan& plan, std::int64_t step, double nats) {
  const auto bits = bits_per_byte(plan, nats);
  nlohmann::ordered_json line = {{"step", step}, {"val_loss", nats}};
  if (bits) line["val_bits_per_byte"] = *bits;
  line["baseline"] = plan.baseline_nats;
  line["val_loss_over_baseline"] = nats / plan.baseline_nats;
  record.add_line(line.dump());
  record.add_events(step, {{"validation/loss", nats}, {"validation/unigram_entropy", plan.baseline_nats}});
  if (bits) record.add_events(step, {{"validation/bits_per_byte", *bits}});
}

}  // namespace zero::app
