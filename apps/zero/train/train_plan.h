#pragma once
// A run of `zero train` with everything decided: what the ranks get, as JSON, from whoever prepared it.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/train_options.h"
#include "zero/kept_results.h"
#include "zero/lm/causal_lm.h"
#include "zero/lm/data.h"
#include "zero/lm/models.h"

namespace zero::app {

/// What a plan has besides options; a row is X(type, name, default, meaning).
// clang-format off
#define ZERO_PLAN_FACTS(X) \
  X(int, ranks, 0, "") \
  X(std::string, preset, , "or the name of `model`") \
  X(std::string, model, , "its config.json; empty: the preset's GPT with the plan's sizes") \
  X(std::string, init_from, , "a folder with its weights; empty: random ones") \
  X(std::string, weights, , "of such a GPT, a file or a folder; empty: random ones") \
  X(std::string, export_folder, , "for its weights in the end; empty: none") \
  X(std::string, lora, , "adapter_config.json of the adapters that are trained in place of it; empty: none") \
  X(KeptResults, recompute_keep, , "as GPTOptions") \
  X(std::int64_t, separator, -1, "as GPTOptions") \
  X(std::int64_t, parameters_numel, 0, "all") \
  X(std::int64_t, trained_numel, 0, "those that are not frozen") \
  X(std::string, config, , "resolved, as JSON") \
  X(std::string, data, , "as given, absolute; empty: see choose_corpus()") \
  X(std::string, cache_dir, , "the same") \
  X(std::string, text_tokenizer, , "a folder, by which the text was made tokens here; empty: it was not") \
  X(std::string, corpus_folder, , "") \
  X(std::string, corpus_hash, , "") \
  X(std::int64_t, train_tokens, 0, "") \
  X(double, text_nbytes, 1, "of a token on average; 0: not known") \
  X(std::string, token_pieces, , "as TokenInfo's") \
  X(std::string, tokenizer, , "as TokenInfo's") \
  X(int, token_nbytes, 1, "1: tokens are bytes of text") \
  X(double, baseline_nats, 0, "unigram entropy of the validation split, per token") \
  X(std::string, run_folder, , "") \
  X(std::string, tensorboard_folder, , "empty: none") \
  X(std::int64_t, seed, 0, "") \
  X(bool, resume, false, "go on from the newest checkpoint of the run folder, if there is one") \
  X(bool, goes_on, false, "`resume`, and there is a checkpoint: it has the weights") \
  X(bool, restart, false, "start the run of the folder over") \
  X(std::string, command_line, , "of this start")
// clang-format on

/// A plan has what an optional option says, or what is chosen where it is not given.
template <class T>
struct Planned {
  using type = T;
};
template <class T>
struct Planned<std::optional<T>> {
  using type = T;
};

struct TrainPlan {
#define ZERO_OPTION(when, group, type_of, name, ...) ZERO_IF_PLAN(when, Planned<type_of>::type name{};)
#define ZERO_FACT(type, name, value, meaning) type name{value};
  ZERO_TRAIN_OPTIONS(ZERO_OPTION)
  ZERO_PLAN_FACTS(ZERO_FACT)
#undef ZERO_OPTION
#undef ZERO_FACT
  std::int64_t begins_at = 0;  ///< the step of the checkpoint; known to the process that plans, not to the ranks
};

/// What recomputed blocks keep, by the name that --recompute-keep has for it; empty: nothing.
KeptResults kept_results(const std::string& name);

/// Takes over what the options say of a run, or (not `is_new`) of another start of it.
void take_options(TrainPlan& plan, const TrainOptions& options, bool is_new);
/// An absolute path of that; empty: empty.
std::string absolute_or_empty(const std::string& path);

/// A plan with nothing but the model: the preset and what overrides it. Throws ConfigError for an unknown
/// preset and for sizes that do not fit each other.
TrainPlan choose_model(const TrainOptions& options);

/// Throws ConfigError when the model has no such tokens as the text.
void check_vocabulary(const TrainPlan& plan, const CorpusInfo& corpus);

/// The token between documents, where options say that they do not see each other; else -1. Throws ConfigError.
std::int64_t separator_for(const TrainPlan& plan, const TrainOptions& options, const CorpusInfo& corpus);

/// The folder with the tokenizer of the tokens that the plan's model knows; empty: there is none, or nobody knows.
std::string tokenizer_of(const TrainPlan& plan);

/// Where checkpoints of the best validation are.
std::string best_folder(const std::string& run_folder);

/// What the plan says of the model: of one, or of the other.
GPTOptions gpt_options(const TrainPlan& plan);
models::CausalLMConfig causal_lm_config(const TrainPlan& plan);
/// A vocabulary of bytes, and some tokens that are special.
inline constexpr std::int64_t kLargestOfBytes = 300;
/// Of that, with the plan's adapters.
plan::ModelShape causal_lm_shape(const TrainPlan& plan);
/// "model  gpt-11m: 10.9 M parameters in ...", a line.
std::string describe_model(const TrainPlan& plan);

void to_json(nlohmann::json& json, const TrainPlan& plan);
/// What is not there stays as it is in a plan of nothing: runs of before it was there.
void from_json(const nlohmann::json& json, TrainPlan& plan);

/// plan.json, and this start in environment.json. Throws IoError.
void write_start(const TrainPlan& plan);
/// The plan of the run in a folder. Throws ConfigError.
TrainPlan read_plan(const std::filesystem::path& run_folder);
/// " To start it over: zero train --restart ...", for errors about the run's folder.
std::string restart_hint(const std::string& run_folder);

struct Ranks {
  int world_size = 1;
  int per_node = 0;  ///< on this host; 0: all
};

/// Packs the text, as tokens of the model's tokenizer where it has one, and nothing else. Local. Throws ConfigError,
/// IoError.
CorpusInfo pack_only(const TrainOptions& options);

/// Everything that can be checked and done before ranks exist: memory, configuration, model, text
/// (packed here), run folder with environment.json. Prints what was decided unless quiet. Local. Throws
/// ConfigError, IoError.
TrainPlan prepare_run(TrainOptions options, Ranks ranks, const std::string& command_line);

/// As prepare_run() for a run that goes on or starts over: its own plan, with what the options may change.
/// `ranks` not given: as many as it had. Changes nothing in its folder. Throws ConfigError also when its text
/// is another one by now.
TrainPlan prepare_resume(const TrainOptions& options, std::optional<Ranks> ranks, const std::string& command_line);

}  // namespace zero::app
