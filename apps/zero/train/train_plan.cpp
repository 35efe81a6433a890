#include "train/train_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "host/host_facts.h"
#include "host/machine_speed.h"
#include "host/rank_device.h"
#include "model/corpus_choice.h"
#include "model/token_text.h"
#include "model/tokenizer.h"
#include "plan/plan_fit.h"
#include "runs/run_folder.h"
#include "text/console.h"
#include "text/progress.h"
#include "text/text_format.h"
#include "train/train_config.h"
#include "zero/errors.h"
#include "zero/lm/data.h"
#include "zero/lm/lora.h"
#include "zero/lm/models.h"
#include "zero/train.h"

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

std::string describe_training(const TrainPlan& plan, const Config& config, int ranks) {
  const std::int64_t tokens = plan.steps * config.train_batch_size * plan.seq;
  const std::string epochs =
      tokens > plan.train_tokens
          ? fmt::format(" ({:.1f} epochs)", static_cast<double>(tokens) / static_cast<double>(plan.train_tokens))
          : "";
  const std::string clipping =
      config.gradient_clipping > 0 ? fmt::format(", clipping at {:g}", config.gradient_clipping) : "";
  return hanging("training", fmt::format("{} of {} ({} x micro-batch {} x accumulation {}), {} tokens{}; {}, "
                                         "ZeRO stage {}, {}, learning rate {:g}{}",
                                         counted(plan.steps, "step"), counted(config.train_batch_size, "sequence"),
                                         counted(ranks, "rank"), config.train_micro_batch_size_per_gpu,
                                         config.gradient_accumulation_steps, human_count(static_cast<double>(tokens)),
                                         epochs, dtype_name(config.param_dtype()), config.zero_optimization.stage,
                                         config.optimizer.type, config.optimizer.lr, clipping)) +
         (plan.separator < 0
              ? ""
              : fmt::format("           documents, which token {} separates, do not see each other\n", plan.separator));
}

std::string tensorboard_folder(const Config& config, const std::string& run_folder) {
  namespace fs = std::filesystem;
  if (!config.tensorboard.enabled) return (fs::path(run_folder) / "tensorboard").string();
  const fs::path output =
      config.tensorboard.output_path.empty() ? fs::path("runs") : fs::path(config.tensorboard.output_path);
  return fs::absolute(output / config.tensorboard.job_name).lexically_normal().string();
}

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

void check_recompute(const TrainPlan& plan, const TrainOptions& options) {
  if (plan.recompute_every > 0) return;
  if (!options.nvme_activations.empty())
    throw ConfigError("--nvme-activations: is for what blocks keep that are computed again; give --recompute, too");
  if (plan.recompute_keep == KeptResults::kNone) return;
  throw ConfigError("--recompute-keep: keeps results of blocks that are computed again; give --recompute, too");
}

/// Standard input that cannot be learnt from is not kept.
CorpusInfo pack_given(const TrainOptions& options, const CorpusOptions& text, std::int64_t sequence_length) {
  try {
    return pack_and_check(text, sequence_length);
  } catch (const Error& error) {
    if (options.data != "-") throw;
    std::error_code ignored;
    std::filesystem::remove(text.source, ignored);
    // By the name that it was given.
    std::string said = error.what();
    const std::string file = text.source.string();
    if (const std::size_t at = said.find(file); at != std::string::npos)
      said.replace(at, file.size(), "standard input");
    throw ConfigError(fmt::format("--data -: {}", said));
  }
}

std::string absolute_or_empty(const std::string& path) {
  return path.empty() ? "" : std::filesystem::absolute(path).lexically_normal().string();
}

bool has_weights(const std::string& folder) {
  const std::filesystem::path path(folder);
  return std::filesystem::exists(path / "model.safetensors") ||
         std::filesystem::exists(path / "model.safetensors.index.json");
}

/// What would be lost, or read with what is there already.
void check_export(const std::string& folder, const TrainPlan& plan, const std::string& model) {
  namespace fs = std::filesystem;
  if (folder.empty()) return;
  std::error_code error;
  for (const std::string& from : {plan.init_from, model}) {
    if (!from.empty() && fs::equivalent(folder, from, error))
      throw ConfigError(fmt::format("--export {}: is where the model comes from; choose another folder", folder));
  }
  if (!plan.run_folder.empty() && fs::weakly_canonical(folder, error) == fs::weakly_canonical(plan.run_folder, error))
    throw ConfigError(fmt::format("--export {}: is the run's folder; choose another", folder));
  const bool adapters = !plan.lora.empty() && !plan.merge;
  if (adapters && fs::exists(fs::path(folder) / "config.json", error)) {
    throw ConfigError(fmt::format(
        "--export {}: holds a model, which would be read with the adapters; choose another folder", folder));
  }
  if (!adapters && fs::exists(fs::path(folder) / "adapter_config.json", error)) {
    throw ConfigError(fmt::format(
        "--export {}: holds adapters, with which the model would be read; choose another folder with --export",
        folder));
  }
}

