#include "plan/plan_fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/magic.h>
#include <sys/statfs.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "host/rank_device.h"
#include "text/quantity.h"
#include "text/text_format.h"
#include "zero/errors.h"
#include "zero/lm/lora.h"
#include "zero/memory.h"

namespace zero::app {

namespace {

std::int64_t memory_of(const TrainOptions& options) {
  return options.memory.empty() ? available_memory_nbytes() : parse_nbytes("--memory", options.memory);
}

/// Of the GPU that each rank has, or its part of one that several have. 0: not to be judged.
std::int64_t gpu_memory_of(const TrainOptions& options, const std::string& device, Ranks ranks) {
  if (device == "cpu") {
    if (!options.gpu_memory.empty()) throw ConfigError("--gpu-memory: is for ranks on GPUs; give --device cuda");
    return 0;
  }
  if (!options.gpu_memory.empty()) return parse_nbytes("--gpu-memory", options.gpu_memory);
  if (!options.fit) return 0;
  const std::vector<std::int64_t> free = ask_free_memory(device);
  const std::int64_t here = ranks.per_node > 0 ? ranks.per_node : ranks.world_size;
  const auto devices = static_cast<std::int64_t>(free.size());
  std::int64_t least = 0;
  for (std::int64_t i = 0; i < std::min(devices, here); ++i) {
    const std::int64_t ranks_on_it = (here - i + devices - 1) / devices;  // they take them in turn
    const std::int64_t part = free[static_cast<std::size_t>(i)] / ranks_on_it;
    least = i == 0 ? part : std::min(least, part);
  }
  if (least > 0) return least;
  throw ConfigError("--fit: the device does not say how much of its memory is free; give it with --gpu-memory");
}

/// Dropout is drawn, and routed experts are balanced, by micro-batch.
bool depends_on_micro_batches(const TrainPlan& plan) {
  if (plan.model.empty()) return gpt_options(plan).dropout > 0;
  const models::CausalLMConfig config = causal_lm_config(plan);
  return config.embedding_dropout > 0 || config.attention_dropout > 0 || config.residual_dropout > 0 ||
         config.experts.loss_factor > 0 || (!plan.lora.empty() && models::parse_lora(plan.lora).dropout > 0);
}

/// The folder, or the one that it will be made in.
bool is_memory(std::filesystem::path folder) {
  std::error_code error;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  struct statfs facts;
  return ::statfs(folder.empty() ? "." : folder.c_str(), &facts) == 0 && facts.f_type == TMPFS_MAGIC;
}

/// What the options leave open.
plan::Changes changes_of(const TrainPlan& plan, const TrainOptions& options, bool goes_on) {
  plan::Changes allowed;
  allowed.stage = !options.stage;
  allowed.store = options.store.empty() && plan.device == "cpu";
  allowed.micro_batch = !options.micro_batch && !goes_on && !depends_on_micro_batches(plan);
  allowed.recompute = !options.recompute_every;
  allowed.states_on_nvme = allowed.gradients_on_nvme = allowed.parameters_on_nvme = !options.nvme.empty();
  if (options.nvme.empty()) return allowed;
  allowed.nvme_path = options.nvme;
  if (is_memory(options.nvme))
    throw ConfigError(
        fmt::format("--nvme {}: is in memory (tmpfs), where nothing is saved; give a disk", options.nvme));
  return allowed;
}

/// A suggestion in options of `zero train`, where there are such.
std::string in_options(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kOptions[] = {
      {" (nvme_path on a local disk)", ""},
      {"stage 3, zero_optimization.offload_param.device \"nvme\"", "--nvme DIR --nvme-parameters"},
      {"zero_optimization.offload_optimizer.device \"nvme\"", "--nvme DIR"},
      {"zerotorch.offload_gradients.device \"nvme\"", "--nvme DIR --nvme-gradients"},
      {"activation checkpointing (zero train --recompute 1)", "--recompute 1"},
      {"zero_optimization.stage ", "--stage "}};
  for (const auto& [key, option] : kOptions) {
    for (std::size_t at = 0; (at = text.find(key, at)) != std::string::npos; at += option.size())
      text.replace(at, key.size(), option);
  }
  // Said once.
  constexpr std::string_view kFolder = "--nvme DIR and --nvme DIR ";
  for (std::size_t at = 0; (at = text.find(kFolder, at)) != std::string::npos;)
    text.replace(at, kFolder.size(), "--nvme DIR ");
  return text;
}

/// Makes the plan and its configuration those of the suggestion.
void take(const plan::Suggestion& found, TrainPlan& plan, Config& config) {
  const bool recomputes = found.model.transformer && found.model.transformer->checkpointing;
  if (recomputes && plan.recompute_every == 0) plan.recompute_every = 1;
  const auto notices = config.notices;
  config = found.config;
  config.resolve_batch(plan.ranks);
  config = Config::from_text(config.to_json(), "what --fit has chosen");
  config.notices = notices;
}

}  // namespace

std::string fit_or_check(TrainPlan& plan, Config& config, const TrainOptions& options, Ranks ranks, bool goes_on) {
  const std::int64_t memory = memory_of(options);
  const plan::Cluster here{.ranks = ranks.world_size,
                           .ranks_per_node = ranks.per_node,
                           .node_memory_nbytes = memory,
                           .gpus = plan.device != "cpu",
                           .gpu_memory_nbytes = gpu_memory_of(options, plan.device, ranks)};
  Config to_plan = config;
  if (here.gpus) to_plan.zerotorch.store = Config::Zerotorch::Store::kCopying;  // theirs
  if (!options.fit) return check_fits_here(shape_to_train(plan), to_plan, here, options.force);
  try {
    const plan::Suggestion found = plan::fit(shape_to_train(plan), to_plan, here, changes_of(plan, options, goes_on));
    take(found, plan, config);
    const std::string on_gpu =
        here.gpus ? fmt::format("{} of each rank's GPU, of {}, and ", human_nbytes(found.plan.peak_nbytes()),
                                human_nbytes(here.gpu_memory_nbytes))
                  : "";
    return hanging(
        "fit", fmt::format("{}: {}{} on this host, of {}",
                           found.changes.empty() ? "as it is" : fmt::format("{}", fmt::join(found.changes, " and ")),
                           on_gpu, human_nbytes(found.plan.node_nbytes), human_nbytes(memory)));
  } catch (const ConfigError& error) {
    throw ConfigError(
        fmt::format("--fit: {}{}", error.what(),
                    options.nvme.empty() ? "; --nvme DIR would let states and parameters go to a disk" : ""));
  }
}

std::string check_fits_here(const plan::ModelShape& model, const Config& config, const plan::Cluster& here,
                            bool force) {
  try {
    const std::string warning = plan::check_fits(model, config, here, force);
    return warning.empty() ? "" : fmt::format("warning: {}\n", warning);
  } catch (const ConfigError& error) {
    const std::string text = in_options(error.what());
    // Not of what is wrong with the configuration.
    if (!text.starts_with("the run needs about ")) throw ConfigError(text);
    throw ConfigError(fmt::format("{}; --force starts it all the same", text));
  }
}

plan::ModelShape shape_to_train(const TrainPlan& plan) {
  plan::ModelShape shape = plan.model.empty() ? gpt_shape(gpt_options(plan), "gpt") : causal_lm_shape(plan);
  shape.transformer->seq = plan.seq;
  shape.deferred_init = true;
  return shape;
}

}  // namespace zero::app
