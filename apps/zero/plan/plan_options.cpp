#include "plan/plan_options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "plan/cluster_file.h"
#include "text/quantity.h"
#include "train/train_config.h"
#include "train/train_plan.h"
#include "zero/errors.h"
#include "zero/lm/causal_lm.h"
#include "zero/lm/models.h"

namespace zero::app {
namespace {

bool names_sizes(const PlanOptions& options) { return options.layers || options.dim || options.heads || options.vocab; }

/// "Qwen2-7B (qwen2)": the folder's name, and what kind of model is in it.
std::string name_of_file(const std::string& path, std::string_view family) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path folder = fs::absolute(path, error).lexically_normal();
  if (!fs::is_directory(folder, error)) folder = folder.parent_path();
  if (folder.filename().empty()) folder = folder.parent_path();
  return folder.filename().empty() ? std::string(family) : fmt::format("{} ({})", folder.filename().string(), family);
}

models::CausalLMConfig read_config_of_file(const std::string& path) {
  try {
    return models::read_config(path);
  } catch (const ConfigError& error) {
    throw ConfigError(
        fmt::format("{}; --layers and --dim (or --parameters alone) plan any model of these sizes", error.what()));
  }
}

plan::ModelShape read_file(const PlanOptions& options) {
  if (names_sizes(options)) {
    throw ConfigError("--model: the file gives the sizes; of the other options only --seq goes with it");
  }
  models::CausalLMConfig config = read_config_of_file(options.model);
  config.recompute_every = options.recompute_every.value_or(0);
  if (options.seq.value_or(0) > config.max_positions) {
    throw ConfigError(fmt::format("--seq {}: {} is made for at most the {} positions", *options.seq, options.model,
                                  config.max_positions));
  }
  plan::ModelShape shape = models::shape_of(config, name_of_file(options.model, models::family_name(config.family)));
  shape.deferred_init = false;  // whatever program trains it
  return shape;
}

/// A preset with what overrides it, or sizes alone.
plan::ModelShape read_gpt(const PlanOptions& options) {
  constexpr std::int64_t kHeadDim = 64;
  if (options.preset || (!options.layers && !options.dim)) {
    const TrainPlan chosen = choose_model(options);
    GPTOptions gpt = gpt_options(chosen);
    gpt.vocab = options.vocab.value_or(gpt.vocab);
    plan::ModelShape shape = gpt_shape(gpt, chosen.preset);
    shape.deferred_init = true;  // as `zero train` does
    return shape;
  }
  if (!options.layers || !options.dim) throw ConfigError("--layers and --dim: give both, or a --preset");
  plan::Transformer sizes;
  sizes.layers = *options.layers;
  sizes.dim = *options.dim;
  sizes.heads = options.heads.value_or(std::max<std::int64_t>(1, sizes.dim / kHeadDim));
  sizes.seq = options.seq.value_or(1024);
  sizes.vocab = options.vocab.value_or(sizes.vocab);
  return plan::transformer(sizes, "gpt");
}

plan::ModelShape read_model(const PlanOptions& options) {
  const std::int64_t every = options.recompute_every.value_or(0);  // 0: no block is recomputed
  const int sources = options.preset.has_value() + !options.model.empty() + !options.parameters.empty();
  if (sources > 1) throw ConfigError("--preset, --model and --parameters: give one of them");
  if (!options.parameters.empty()) {
    if (names_sizes(options) || options.seq) {
      throw ConfigError("--parameters: knows no sizes; leave --layers, --dim, --heads, --seq and --vocab away");
    }
    if (options.unfused_attention || every > 0) {
      throw ConfigError(fmt::format("{}: is of activations, which --parameters knows nothing of; leave it away",
                                    options.unfused_attention ? "--unfused-attention" : "--recompute"));
    }
    const std::int64_t numel = parse_count("--parameters", options.parameters);
    if (numel < 1) throw ConfigError("--parameters: got 0, want a model with some");
    return plan::model_of_numel(numel);
  }
  plan::ModelShape model = options.model.empty() ? read_gpt(options) : read_file(options);
  if (options.seq) model.transformer->seq = *options.seq;
  if (!options.recompute_keep.empty() && every == 0)
    throw ConfigError("--recompute-keep: no block is recomputed; give --recompute N, too");
  model.transformer->checkpointing = every > 0;
  model.transformer->checkpoint_every = std::max<std::int64_t>(1, every);
  model.transformer->kept = kept_results(options.recompute_keep);
  if (options.unfused_attention) model.transformer->fused_attention = false;
  return model;
}

/// True for the models of `zero train`.
bool is_ours(const PlanOptions& options) { return options.model.empty() && options.parameters.empty(); }

Config read_config(const PlanOptions& options, const plan::ModelShape& model, int ranks) {
  Config config = !options.config.empty() ? Config::from_file(options.config)
                  : is_ours(options)
                      ? Config::from_text(builtin_config(TrainOptions{}, model.transformer->dim, ranks))
                      : Config::from_text(R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})");
  if (!options.dtype.empty()) {
    config.bf16.enabled = options.dtype == "bf16";
    config.fp16.enabled = options.dtype == "fp16";
  }
  using Store = Config::Zerotorch::Store;
  if (!options.store.empty()) {
    config.zerotorch.store = options.store == "auto"      ? Store::kAuto
                             : options.store == "copying" ? Store::kCopying
                                                          : Store::kNodeShared;
  }
  if (options.batch_size) {
    config.train_batch_size = *options.batch_size;
    if (config.train_micro_batch_size_per_gpu > 0) config.gradient_accumulation_steps = 0;
  }
  if (!options.nvme.empty()) {
    auto& states = config.zero_optimization.offload_optimizer;
    states.device = Config::OffloadDevice::kNvme;
    states.nvme_path = options.nvme;
  }
  if (options.micro_batch) {
    config.train_micro_batch_size_per_gpu = *options.micro_batch;
    // The global batch stays, when there is one; the number of micro-batches follows.
    if (config.train_batch_size > 0) config.gradient_accumulation_steps = 0;
  }
  return config;
}

