#include "train_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "zero/launch.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMicroBatch = 4;
constexpr std::int64_t kMicroBatchesPerStep = 4;  // over all ranks
constexpr double kLearningRate = 3e-3;
constexpr double kLearningRateDim = 192;  // the width it was found for

/// What a run that goes on may change as well.
void override_zero(ordered_json& json, const TrainOptions& options) {
  ordered_json& zero = json["zero_optimization"];
  if (options.stage) zero["stage"] = *options.stage;
  if (!options.store.empty()) json["zerotorch"]["store"] = options.store;
  if (options.nvme.empty()) return;
  zero["offload_optimizer"]["device"] = "nvme";
  zero["offload_optimizer"]["nvme_path"] = options.nvme;
}

/// Applies the command line to a resolved configuration and checks the result as a whole.
Config override_config(const Config& config, const TrainOptions& options) {
  ordered_json json = ordered_json::parse(config.to_json());
  override_zero(json, options);
  if (options.seed || !config.zerotorch.seed) json["zerotorch"]["seed"] = options.seed.value_or(kDefaultSeed);
  Config result = Config::from_text(json.dump(), options.config.empty() ? "built-in configuration" : options.config);
  result.notices = config.notices;
  return result;
}

}  // namespace

std::string builtin_config(const TrainOptions& options, std::int64_t dim, int ranks) {
  const double lr = kLearningRate * std::min(1.0, kLearningRateDim / static_cast<double>(dim));
  const std::int64_t steps = options.steps.value_or(kDefaultSteps);
  const std::int64_t accumulation = std::max<std::int64_t>(1, kMicroBatchesPerStep / ranks);
  ordered_json json = {
      {"train_micro_batch_size_per_gpu", kMicroBatch},
      {"gradient_accumulation_steps", accumulation},
      {"gradient_clipping", 1.0},
      {"bf16", {{"enabled", true}}},
      {"zero_optimization", {{"stage", options.stage.value_or(3)}}},
      {"optimizer",
       {{"type", "AdamW"},
        {"params",
         {{"lr", std::round(lr * 1e5) / 1e5}, {"betas", {0.9, 0.95}}, {"eps", 1e-8}, {"weight_decay", 0.1}}}}},
      {"scheduler",
       {{"type", "WarmupCosineLR"},
        {"params",
         {{"total_num_steps", steps},
          {"warmup_num_steps", std::max<std::int64_t>(2, steps / 20)},
          {"warmup_type", "linear"},
          {"warmup_min_ratio", 0.01},
          {"cos_min_ratio", 0.05}}}}}};
  json["zerotorch"] = {{"seed", options.seed.value_or(kDefaultSeed)}};
  if (ranks <= usable_cores()) json["zerotorch"]["bind_cores_to_rank"] = true;
  if (!options.store.empty()) json["zerotorch"]["store"] = options.store;
  return json.dump(2);
}

Config make_config(const TrainOptions& options, std::int64_t dim, int ranks) {
  const Config base = options.config.empty()
                          ? Config::from_text(builtin_config(options, dim, ranks), "built-in configuration")
                          : Config::from_file(options.config);
  Config config = override_config(base, options);
  config.resolve_batch(ranks);
  return config;
}

Config resume_config(const std::string& text, const TrainOptions& options, int ranks) {
  ordered_json json = ordered_json::parse(text);
  json.erase("gradient_accumulation_steps");  // follows from the global batch and the ranks
  override_zero(json, options);
  Config config = Config::from_text(json.dump(), "configuration of the run");
  config.resolve_batch(ranks);
  return config;
}

}  // namespace zero::app
