// What a run decides before its ranks exist.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

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
#include "train/train_plan.h"
#include "zero/errors.h"
#include "zero/train.h"

namespace zero::app {
namespace {

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

/// Throws CheckpointError, with what to do, for a run that cannot go on as it is: its last checkpoint is gone, or it
/// never had one. Changes nothing.
void check_can_go_on(const std::string& folder) {
  const FoundRun found = find_run(folder);
  std::string problem = found.problem;
  if (problem.empty() && found.is_fresh()) {
    if (read_run_json(folder, kSummary).value("diverged", false)) {
      throw CheckpointError(
          fmt::format("--resume: the run in '{}' diverged at step {}, before its first checkpoint: there is nothing to "
                      "go on from, and the same would happen again. Start a new one, with a smaller --lr",
                      folder, found.recorded_steps));
    }
    const std::string end = found.recorded_steps > 0 ? fmt::format("at step {}, ", found.recorded_steps) : "";
    problem = fmt::format(
        "the run in '{}' has no checkpoint; it ended {}before its first one, or they were "
        "removed: there is nothing to go on from",
        folder, end);
  }
  constexpr std::string_view kSaidBelow = ", or start the run over";
  if (problem.ends_with(kSaidBelow)) problem.resize(problem.size() - kSaidBelow.size());
  if (!problem.empty()) throw CheckpointError(fmt::format("--resume: {}.{}", problem, restart_hint(folder)));
}

/// Of a configuration: after how many steps its schedule has come to its end; 0: it has none that ends.
std::int64_t steps_of_schedule(const std::string& config) {
  const auto json = nlohmann::json::parse(config);
  const nlohmann::json::json_pointer steps("/scheduler/params/total_num_steps");
  return json.contains(steps) && json[steps].is_number() ? json[steps].get<std::int64_t>() : 0;
}

}  // namespace

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