/// What another run has exported is not to be had a second time.
void check_exports_nothing_over(const std::string& folder) {
  if (folder.empty()) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    throw ConfigError(fmt::format("--export {}: holds weights already ({}); choose another folder, or remove them",
                                  folder, entry.path().filename().string()));
  }
}

/// Made here, so that a place that cannot be written to is found before the training and not after it.
std::string export_folder(const TrainOptions& options) {
  namespace fs = std::filesystem;
  if (options.export_dir.empty()) return "";
  std::error_code error;
  fs::create_directories(options.export_dir, error);
  if (error || ::access(options.export_dir.c_str(), W_OK) != 0)
    throw ConfigError(fmt::format("--export {}: cannot be written to", options.export_dir));
  return absolute_or_empty(options.export_dir);
}

void print_head(const Console& console) {
  console.print(fmt::format("zerotorch {}, libtorch {}\n\n", zerotorch_version(), libtorch_version()));
}

/// How long it will take, and what to do about it where that is long. On the CPU of this host; else "".
std::string describe_its_time(const TrainPlan& plan, const Config& config) {
  if (plan.device != "cpu") return "";
  const std::int64_t steps = plan.steps - plan.begins_at;
  const std::int64_t validations = 1 + (plan.eval_every > 0 ? steps / plan.eval_every : 1);
  constexpr std::int64_t kValidationSequences = 8;
  const std::string sooner = fmt::format(
      "fewer --steps, {}, or --max-minutes 10 end it sooner; Ctrl-C saves a checkpoint, from which "
      "--resume goes on",
      plan.model.empty() ? "a smaller --preset" : "a smaller --batch-size or --seq");
  return describe_time(config, plan.ranks,
                       {.model = {plan.parameters_numel, plan.layers, plan.dim, plan.seq, plan.recompute_every},
                        .steps = steps,
                        .validated = validations * plan.eval_batches * kValidationSequences},
                       plan.max_minutes > 0 ? "" : sooner);
}

void print_tail(const Console& console, const TrainPlan& plan, const Config& config, const std::string& about_memory) {
  console.print(describe_model(plan) + describe_training(plan, config, plan.ranks));
  if (console.enabled()) console.print(describe_its_time(plan, config));
  console.print(fmt::format("run        {}{}\n", short_path(plan.run_folder),
                            plan.resume    ? ", goes on"
                            : plan.restart ? ", starts over"
                                           : ""));
  for (const std::string& notice : config.notices) console.print(hanging("config", notice));
  if (const int gpus = visible_gpus(); gpus > 0 && plan.device == "cpu" && libtorch_has_cuda()) {
    console.print(fmt::format("device     the CPU; --device cuda trains on the host's GPU{}\n", gpus == 1 ? "" : "s"));
  }
  console.print(about_memory + "\n");
}

/// The folder whose tokenizer makes tokens of text for the plan's model; empty: bytes are its tokens. Throws
/// ConfigError where there is none, and weights have learnt from what it made.
std::string tokenizer_for(const TrainPlan& plan, const TrainOptions& options) {
  if (plan.model.empty()) return "";
  for (const std::string* from : {&options.init_from, &options.model})
    if (has_tokenizer(*from)) return absolute_or_empty(*from);
  if (!plan.init_from.empty() && causal_lm_config(plan).vocab > kLargestOfBytes) {
    throw ConfigError(fmt::format(
        "--init-from {0}: has no tokenizer.json to make tokens of the text with, and bytes are not what its "
        "weights know; bring its tokenizer there, or give tokens with --data (docs/models.md)",
        options.init_from));
  }
  return "";
}

/// What the ranks read: `text`, or the tokens of it.
CorpusOptions corpus_of(const CorpusOptions& text, const TrainPlan& plan) {
  return plan.text_tokenizer.empty() ? text : tokenized(text, plan.text_tokenizer);
}

