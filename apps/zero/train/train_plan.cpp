#include "train/train_plan.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "host/host_facts.h"
#include "model/token_text.h"
#include "model/tokenizer.h"
#include "runs/run_folder.h"
#include "text/text_format.h"
#include "zero/errors.h"
#include "zero/lm/data.h"
#include "zero/lm/lora.h"
#include "zero/lm/models.h"

namespace zero {
NLOHMANN_JSON_SERIALIZE_ENUM(KeptResults, {{KeptResults::kNone, "none"},
                                           {KeptResults::kAttention, "attention"},
                                           {KeptResults::kProducts, "products"}})
}

namespace zero::app {

namespace {

constexpr const char* kPlan = "plan.json";
constexpr const char* kEnvironment = "environment.json";

/// Calls `see` with the name and the value of each field that goes to ranks and into plan.json.
template <class Plan, class See>
void for_each_field(Plan& plan, const See& see) {
#define ZERO_OPTION(when, group, type, name, ...) ZERO_IF_PLAN(when, see(#name, plan.name);)
#define ZERO_FACT(type, name, value, meaning) see(#name, plan.name);
  ZERO_TRAIN_OPTIONS(ZERO_OPTION)
  ZERO_PLAN_FACTS(ZERO_FACT)
#undef ZERO_OPTION
#undef ZERO_FACT
}

template <class T>
void take(T& planned, const std::optional<T>& given) {
  if (given) planned = *given;
}
template <class T>
void take(T& planned, const T& given) {
  if constexpr (requires { given.empty(); }) {
    if (given.empty()) return;
  }
  planned = given;
}

/// What the options say of a run, or of another start of it.
}  // namespace

void take_options(TrainPlan& plan, const TrainOptions& options, bool is_new) {
#define ZERO_TAKE(when, group, type, name, ...) \
  ZERO_IF_PLAN(when, bool takes_##name = true;  \
               ZERO_IF_NEW(when, takes_##name = is_new;) if (takes_##name) take(plan.name, options.name);)
  ZERO_TRAIN_OPTIONS(ZERO_TAKE)
#undef ZERO_TAKE
  plan.quiet = options.quiet || options.json;
  plan.resume = options.resume.has_value();
  plan.restart = options.restart.has_value();
  if (plan.recompute_every == 0) plan.recompute_keep = KeptResults::kNone;
  if (!options.recompute_keep.empty()) plan.recompute_keep = kept_results(options.recompute_keep);
}

namespace {

std::string utc_now() {
  const time_t now = ::time(nullptr);
  tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  ::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void write_environment(const TrainPlan& plan) {
  nlohmann::ordered_json facts = host_facts();
  facts["run"] = {{"command_line", plan.command_line},
                  {"working_folder", std::filesystem::current_path().string()},
                  {"started_at", utc_now()},
                  {"ranks", plan.ranks},
                  {"corpus_folder", plan.corpus_folder},
                  {"corpus_hash", plan.corpus_hash}};
  // One entry for each start of the run; readers of old look at the last.
  const std::filesystem::path file = std::filesystem::path(plan.run_folder) / kEnvironment;
  std::ifstream before(file);
  const auto old = nlohmann::ordered_json::parse(before, nullptr, /*allow_exceptions=*/false);
  if ((plan.resume || plan.restart) && old.is_object()) {
    facts["earlier"] = old.value("earlier", nlohmann::ordered_json::array());
    facts["earlier"].push_back(old.value("run", nlohmann::ordered_json()));
  }
  write_run_json(plan.run_folder, kEnvironment, facts);
}

bool has_weights(const std::string& folder) {
  const std::filesystem::path path(folder);
  return std::filesystem::exists(path / "model.safetensors") ||
         std::filesystem::exists(path / "model.safetensors.index.json");
}

}  // namespace

std::string absolute_or_empty(const std::string& path) {
  return path.empty() ? "" : std::filesystem::absolute(path).lexically_normal().string();
}

TrainPlan read_plan(const std::filesystem::path& folder) {
  const std::string path = (folder / kPlan).string();
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  try {
    for (const char* needed : {"config", "run_folder", "corpus_hash", "steps", "layers"}) json.at(needed);
    auto plan = json.get<TrainPlan>();
    if (plan.device.empty()) plan.device = "cpu";
    if (plan.trained_numel == 0) plan.trained_numel = plan.parameters_numel;
    return plan;
  } catch (const nlohmann::json::exception&) {
    throw ConfigError(
        fmt::format("{} is not there or not a plan of this version: this run cannot go on or start over by "
                    "itself. Start a new one in "
                    "another folder; {} ckpt export {} DIR writes the weights of its last checkpoint",
                    path, program_name(), for_shell(folder.string())));
  }
}

std::string describe_model(const TrainPlan& plan) {
  if (!plan.model.empty()) {
    const models::CausalLMConfig config = causal_lm_config(plan);
    const std::string adapters =
        plan.lora.empty()
            ? ""
            : fmt::format(", and adapters of rank {}: {} parameters that are trained",
                          models::parse_lora(plan.lora).rank, human_count(static_cast<double>(plan.trained_numel)));
    const std::string weights = plan.init_from.empty()
                                    ? "random weights"
                                    : fmt::format("weights of {}{}", short_path(plan.init_from), adapters);
    return hanging(
        "model", fmt::format("{}: {} parameters in {} of width {}, {}, vocabulary of {}, "
                             "sequences of {} tokens; {}",
                             models::family_name(config.family),
                             human_count(static_cast<double>(plan.parameters_numel)), counted(config.layers, "layer"),
                             config.dim, counted(config.heads, "head"), with_commas(config.vocab), plan.seq, weights));
  }
  const GPTOptions preset = gpt_preset(plan.preset);
  const bool as_is =
      preset.layers == plan.layers && preset.dim == plan.dim && preset.heads == plan.heads && preset.seq == plan.seq;
  const std::string weights = plan.weights.empty() ? "" : "; weights of " + short_path(plan.weights);
  return hanging("model",
                 fmt::format("{}{}: {} parameters in {} of width {}, {}, context of {} bytes{}", plan.preset,
                             as_is ? "" : ", changed", human_count(static_cast<double>(plan.parameters_numel)),
                             counted(plan.layers, "layer"), plan.dim, counted(plan.heads, "head"), plan.seq, weights));
}

std::string tokenizer_of(const TrainPlan& plan) {
  return plan.tokenizer.empty() && has_tokenizer(plan.init_from) ? plan.init_from : plan.tokenizer;
}

std::string best_folder(const std::string& run_folder) { return run_folder + "/best"; }

GPTOptions gpt_options(const TrainPlan& plan) {
  GPTOptions model;
  model.layers = plan.layers;
  model.dim = plan.dim;
  model.heads = plan.heads;
  model.seq = plan.seq;
  model.recompute_every = plan.recompute_every;
  model.recompute_keep = plan.recompute_keep;
  model.separator = plan.separator;
  return model;
}

models::CausalLMConfig causal_lm_config(const TrainPlan& plan) {
  models::CausalLMConfig config = models::parse_config(plan.model);
  config.recompute_every = plan.recompute_every;
  config.recompute_keep = plan.recompute_keep;
  config.separator = plan.separator;
  return config;
}

plan::ModelShape causal_lm_shape(const TrainPlan& plan) {
  const models::CausalLMConfig config = causal_lm_config(plan);
  return plan.lora.empty() ? models::shape_of(config) : models::shape_of(config, models::parse_lora(plan.lora));
}

namespace {

/// What the options say of a new run.
TrainPlan plan_for(const TrainOptions& options) {
  TrainPlan plan;
  take_options(plan, options, /*is_new=*/true);
  if (plan.device.empty()) plan.device = "cpu";
  return plan;
}

/// Throws ConfigError for options of adapters where there are none.
void check_adapters(const TrainOptions& options) {
  if (options.lora_rank) return;
  if (options.lora_alpha || options.lora_dropout || !options.lora_targets.empty()) {
    throw ConfigError(
        "--lora-alpha, --lora-dropout and --lora-targets are of adapters; --lora RANK gives the model some");
  }
  if (options.merge) throw ConfigError("--merge: there are no adapters to merge; --lora RANK trains some");
}

/// adapter_config.json of the adapters that the options ask for; empty: none. Throws ConfigError.
std::string lora_of(const TrainOptions& options, models::CausalLMConfig::Family family) {
  if (!options.lora_rank) return "";
  if (options.init_from.empty())
    throw ConfigError("--lora: adapters change a model that has learnt something; give its folder with --init-from");
  const double rank = static_cast<double>(*options.lora_rank);
  return models::to_json({.rank = *options.lora_rank,
                          .alpha = options.lora_alpha.value_or(2 * rank),
                          .dropout = options.lora_dropout.value_or(0),
                          .targets = options.lora_targets,
                          .base = absolute_or_empty(options.init_from)},
                         family);
}

TrainPlan choose_causal_lm(const TrainOptions& options) {
  constexpr std::int64_t kDefaultSeq = 512;
  if (options.layers || options.dim || options.heads)
    throw ConfigError("--model: its config.json gives the sizes; of the other options only --seq goes with it");
  const std::string path = options.model.empty() ? options.init_from : options.model;
  const models::CausalLMConfig config = models::read_config(path);
  TrainPlan plan = plan_for(options);
  plan.model = models::to_json(config);
  plan.preset = models::family_name(config.family);
  plan.layers = config.layers;
  plan.dim = config.dim;
  plan.heads = config.heads;
  plan.seq = options.seq.value_or(std::min(config.max_positions, kDefaultSeq));
  if (plan.seq > config.max_positions) {
    throw ConfigError(
        fmt::format("--seq {}: {} is made for at most {} positions", plan.seq, path, config.max_positions));
  }
  plan.lora = lora_of(options, config.family);
  const plan::ModelShape shape = causal_lm_shape(plan);
  plan.parameters_numel = shape.numel();
  for (const auto& parameter : shape.parameters) plan.trained_numel += parameter.trainable ? parameter.numel : 0;
  plan.init_from = absolute_or_empty(options.init_from);
  if (!plan.init_from.empty() && !std::filesystem::is_directory(plan.init_from))
    throw ConfigError(fmt::format("--init-from {}: is not a folder", options.init_from));
  return plan;
}

}  // namespace

void check_vocabulary(const TrainPlan& plan, const CorpusInfo& corpus) {
  const std::int64_t vocab = plan.model.empty() ? GPTOptions().vocab : causal_lm_config(plan).vocab;
  if (corpus.tokens.largest >= vocab && corpus.tokens.nbytes > 1) {
    throw ConfigError(fmt::format(
        "{}: the largest token is {}, and the model's vocabulary has {}: these tokens are another tokenizer's{}",
        corpus.source, corpus.tokens.largest, vocab, plan.model.empty() ? "; give the model with --model" : ""));
  }
  if (vocab < 256 && corpus.tokens.nbytes == 1) {
    throw ConfigError(
        fmt::format("the model's vocabulary has {} tokens, and a byte of text can have 256 values; give "
                    "its tokens with --data (python -m zerotorch.tokenize)",
                    vocab));
  }
}

std::int64_t separator_for(const TrainPlan& plan, const TrainOptions& options, const CorpusInfo& corpus) {
  if (options.separator && !options.separate_documents)
    throw ConfigError("--separator: has an effect with --separate-documents only");
  if (!options.separate_documents) return -1;
  if (options.separator) {
    const std::int64_t vocab = plan.model.empty() ? GPTOptions().vocab : causal_lm_config(plan).vocab;
    if (*options.separator < vocab) return *options.separator;
    throw ConfigError(fmt::format("--separator {}: the model's vocabulary has {}", *options.separator, vocab));
  }
  if (corpus.tokens.nbytes == 1) return 0;
  const std::vector<std::int64_t> separator = separator_of(corpus.tokens.pieces);
  if (!separator.empty()) return separator.front();
  throw ConfigError(
      fmt::format("--separate-documents: {} does not say which token is between documents (tokens.json of python -m "
                  "zerotorch.tokenize does); give it with --separator (50256 is GPT-2's)",
                  corpus.source));
}

TrainPlan choose_model(const TrainOptions& options) {
  check_adapters(options);
  if (!options.model.empty() || !options.init_from.empty()) return choose_causal_lm(options);
  if (options.lora_rank)
    throw ConfigError("--lora: adapters are of a model in Hugging Face's shapes; give its folder with --init-from");
  if (!options.export_dir.empty())
    throw ConfigError(
        "--export: writes a Hugging Face folder, of a model that --model gives; zero ckpt export writes "
        "the weights of others");
  const std::string preset = options.preset.value_or(kDefaultPreset);
  GPTOptions model = gpt_preset(preset);
  model.layers = options.layers.value_or(model.layers);
  model.dim = options.dim.value_or(model.dim);
  model.heads = options.heads.value_or(model.heads);
  model.seq = options.seq.value_or(model.seq);
  if (model.dim % model.heads != 0) {
    throw ConfigError(
        fmt::format("model: dim {} is not a multiple of heads {}; change --dim or --heads", model.dim, model.heads));
  }
  TrainPlan plan = plan_for(options);
  plan.preset = preset;
  plan.layers = model.layers;
  plan.dim = model.dim;
  plan.heads = model.heads;
  plan.seq = model.seq;
  plan.parameters_numel = plan.trained_numel = gpt_numel(model);
  plan.weights = absolute_or_empty(options.weights);
  if (!plan.weights.empty() && !std::filesystem::exists(plan.weights))
    throw ConfigError(fmt::format("--weights {}: is not there", options.weights));
  if (std::filesystem::is_directory(plan.weights) && !has_weights(plan.weights)) {
    throw ConfigError(
        fmt::format("--weights {0}: has no model.safetensors; {1} ckpt export {0} DIR writes the weights of "
                    "a run or a checkpoint",
                    options.weights, program_name()));
  }
  return plan;
}

KeptResults kept_results(const std::string& name) { return nlohmann::json(name).get<KeptResults>(); }

void write_start(const TrainPlan& plan) {
  write_environment(plan);
  write_run_json(plan.run_folder, kPlan, nlohmann::json(plan));
}

std::string restart_hint(const std::string& run_folder) {
  return fmt::format(" To start it over: {} train --restart --run-dir {} (what is there is kept in {}/before.1)",
                     program_name(), for_shell(run_folder), short_path(run_folder));
}

void to_json(nlohmann::json& json, const TrainPlan& plan) {
  for_each_field(plan, [&](const char* name, const auto& value) { json[name] = value; });
}

void from_json(const nlohmann::json& json, TrainPlan& plan) {
  for_each_field(plan, [&](const char* name, auto& value) {
    if (json.contains(name)) json.at(name).get_to(value);
  });
}

}  // namespace zero::app
