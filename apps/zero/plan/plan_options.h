#pragma once
// The options of `zero plan`, and what they mean.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero/kept_results.h"
#include "zero/plan.h"

namespace CLI {
class App;
}

namespace zero::app {

struct PlanOptions {
  // The model: one of preset, file, number of parameters, sizes.
  std::string preset, model, parameters;
  std::optional<std::int64_t> layers, dim, heads, seq, vocab;
  bool checkpointing = false;
  std::optional<std::int64_t> recompute;  ///< as of `zero train`: one of so many blocks
  std::optional<KeptResults> recompute_keep;
  bool unfused_attention = false;
  // How it is trained.
  std::string config;
  std::vector<int> stages;  ///< empty: all
  std::string dtype, store;
  std::optional<std::int64_t> micro_batch, batch_size;
  std::string nvme;
  // Where.
  std::optional<int> ranks, ranks_per_node;
  std::string memory, gpu_memory, bandwidth, cluster;
  // What is printed.
  bool json = false;
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
