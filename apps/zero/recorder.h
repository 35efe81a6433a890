#pragma once
// Rank 0's record of a run: metrics.jsonl and TensorBoard. Other ranks have none.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "monitor/tensorboard_writer.h"
#include "run_folder.h"

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

/// Where the record stands, for a checkpoint.
struct RecordPosition {
  std::int64_t metrics_nbytes = 0;
  std::string events_file;  ///< empty: none
  std::int64_t events_nbytes = 0;
};

class Recorder {
 public:
  /// `tensorboard_folder` empty: no event files; they begin with the first event. Throws IoError, ConfigError
  /// when another process is writing this run.
  Recorder(const std::string& run_folder, const std::string& tensorboard_folder);

  /// Makes all of it durable and says where it ends.
  RecordPosition sync();
  /// Forgets what came after `position`, so that no step is in there twice. Before the first event.
  void go_back_to(const RecordPosition& position);
  /// Forgets everything. Before the first event.
  void start_over();

  void step(const StepMetrics& metrics);
  /// `step`: steps done so far.
  void validation(std::int64_t step, double nats, double baseline_nats);
  const RunFolder& folder() const { return folder_; }

 private:
  void add_events(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  RunFolder folder_;
  std::string tensorboard_folder_;
  std::optional<monitor::TensorboardWriter> tensorboard_;
};

}  // namespace zero::app
