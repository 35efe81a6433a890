#include "train/train_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "zero/errors.h"
#include "zero/launch.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMicroBatch = 4;
constexpr std::int64_t kMicroBatchesPerStep = 4;  // over all ranks
constexpr double kLearningRate = 3e-3;
constexpr double kLearningRateDim = 192;  // the width it was found for
constexpr double kTuningRate = 5e-5;      // of weights that are there already
constexpr double kAdapterRate = 2e-4;     // of adapters

/// What a run that goes on may change as well.
void override_zero(ordered_json& json, const TrainOptions& options) {
  ordered_json& zero = json["zero_optimization"];
  if (options.stage) zero["stage"] = *options.stage;
  if (!options.store.empty()) json["zerotorch"]["store"] = options.store;
  if (options.trace) json["zerotorch"]["trace"]["enabled"] = true;
  if (!options.nvme_activations.empty()) {
    json["zerotorch"]["offload_activations"]["device"] = "nvme";
    json["zerotorch"]["offload_activations"]["nvme_path"] = options.nvme_activations;
  }
  if (options.nvme_gradients) {
    json["zerotorch"]["offload_gradients"]["device"] = "nvme";
    json["zerotorch"]["offload_gradients"]["nvme_path"] = options.nvme;
  }
  // --fit: it is where they may go.
  if (options.nvme.empty() || (options.fit && !options.nvme_parameters && !options.nvme_gradients)) return;
  const auto put_on_disk = [&](const char* section) {
    zero[section]["device"] = "nvme";
    zero[section]["nvme_path"] = options.nvme;
  };
  put_on_disk("offload_optimizer");
  if (options.nvme_parameters) put_on_disk("offload_param");
}

/// The largest rate of the schedule. Throws ConfigError where the schedule has no such number.
void override_rate(ordered_json& json, double lr) {
  if (!json.contains("optimizer") || json["optimizer"].is_null()) json["optimizer"] = {{"type", "AdamW"}};
  json["optimizer"]["params"]["lr"] = lr;
  for (const char* own : {"muon_lr", "adam_lr"}) json["optimizer"]["params"].erase(own);
  if (!json.contains("scheduler") || !json["scheduler"].is_object()) return;
  ordered_json& scheduler = json["scheduler"];
  const std::string type = scheduler.value("type", "");
  if (type == "OneCycle" || type == "LRRangeTest") {
    throw ConfigError(fmt::format(
        "--lr: schedule {} of the configuration gives the rates itself; change its parameters in the file", type));
  }
  ordered_json& params = scheduler["params"];
  if (params.contains("warmup_max_lr")) params["warmup_max_lr"] = lr;
  const auto least = [&](const char* name) {
    return params.contains(name) && params[name].is_number() ? params[name].get<double>() : 0.0;
  };
  for (const char* name : {"warmup_min_lr", "eta_min"}) {
    if (least(name) > lr)
      throw ConfigError(fmt::format("--lr {:g} is below scheduler.params.{}, {:g}", lr, name, least(name)));
  }
}

/// The largest number of sequences up to `most` that divides what a rank has to do in a step.
std::int64_t dividing_micro_batch(std::int64_t batch_size, int ranks, std::int64_t most) {
  const std::int64_t each = batch_size / ranks;
  for (std::int64_t micro = std::min(most, each); micro > 1; --micro) {
    if (each % micro == 0) return micro;
  }
  return 1;
}

/// --batch-size and --micro-batch; what is not given stays, but for the accumulation, which follows.
void override_batch(ordered_json& json, const TrainOptions& options, int ranks) {
  if (!options.batch_size && !options.micro_batch) return;
  constexpr const char *kBatch = "train_batch_size", *kMicro = "train_micro_batch_size_per_gpu",
                       *kAccumulation = "gradient_accumulation_steps";
  const auto number = [&](const char* key) {
    return json.contains(key) && json[key].is_number() ? json[key].get<std::int64_t>() : 0;
  };
  std::int64_t micro = number(kMicro);
  std::int64_t batch = number(kBatch);
  if (batch == 0 && micro > 0) batch = micro * std::max<std::int64_t>(1, number(kAccumulation)) * ranks;
  if (options.batch_size) batch = *options.batch_size;
  if (options.micro_batch) micro = *options.micro_batch;
  if (batch % ranks != 0)
    throw ConfigError(
        fmt::format("--batch-size {} does not divide by {} ranks; take a multiple, or other -n", batch, ranks));
  if (!options.micro_batch && (micro == 0 || options.config.empty()))
    micro = dividing_micro_batch(batch, ranks, micro == 0 ? batch : micro);
  if (batch % (micro * ranks) != 0) {
    throw ConfigError(
        fmt::format("the batch of {} sequences is no multiple of {} ranks x micro-batch {}; change --batch-size or "
                    "--micro-batch",
                    batch, ranks, micro));
  }
  json[kBatch] = batch;
  json[kMicro] = micro;
  json[kAccumulation] = batch / (micro * ranks);
}

void override_precision(ordered_json& json, const std::string& dtype) {
  if (dtype.empty()) return;
  for (const char* section : {"bf16", "fp16"}) {
    if (dtype == section || json.contains(section)) json[section]["enabled"] = dtype == section;
  }
}

void override_checkpoints(ordered_json& json, const TrainOptions& options) {
  if (!options.checkpoint_every) return;
  ordered_json& checkpoint = json["zerotorch"]["checkpoint"];
  checkpoint["every_steps"] = *options.checkpoint_every;
  checkpoint["every_minutes"] = 0;
}

/// What only a new run decides.
void override_training(ordered_json& json, const TrainOptions& options, int ranks) {
  override_batch(json, options, ranks);
  override_precision(json, options.dtype);
  override_checkpoints(json, options);
  if (options.lr) override_rate(json, *options.lr);
}

/// Applies the command line to a resolved configuration and checks the result as a whole.
Config override_config(const Config& config, const TrainOptions& options, int ranks) {
  ordered_json json = ordered_json::parse(config.to_json());
  override_zero(json, options);
  override_training(json, options, ranks);
  if (options.seed || !config.zerotorch.seed) json["zerotorch"]["seed"] = options.seed.value_or(kDefaultSeed);
  Config result = Config::from_text(json.dump(), options.config.empty() ? "built-in configuration" : options.config);
  result.notices = config.notices;
  return result;
}

}  // namespace

std::string builtin_config(const TrainOptions& options, std::int64_t dim, int ranks) {
  const double lr = options.lora_rank ? kAdapterRate
                    : options.init_from.empty()
                        ? kLearningRate * std::min(1.0, kLearningRateDim / static_cast<double>(dim))
                        : kTuningRate;
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
  override_training(json, options, ranks);
  return json.dump(2);
}

Config make_config(const TrainOptions& options, std::int64_t dim, int ranks) {
  const Config base = options.config.empty()
                          ? Config::from_text(builtin_config(options, dim, ranks), "built-in configuration")
                          : Config::from_file(options.config);
  Config config = override_config(base, options, ranks);
  config.resolve_batch(ranks);
  return config;
}

Config resume_config(const std::string& text, const TrainOptions& options, int ranks) {
  ordered_json json = ordered_json::parse(text);
  json.erase("gradient_accumulation_steps");  // follows from the global batch and the ranks
  override_zero(json, options);
  override_checkpoints(json, options);
  if (options.lr) override_rate(json, *options.lr);
  Config config = Config::from_text(json.dump(), "configuration of the run");
  config.resolve_batch(ranks);
  return config;
}

}  // namespace zero::app
