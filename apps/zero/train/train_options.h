#pragma once
// The options of `zero train`, as the user gives them.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero/kept_results.h"

namespace CLI {
class App;
}

namespace zero::app {

struct TrainOptions {
  std::optional<int> ranks;  ///< not given: 2, or what the launcher started
  // What to learn from.
  std::string data;                   ///< empty: see choose_corpus(); "-": standard input
  std::string cache_dir;              ///< empty: see choose_corpus()
  std::vector<std::string> suffixes;  ///< of files in a folder; empty: those of CorpusOptions
  bool all_files = false;             ///< whatever their suffix
  bool pack_only = false;
  // The model.
  std::optional<std::string> preset;  ///< not given: what the machine trains in minutes, else kDefaultPreset
  std::optional<std::int64_t> layers, dim, heads, seq;
  std::string model;                      ///< a Hugging Face folder or config.json, in place of a preset
  std::string init_from;                  ///< a Hugging Face folder with weights
  std::string weights;                    ///< a file with those of a preset
  std::string export_dir;                 ///< for the weights in the end
  std::optional<std::int64_t> lora_rank;  ///< adapters of this rank are trained, not the model
  std::optional<double> lora_alpha, lora_dropout;
  std::vector<std::string> lora_targets;  ///< empty: PEFT's choice
  bool merge = false;                     ///< export the model with what they have learnt, not them
  std::optional<std::int64_t> recompute;  ///< of so many blocks one; 0: none
  std::optional<KeptResults> recompute_keep;
  bool separate_documents = false;
  std::optional<std::int64_t> separator;  ///< token; not given: the tokenizer's
  bool trace = false;                     ///< some steps, for Perfetto
  bool fit = false;                       ///< choose what makes it fit this host
  std::string memory;                     ///< of this host, for the plan; empty: what is free
  std::string gpu_memory;                 ///< of each rank's GPU, for the plan; empty: with `fit` what is free
  // How to train it.
  std::string device;  ///< cpu or cuda; not given: the run's, else the CPU
  std::string config;  ///< a DeepSpeed JSON; empty: the built-in one
  std::optional<int> stage;
  std::string store;  ///< empty: the configuration's
  // Over the configuration; not given: what it says.
  std::optional<double> lr;
  std::optional<std::int64_t> batch_size;   ///< sequences of one optimizer step, over all ranks
  std::optional<std::int64_t> micro_batch;  ///< sequences of one forward, of each rank
  std::string dtype;                        ///< fp32, bf16 or fp16
  std::optional<std::int64_t> checkpoint_every;
  std::string nvme;                        ///< a folder for masters and states; empty: the configuration's
  bool nvme_gradients = false;             ///< for sums of gradients, too
  bool nvme_parameters = false;            ///< for parameters, too
  std::string nvme_activations;            ///< a folder for what recomputed blocks keep; empty: the configuration's
  std::optional<std::int64_t> steps;       ///< not given: as `preset`, kDefaultSteps, or those of the run that goes on
  std::optional<std::int64_t> seed;        ///< not given: the configuration's, else kDefaultSeed
  std::optional<std::int64_t> eval_every;  ///< steps; 0: only at start and end; not given: steps / 4
  std::int64_t eval_batches = 24;          ///< of 8 sequences; 0: the whole split
  // The sample at the end.
  std::optional<std::int64_t> sample_length;  ///< not given: kDefaultSampleLength
  std::string prompt;                         ///< \n and \t stand for a line end and a tab; empty: kDefaultPrompt
  double temperature = 0.8;
  std::int64_t top_k = 40;
  // What is said and written.
  std::string run_dir;      ///< empty: runs/<date-time>-<preset>; with `resume` the newest there
  bool resume = false;      ///< go on with the run in run_dir
  bool restart = false;     ///< start that run over
  double max_minutes = 0;   ///< then the run stops with a checkpoint; 0: never
  int max_restarts = 0;     ///< how often a run whose ranks fail goes on by itself
  bool keep_going = false;  ///< also when the loss is not a number
  bool keep_best = false;   ///< a checkpoint of the best validation, too
  bool force = false;       ///< start also what does not fit the memory
  double grace_s = 120;     ///< from the first stop signal until ranks that have not ended are killed
  bool quiet = false;
  bool verbose = false;
  bool noise = false;  ///< of gradients, in the metrics
  bool json = false;   ///< the summary in place of text; `quiet`, too
  bool no_tensorboard = false;
  bool print_config = false;
  bool as_rank = false;  ///< internal: this process is a rank that `zero train` has started
};

inline constexpr std::int64_t kDefaultSeed = 1234;
inline constexpr int kDefaultRanks = 2;
inline constexpr const char* kDefaultPreset = "gpt-11m";
inline constexpr std::int64_t kDefaultSteps = 220;
inline constexpr std::int64_t kDefaultSampleLength = 400;
inline constexpr const char* kDefaultPrompt = "def forward(self, x):\\n";

/// Adds the options to `command`. Their values are in `options` once it is parsed.
void add_train_options(CLI::App& command, TrainOptions& options);

/// Of files in a folder, as --suffix and --all-files say; empty: the usual ones.
std::vector<std::string> wanted_suffixes(const TrainOptions& options);

/// --separate-documents and --separator.
void add_document_options(CLI::App& command, TrainOptions& options, const std::string& group);
/// Only where the text comes from and what the model is, for commands that share these.
void add_text_options(CLI::App& command, TrainOptions& options);
void add_model_options(CLI::App& command, TrainOptions& options);
/// --lr, --batch-size, --micro-batch and --dtype, for commands that make a configuration.
void add_override_options(CLI::App& command, TrainOptions& options);
/// The last of them alone.
void add_dtype_option(CLI::App& command, TrainOptions& options);

/// "\n" -> a line end, "\t" -> a tab, "\\" -> a backslash.
std::string unescape(const std::string& text);

}  // namespace zero::app