/// The packed text of a run that goes on: still there, or packed again to the same bytes.
void find_text_again(TrainPlan& plan) {
  std::error_code error;
  // What a mixture is says its file; and it may be gone, as any text.
  const bool may_be_mixture = plan.data.ends_with(".json") && std::filesystem::exists(plan.data, error);
  try {
    const bool is_same = !may_be_mixture && Corpus(plan.corpus_folder, Split::kTrain).hash() == plan.corpus_hash;
    if (is_same && is_packed_well(plan.corpus_folder)) return;
  } catch (const IoError&) {  // the cache was emptied
  }
  if (!plan.data.empty() && !std::filesystem::exists(plan.data, error)) {
    throw ConfigError(fmt::format("--resume: the text {} that the run {} learns from is not there; bring it back",
                                  plan.data, plan.run_folder));
  }
  const CorpusInfo corpus =
      pack_and_check(corpus_of(choose_corpus(plan.data, plan.cache_dir, plan.suffixes), plan), plan.seq);
  if (corpus.hash != plan.corpus_hash) {
    throw ConfigError(
        fmt::format("--resume: the text {} is not what the run {} learnt from; bring it back, or start a new run",
                    corpus.source, plan.run_folder));
  }
  plan.corpus_folder = corpus.folder.string();
}

/// Whether somebody has changed what the run's folder says of its configuration.
bool config_was_edited(const TrainPlan& plan) {
  std::ifstream file(plan.run_folder + "/config.json");
  const auto there = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return !there.is_discarded() && there != nlohmann::json::parse(plan.config);
}

}  // namespace

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

namespace {

/// Everything that is chosen by what the tokens are.
void take_tokens(TrainPlan& plan, const TrainOptions& options, const CorpusInfo& corpus) {
  plan.train_tokens = corpus.train_tokens();
  plan.baseline_nats = corpus.validation_unigram_entropy_nats;
  plan.token_nbytes = corpus.tokens.nbytes;
  plan.text_nbytes = corpus.tokens.text_nbytes;
  plan.token_pieces = corpus.tokens.pieces;
  plan.tokenizer = corpus.tokens.tokenizer;
  plan.separator = separator_for(plan, options, corpus);
  check_vocabulary(plan, corpus);
  if (corpus.tokens.nbytes == 1) return;
  if (!options.prompt.empty()) {
    throw ConfigError(
        "--prompt: tokens of a prompt are its tokenizer's to make; without it samples continue the validation text");
  }
  constexpr std::int64_t kDefaultLength = 64;  // a token is several bytes
  plan.sample_length = options.sample_length.value_or(plan.token_pieces.empty() ? 0 : kDefaultLength);
  if (plan.sample_length > 0 && plan.token_pieces.empty()) {
    throw ConfigError(
        fmt::format("--sample-length: nobody here knows the text of the tokens in {}: there is no "
                    "pieces.json, which python -m zerotorch.tokenize writes",
                    corpus.source));
  }
}

}  // namespace

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

CorpusInfo pack_only(const TrainOptions& options) {
  TrainPlan plan = choose_model(options);
  const CorpusOptions text = choose_corpus(options.data, options.cache_dir, options.suffixes);
  if (has_text(text)) plan.text_tokenizer = tokenizer_for(plan, options);
  CorpusInfo corpus = pack_and_check(corpus_of(text, plan), 0);
  corpus.source = text.source.string();
  return corpus;
}

TrainPlan prepare_run(TrainOptions options, Ranks ranks, const std::string& command_line) {
  choose_run_size(options, ranks.world_size);
  TrainPlan plan = choose_model(options);
  plan.ranks = ranks.world_size;
  check_device(plan.device);
  Config config = make_config(options, plan.dim, ranks.world_size);
  if (options.separate_documents) plan.separator = 0;  // until the tokens are known
  const std::string about_memory = fit_or_check(plan, config, options, ranks, /*goes_on=*/false);
  check_recompute(plan, options);
  plan.config = config.to_json();
  plan.seed = *config.zerotorch.seed;
  plan.steps = options.steps.value_or(kDefaultSteps);
  plan.eval_every = options.eval_every.value_or(std::max<std::int64_t>(1, (plan.steps + 3) / 4));
  plan.prompt = unescape(options.prompt.empty() ? kDefaultPrompt : options.prompt);
  plan.sample_length = options.sample_length.value_or(kDefaultSampleLength);
  plan.export_folder = export_folder(options);
  if (plan.merge && plan.export_folder.empty())
    throw ConfigError("--merge: is of the model that --export writes; give its folder");
  check_export(plan.export_folder, plan, options.model);
  check_exports_nothing_over(plan.export_folder);
  plan.cache_dir = absolute_or_empty(options.cache_dir);

  const Console console(!plan.quiet);
  Progress progress(console, 0, 0);
  progress.busy("reading the text ...");
  const auto start = std::chrono::steady_clock::now();
  const CorpusOptions text = choose_corpus(options.data, options.cache_dir, plan.suffixes);
  if (has_text(text)) plan.text_tokenizer = tokenizer_for(plan, options);
  CorpusInfo corpus = pack_given(options, corpus_of(text, plan), plan.seq);
  corpus.source = text.source.string();
  const std::chrono::duration<double> packing = std::chrono::steady_clock::now() - start;
  progress.finish();
  // Standard input has become a file.
  plan.data = options.data == "-" ? text.source.string() : absolute_or_empty(options.data);
  plan.corpus_folder = corpus.folder.string();
  plan.corpus_hash = corpus.hash;
  take_tokens(plan, options, corpus);
  if (!options.run_dir.empty()) {
    plan.run_folder = std::filesystem::absolute(options.run_dir).string();
    check_export(plan.export_folder, plan, options.model);
  }
  plan.run_folder = make_run_folder(options.run_dir, plan.preset).string();
  if (!options.no_tensorboard) plan.tensorboard_folder = tensorboard_folder(config, plan.run_folder);
  plan.command_line = command_line;
  write_start(plan);

  print_head(console);
  console.print(describe_corpus(corpus, packing.count()));
  print_tail(console, plan, config, about_memory);
  return plan;
}

