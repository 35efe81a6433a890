#pragma once
// The options of `zero plan`, and what they mean.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/train_options.h"
#include "zero/plan.h"

namespace CLI {
class App;
}

namespace zero::app {

struct PlanOptions : TrainOptions {  ///< of which `zero plan` has some rows
  std::optional<std::int64_t> vocab;
  std::string parameters;  ///< their number alone
  bool unfused_attention = false;
  std::vector<int> stages;  ///< empty: all
  std::optional<int> ranks_per_node;
  std::string bandwidth, cluster;
};

/// Adds the options to `command`. Their values are in `options` once it is parsed.
void add_plan_options(CLI::App& command, PlanOptions& options);

/// Everything the options say, checked. Throws ConfigError, IoError.
struct PlanRequest {
  plan::ModelShape model;
  Config config;
  plan::Cluster cluster;
  std::vector<int> stages;         ///< in ascending order
  bool seq_of_file = false;        ///< samples are as long as the model's file allows
  std::optional<int> asked_stage;  ///< the configuration's; not given: the lowest that fits is looked for
};
PlanRequest read_plan_options(const PlanOptions& options);

}  // namespace zero::app
