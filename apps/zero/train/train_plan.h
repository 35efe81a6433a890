#pragma once
// A run of `zero train` with everything decided: what the ranks get, as JSON, from whoever prepared it.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/train_options.h"
#include "zero/lm/causal_lm.h"
#include "zero/lm/data.h"
#include "zero/lm/models.h"

namespace zero::app {

struct TrainPlan {
  int ranks = 0;
  std::string device = "cpu";  ///< as TrainOptions
  std::string preset;          ///< or the name of `model`
  std::string model;           ///< its config.json; empty: the preset's GPT with the sizes that follow
  std::string init_from;       ///< a folder with its weights; empty: random ones
  std::string weights;         ///< of such a GPT, a file or a folder; empty: random ones
  std::string export_folder;   ///< for its weights in the end; empty: none
  std::string lora;            ///< adapter_config.json of the adapters that are trained in place of it; empty: none
  bool merge = false;          ///< they are exported as part of its weights
  std::int64_t layers = 0, dim = 0, heads = 0, seq = 0;
  std::int64_t recompute_every = 0;                      ///< as GPTOptions
  KeptResults recompute_keep = KeptResults::kNone;       ///< as GPTOptions
  std::int64_t separator = -1;                           ///< as GPTOptions
  std::int64_t parameters_numel = 0, trained_numel = 0;  ///< all, and those that are not frozen
  std::string config;                                    ///< resolved, as JSON
  std::string data, cache_dir;                           ///< as given, absolute; empty: see choose_corpus()
  std::vector<std::string> suffixes;                     ///< empty: those of choose_corpus()
  std::string text_tokenizer;  ///< a folder, by which the text was made tokens here; empty: it was not
  std::string corpus_folder, corpus_hash;
  std::int64_t train_tokens = 0;
  double text_nbytes = 1;                      ///< of a token on average; 0: not known
  std::string token_pieces, tokenizer;         ///< as TokenInfo's
  int token_nbytes = 1;                        ///< 1: tokens are bytes of text
  double baseline_nats = 0;                    ///< unigram entropy of the validation split, per token
  std::string run_folder, tensorboard_folder;  ///< tensorboard_folder empty: none
  std::int64_t steps = 0, eval_every = 0, eval_batches = 0;
  std::int64_t seed = 0;
  std::string prompt;
  std::int64_t sample_length = 0, top_k = 0;
  double temperature = 0;
  bool noise = false;  ///< of gradients, in the metrics
  bool quiet = false, verbose = false;
  bool json = false;           ///< the summary in place of words; `quiet`, too
  bool resume = false;         ///< go on from the newest checkpoint of the run folder, if there is one
  bool goes_on = false;        ///< `resume`, and there is a checkpoint: it has the weights
  std::int64_t begins_at = 0;  ///< the step of that checkpoint; known to the process that plans, not to the ranks
  bool restart = false;        ///< start the run of the folder over
  bool keep_going = false;     ///< also when the loss is not a number
  bool keep_best = false;      ///< a checkpoint of the best validation, in best_folder()
  double max_minutes = 0;      ///< 0: as long as it takes
  std::string command_line;    ///< of this start
};

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

std::string to_json(const TrainPlan& plan);
/// Throws InternalError for anything that to_json() did not write.
TrainPlan plan_from_json(const std::string& json);

/// plan.json, and this start in environment.json. Throws IoError.
void write_start(const TrainPlan& plan);
/// The plan of the run in a folder. Throws ConfigError.
TrainPlan read_plan(const std::filesystem::path& run_folder);
/// Throws CheckpointError, with what to do, for a run that cannot go on as it is: its last checkpoint is gone, or it
/// never had one. Changes nothing.
void check_can_go_on(const std::string& folder);
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
