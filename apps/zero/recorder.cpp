#include "recorder.h"

#include <nlohmann/json.hpp>

#include "text_format.h"

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
  record.add_line(line.dump());
  record.add_events(metrics.step, {{"train/loss", metrics.loss},
                                   {"train/grad_norm", metrics.grad_norm},
                                   {"train/lr", metrics.lr},
                                   {"speed/tokens_per_s", metrics.tokens_per_s}});
}

void record_validation(MetricsRecord& record, std::int64_t step, double nats, double baseline_nats) {
  const nlohmann::ordered_json line = {{"step", step},
                                       {"val_loss", nats},
                                       {"val_bits_per_byte", to_bits(nats)},
                                       {"baseline", baseline_nats},
                                       {"val_loss_over_baseline", nats / baseline_nats}};
  record.add_line(line.dump());
  record.add_events(step, {{"validation/loss", nats},
                           {"validation/bits_per_byte", to_bits(nats)},
                           {"validation/unigram_entropy", baseline_nats}});
}

}  // namespace zero::app
