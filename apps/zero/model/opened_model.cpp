#include "model/opened_model.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "host/rank_device.h"
#include "model/tokenizer.h"
#include "text/text_format.h"
#include "zero/checkpoint.h"
#include "zero/config.h"
#include "zero/errors.h"
#include "zero/lm/lora.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDtypes[] = {"fp32", "bf16", "fp16"};

std::string dtype_of_folder(const TrainPlan& plan) {
  const auto json = nlohmann::json::parse(plan.model);
  const std::string said = json.value("dtype", json.value("torch_dtype", std::string("float32")));
  return said == "bfloat16" ? "bf16" : said == "float16" ? "fp16" : "fp32";
}

OpenedModel open_folder(const fs::path& path) {
  TrainOptions options;
  options.init_from = path.string();
  OpenedModel opened{.plan = choose_model(options), .checkpoint = {}, .adapters = {}, .dtype = {}};
  opened.dtype = dtype_of_folder(opened.plan);
  return opened;
}

OpenedModel open_adapters(const fs::path& path) {
  const std::string text = (path / "adapter_config.json").string();
  const models::LoraOptions lora = models::read_lora(text);
  std::error_code error;
  // As given, or beside the adapters.
  fs::path base = lora.base;
  if (!fs::exists(base / "config.json", error) && base.is_relative()) base = path / base;
  if (lora.base.empty() || !fs::exists(base / "config.json", error)) {
    throw ConfigError(fmt::format(
        "{}: the model of the adapters, base_model_name_or_path '{}', is no folder here with a config.json; write "
        "there where it is",
        text, lora.base));
  }
  OpenedModel opened = open_folder(base);
  opened.plan.lora = models::to_json(lora, causal_lm_config(opened.plan).family);
  opened.adapters = path.string();
  return opened;
}

/// `folder`: of checkpoints of the run. `tag`: of one of them; empty: the newest that is whole.
OpenedModel open_run(const fs::path& run, const fs::path& folder, const std::string& tag) {
  OpenedModel opened{.plan = read_plan(run), .checkpoint = {}, .adapters = {}, .dtype = {}};
  std::string problems;
  for (const checkpoint::Summary& one : checkpoint::list(folder.string())) {
    if (!tag.empty() && fs::path(one.folder).filename() != tag) continue;
    if (!one.complete) problems += fmt::format("; {}: {}", one.tag, one.problem);
    if (!one.complete || (!opened.checkpoint.empty() && one.global_steps < opened.steps)) continue;
    opened.checkpoint = one.folder;
    opened.steps = one.global_steps;
  }
  if (opened.checkpoint.empty())
    throw CheckpointError(fmt::format("{}: the run has no checkpoint to take its weights from{}",
                                      (tag.empty() ? run : folder / tag).string(), problems));
  opened.dtype = dtype_name(Config::from_text(opened.plan.config, "configuration of the run").param_dtype());
  return opened;
}

}  // namespace

void add_model_command(CLI::App& command, ModelArguments& arguments, const std::string& ranks,
                       std::vector<OptionRow> own, std::function<void()> run) {
  std::vector<OptionRow> rows = {
      {"model", &arguments.model, Values{"MODEL"},
       "a Hugging Face folder, one of adapters, the folder of a run of zero train, or a checkpoint in one"},
      {"-n,--ranks", &arguments.ranks, whole(1), ranks},
      {"--dtype", &arguments.dtype, choice("fp32|bf16|fp16"), "of parameters and activations (default: the model's)"},
      {"--device", &arguments.device, device_name(),
       "what ranks compute on: cpu, or cuda, of whose GPUs each takes one"},
      {"--as-rank", &arguments.as_rank, Values{}, "this process is one of them", ""}};
  std::ranges::move(own, std::back_inserter(rows));
  add_options(command, rows);
  command.callback([&arguments, run = std::move(run)] {
    if (arguments.model.empty() && !arguments.as_rank) throw CLI::RequiredError("model");
    run();
  });
}

bool OpenedModel::takes_bytes() const {
  if (is_run()) return plan.token_nbytes == 1;
  const std::int64_t vocab = causal_lm_config(plan).vocab;
  return vocab >= 256 && vocab <= kLargestOfBytes && !has_tokenizer(tokenizer_folder());
}

OpenedModel open_model(const ModelArguments& arguments) {
  const std::string &path = arguments.model, &dtype = arguments.dtype;
  const fs::path folder = fs::absolute(path).lexically_normal();
  const fs::path named = folder.filename().empty() ? folder.parent_path() : folder;
  std::error_code error;
  check_device(arguments.device);
  OpenedModel opened;
  if (fs::exists(named / "plan.json", error)) {
    opened = open_run(named, named / "checkpoints", "");
  } else if (fs::exists(named.parent_path() / "plan.json", error) && fs::is_directory(named, error) &&
             !checkpoint::list(named.string()).empty()) {
    opened = open_run(named.parent_path(), named, "");
  } else if (fs::exists(named.parent_path().parent_path() / "plan.json", error)) {
    opened = open_run(named.parent_path().parent_path(), named.parent_path(), named.filename().string());
  } else if (fs::exists(named / "metrics.jsonl", error)) {
    throw ConfigError(
        fmt::format("'{}' is the folder of a run without its plan.json, which says what the model is", path));
  } else if (fs::exists(named / "adapter_config.json", error)) {
    opened = open_adapters(named);
  } else if (fs::exists(named / "config.json", error)) {
    opened = open_folder(named);
  } else {
    throw ConfigError(
        fmt::format("'{}' is no model: want a Hugging Face folder (config.json and weights) or one of adapters, the "
                    "folder of a run of {} train, or a checkpoint in one",
                    path, program_name()));
  }
  if (!dtype.empty()) opened.dtype = dtype;
  opened.plan.device = arguments.device;
  return opened;
}

std::string describe(const OpenedModel& model) {
  const TrainPlan& plan = model.plan;
  const std::string weights =
      model.is_run() ? fmt::format("after {}: {}", counted(model.steps, "step"), short_path(model.checkpoint))
                     : short_path(plan.init_from) +
                           (model.adapters.empty() ? "" : " with the adapters of " + short_path(model.adapters));
  return hanging("model", fmt::format("{}: {} parameters, {}; {}", plan.preset,
                                      human_count(static_cast<double>(plan.parameters_numel)), model.dtype, weights));
}

LoadedModel load(const OpenedModel& opened, Group group) {
  nlohmann::json json = {{"train_micro_batch_size_per_gpu", 1}, {"zero_optimization", {{"stage", 3}}}};
  if (opened.dtype != kDtypes[0]) json[opened.dtype]["enabled"] = true;
  const Config config = Config::from_text(json.dump(), "configuration");
  LanguageModel model = LanguageModel::without_values(opened.plan, device_of_rank(opened.plan.device, group));
  Engine engine = model.initialize(config, {.group = std::move(group), .evaluation_only = true});
  if (opened.checkpoint.empty()) {
    model.load_weights(engine, opened.plan.init_from);
    if (!opened.adapters.empty()) model.load_adapters(engine, opened.adapters);
  } else {
    const fs::path checkpoint = opened.checkpoint;
    engine.load_checkpoint(checkpoint.parent_path().string(), checkpoint.filename().string());
  }
  model.eval();
  return {std::move(model), std::move(engine)};
}

}  // namespace zero::app