namespace {

/// Of a configuration: after how many steps its schedule has come to its end; 0: it has none that ends.
std::int64_t steps_of_schedule(const std::string& config) {
  const auto json = nlohmann::json::parse(config);
  const nlohmann::json::json_pointer steps("/scheduler/params/total_num_steps");
  return json.contains(steps) && json[steps].is_number() ? json[steps].get<std::int64_t>() : 0;
}

}  // namespace

TrainPlan prepare_resume(const TrainOptions& options, std::optional<Ranks> ranks, const std::string& command_line) {
  const std::filesystem::path folder = find_run_folder(options.run_dir);
  TrainPlan plan = read_plan(folder);
  // A run that was moved takes its event files with it.
  if (plan.tensorboard_folder.starts_with(plan.run_folder + "/")) {
    plan.tensorboard_folder.replace(0, plan.run_folder.size(), folder.string());
  }
  plan.run_folder = folder.string();
  if (ranks) plan.ranks = ranks->world_size;
  take_options(plan, options, /*is_new=*/false);
  check_device(plan.device);
  if (options.resume) check_can_go_on(plan.run_folder);
  const FoundRun found = find_run(plan.run_folder);
  if (options.resume && options.steps && *options.steps < saved_steps(found)) {
    throw ConfigError(fmt::format("--steps {}: the run has done {} already; it goes on with more than that",
                                  *options.steps, counted(saved_steps(found), "step")));
  }
  if (options.merge && plan.lora.empty()) throw ConfigError("--merge: the run has no adapters");
  if (!options.export_dir.empty()) {
    if (plan.model.empty()) throw ConfigError("--export: the run's model is not one of Hugging Face's shapes");
    plan.export_folder = export_folder(options);
  }
  check_export(plan.export_folder, plan, "");
  plan.goes_on = plan.resume && !found.checkpoints.empty();
  plan.begins_at = plan.goes_on ? saved_steps(found) : 0;
  const bool was_edited = config_was_edited(plan);
  Config config = resume_config(plan.config, options, plan.ranks);
  const std::string about_memory = fit_or_check(
      plan, config, options, {.world_size = plan.ranks, .per_node = ranks ? ranks->per_node : 0}, /*goes_on=*/true);
  check_recompute(plan, options);
  plan.config = config.to_json();
  find_text_again(plan);
  plan.command_line = command_line;
  const Console console(!plan.quiet);
  print_head(console);
  print_tail(console, plan, config, about_memory);
  if (was_edited) {
    console.print(
        "resume     config.json in the run's folder was changed, which has no effect: it says what the\n"
        "           run is trained with. --config FILE of a new run takes another one\n");
  }
  if (plan.goes_on && saved_steps(found) >= plan.steps) {
    const std::string done = fmt::format("the run has its {} already; --steps N, more than that, goes on",
                                         counted(saved_steps(found), "step"));
    console.print(hanging("resume", done));
    if (!console.enabled()) print_error(fmt::format("zero train: warning: {}\n", done));
  } else if (const std::int64_t end = steps_of_schedule(plan.config); plan.goes_on && end > 0 && plan.steps > end) {
    console.print(hanging("resume", fmt::format("the schedule ends after {}: from there on the learning rate stays as "
                                                "it is then, {:.3g}",
                                                counted(end, "step"), plan::learning_rate_at(config, end))));
  }
  return plan;
}

}  // namespace zero::app