std::int64_t read_size(const char* option, const std::string& text) {
  const std::int64_t nbytes = parse_nbytes(option, text);
  if (nbytes > 0) return nbytes;
  throw ConfigError(fmt::format("{}: got '{}', want a size such as 24GiB", option, text));
}

std::int64_t read_memory(const PlanOptions& options) {
  if (!options.memory.empty()) return read_size("--memory", options.memory);
  if (const std::int64_t available = available_memory_nbytes(); available > 0) return available;
  throw ConfigError("--memory: this host does not say how much is free; give it");
}

plan::Cluster read_machines(const PlanOptions& options) {
  constexpr int kDefaultRanks = 2;
  plan::Cluster cluster;
  if (!options.cluster.empty()) cluster = read_cluster(options.cluster);
  if (options.ranks || options.cluster.empty()) cluster.ranks = options.ranks.value_or(kDefaultRanks);
  if (options.ranks_per_node) cluster.ranks_per_node = *options.ranks_per_node;
  if (!options.gpu_memory.empty()) {
    cluster.gpus = true;
    cluster.gpu_memory_nbytes = read_size("--gpu-memory", options.gpu_memory);
  }
  // This host says nothing about those of a cluster.
  const bool are_others = cluster.gpus || !options.cluster.empty();
  if (!options.memory.empty() || !are_others) cluster.node_memory_nbytes = read_memory(options);
  if (!options.bandwidth.empty()) cluster.bandwidth_nbytes_per_s = parse_bandwidth("--bandwidth", options.bandwidth);
  return cluster;
}

/// Programs take a module to GPUs unit by unit (InitializeOptions::device).
void plan_for_gpus(PlanRequest& request) {
  using Store = Config::Zerotorch::Store;
  if (request.config.zerotorch.store == Store::kNodeShared) {
    throw ConfigError("--store: 'node_shared' is for modules on the CPU; GPUs have 'copying'");
  }
  request.config.zerotorch.store = Store::kCopying;
  request.model.deferred_init = true;
}

}  // namespace

void add_plan_options(CLI::App& command, PlanOptions& options) {
  std::vector<OptionRow> rows;
  const auto add = [&](const char* group, std::vector<OptionRow> more) {
    for (OptionRow& row : more) {
      row.group = group;
      rows.push_back(std::move(row));
    }
  };
  const auto of_train = [&](const std::vector<Picked>& wanted) { return pick(train_rows(options), wanted); };
  add("Model", of_train({{"--preset", "a GPT of `zero train` (default gpt-11m)"},
                         {"--model", "a Hugging Face folder or config.json, as of `zero train`"},
                         {"--layers", "blocks; with --dim alone: a GPT of these sizes"},
                         {"--dim", "width"},
                         {"--heads", "attention heads (default: dim / 64)"},
                         {"--seq", "tokens of a sample; with --model the file's longest"}}));
  add("Model", {{"--vocab", &options.vocab, whole(1), "vocabulary (default 256: bytes)"},
                {"--parameters", &options.parameters, count_text(), "only their number, such as 7.5e9 or 7.5B"},
                {"--unfused-attention", &options.unfused_attention, Values{},
                 "the model keeps the scores of every head for backward"}});
  add("Model", of_train({{"--recompute"}, {"--recompute-keep"}}));
  add("Training", of_train({{"--config", "DeepSpeed JSON; default: that of `zero train`, else bf16"},
                            {"--dtype", "overrides the configuration"},
                            {"--store"},
                            {"--micro-batch", "samples per rank at once; overrides the configuration"},
                            {"--batch-size", "samples of an optimizer step; overrides the configuration"},
                            {"--nvme"}}));
  add("Training",
      {{"--stages,--stage", &options.stages, {"N,...", whole(0, 3).check}, "ZeRO stages to plan (default 0,1,2,3)"}});
  add("Machines", of_train({{"--ranks", "ranks in all (default: 2, or as many as --cluster has)"},
                            {"--memory", "of each host, such as 24GiB or 32GB (default: free on this one)"},
                            {"--gpu-memory",
                             "of the GPU that each rank has, such as 80GB; --memory is then of their hosts (default: "
                             "not judged)"}}));
  add("Machines",
      {{"--ranks-per-node", &options.ranks_per_node, whole(1, 1'000'000), "ranks on each host (default: all on one)"},
       {"--bandwidth", &options.bandwidth, rate_text(), "that each rank receives at, such as 100Gbit/s"},
       {"--cluster", &options.cluster, Values{"FILE"},
        "memory and speeds of machines (JSON); the options above override what it says"}});
  add("Output", of_train({{"--json", "for programs"}}));
  add_options(command, rows);
  command.footer(
      "Examples:\n"
      "  zero plan --preset gpt-1b -n 2               on this machine\n"
      "  zero plan --model config.json -n 64 --ranks-per-node 8 --memory 512GiB\n"
      "  zero plan --model config.json -n 8 --gpu-memory 80GB\n"
      "  zero plan --model config.json --cluster cluster.json\n"
      "  zero plan --parameters 7.5e9 -n 64 --config ds_config.json --json\n"
      "Exit code: 0 it fits, 3 it does not, 2 bad input.");
}

PlanRequest read_plan_options(const PlanOptions& options) {
  PlanRequest request;
  request.model = read_model(options);
  request.seq_of_file = !options.model.empty() && !options.seq;
  request.cluster = read_machines(options);
  request.config = read_config(options, request.model, request.cluster.ranks);
  request.stages = options.stages;
  if (request.stages.empty()) request.stages = {0, 1, 2, 3};
  std::sort(request.stages.begin(), request.stages.end());
  request.stages.erase(std::unique(request.stages.begin(), request.stages.end()), request.stages.end());
  const int configured = request.config.zero_optimization.stage;
  const bool planned = std::find(request.stages.begin(), request.stages.end(), configured) != request.stages.end();
  if (!options.config.empty() && planned) request.asked_stage = configured;
  if (request.cluster.gpus) plan_for_gpus(request);
  return request;
}

}  // namespace zero::app
