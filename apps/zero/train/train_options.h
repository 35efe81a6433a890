#pragma once
// The options of `zero train`, one row each; other commands take rows of them. The fields of TrainOptions, what a run
// keeps of them (TrainPlan, plan.json), the command line with its help, and what --resume refuses are made of the rows.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/options.h"

namespace zero::app {

inline constexpr std::int64_t kDefaultSeed = 1234;
inline constexpr int kDefaultRanks = 2;
inline constexpr const char* kDefaultPreset = "gpt-11m";
inline constexpr std::int64_t kDefaultSteps = 220;
inline constexpr std::int64_t kDefaultSampleLength = 400;
inline constexpr const char* kDefaultPrompt = "def forward(self, x):\\n";

/// A row is X(when, group, type, name, default, names, values, help, what it needs or excludes). Optional, empty: not
/// given. `when` is NEW for what only a new run is told, START for what every start of it may be told; with _PLAN it is
/// a field of TrainPlan, too.
// clang-format off
#define ZERO_TRAIN_OPTIONS(X) \
  X(NEW, "Text", std::string, data, , "--data", not_empty("PATH", "a path"), \
    "file or folder of text, - for standard input, or folder of token files (docs/models.md); default: " \
    "$ZERO_DATA, else the Python sources of torch, or of this system") \
  X(NEW_PLAN, "Text", std::vector<std::string>, suffixes, , "--suffix", Values{"TEXT"}, \
    "of the files in a folder that are taken; may be repeated; '': all (default: .txt .md .py .rst)") \
  X(NEW, "Text", std::string, cache_dir, , "--cache-dir", Values{"DIR"}, \
    "where packed text is kept; default: ~/.cache/zerotorch") \
  X(NEW, "Text", bool, pack_only, , "--pack-only", Values{}, "pack the text, say what it is, and end") \
  X(NEW, "Model", std::optional<std::string>, preset, , "--preset", preset_name(), \
    "by parameters: gpt-tiny (137 k), gpt-2m, gpt-11m, gpt-14m, gpt-25m, gpt-152m, gpt-1b, gpt-4b or gpt-7b") \
  X(NEW_PLAN, "Model", std::optional<std::int64_t>, layers, , "--layers", whole(1), \
    "overrides the preset's number of blocks") \
  X(NEW_PLAN, "Model", std::optional<std::int64_t>, dim, , "--dim", whole(1), "overrides the preset's width") \
  X(NEW_PLAN, "Model", std::optional<std::int64_t>, heads, , "--heads", whole(1), \
    "overrides the preset's attention heads") \
  X(NEW_PLAN, "Model", std::optional<std::int64_t>, seq, , "--seq", whole(1), \
    "overrides the preset's sequence length, in bytes of text") \
  X(NEW, "Model", std::string, model, , "--model", Values{"PATH"}, \
    "a Hugging Face folder or config.json in place of a preset: gpt2, llama, mistral, qwen2, qwen3, mixtral, " \
    "qwen3_moe", .excludes = "--preset") \
  X(NEW, "Model", std::string, init_from, , "--init-from", Values{"DIR"}, \
    "begin with the weights of this Hugging Face folder (and its config.json, where --model is not given)", \
    .excludes = "--preset") \
  X(NEW, "Model", std::string, weights, , "--weights", Values{"PATH"}, \
    "begin with these weights of a model of the same sizes, as zero ckpt export writes them", \
    .excludes = "--model,--init-from") \
  X(NEW, "Model", std::optional<std::int64_t>, lora_rank, , "--lora", whole(1), \
    "train low-rank adapters of this rank, and not the model of --init-from (docs/models.md)") \
  X(NEW, "Model", std::vector<std::string>, lora_targets, , "--lora-targets", Values{"NAME,..."}, \
    "linear maps that get adapters, or all-linear (default: q_proj,v_proj, of gpt2 c_attn)") \
  X(NEW, "Model", std::optional<double>, lora_alpha, , "--lora-alpha", real(0, 1e6), \
    "their factor is this / RANK (default: 2 RANK)") \
  X(NEW, "Model", std::optional<double>, lora_dropout, , "--lora-dropout", real(0, 0.99), \
    "of what they get (default 0)") \
  X(START, "Model", std::string, export_dir, , "--export", Values{"DIR"}, \
    "write the trained model there, as a Hugging Face folder; of adapters, as PEFT's") \
  X(START_PLAN, "Model", std::optional<bool>, merge, , "--merge", Values{}, \
    "with --lora: export the model with what its adapters have learnt") \
  X(START, "Training", std::optional<int>, ranks, , "-n,--ranks", whole(1, 1 << 20), \
    "processes on this host (default 2; with --device cuda one for each GPU)") \
  X(START_PLAN, "Training", std::string, device, , "--device", device_name(), \
    "what ranks train on: cpu, or cuda, of whose GPUs each takes one, in turn (default: cpu)") \
  X(NEW, "Training", std::string, config, , "--config", Values{"FILE"}, \
    "DeepSpeed JSON; default: built in, see --print-config") \
  X(START, "Training", std::optional<int>, stage, , "--stage", (Values{"0|1|2|3", whole(0, 3).check}), \
    "ZeRO stage; overrides the configuration") \
  X(START, "Training", std::string, store, , "--store", choice("auto|node_shared|copying"), \
    "who holds parameters: a host's ranks together (at any stage), or each; auto: together at stage 3") \
  X(START, "Training", std::string, nvme, , "--nvme", Values{"DIR"}, \
    "keep master weights and optimizer states in scratch files in this folder; overrides the configuration") \
  X(START, "Training", bool, nvme_parameters, , "--nvme-parameters", Values{}, \
    "with --nvme: the parameters, too, which are then read just before use (stage 3)", .needs = "--nvme") \
  X(START, "Training", bool, nvme_gradients, , "--nvme-gradients", Values{}, \
    "with --nvme, or of a run that has it: the sums of gradients, too, which each micro-batch adds to " \
    "(stage 1 and above)") \
  X(START_PLAN, "Training", std::optional<std::int64_t>, recompute_every, , "--recompute", whole(), \
    "activation checkpointing: of every N blocks, compute one again in backward; 1: all (default: none)") \
  X(START, "Training", std::string, recompute_keep, , "--recompute-keep", choice("none|attention|products"), \
    "what such a block keeps and does not compute again: none, attention (results of fused attention), " \
    "products (and of matrix products) (default: none)") \
  X(START, "Training", std::string, nvme_activations, , "--nvme-activations", Values{"DIR"}, \
    "with --recompute: what blocks keep for backward goes to a scratch file in this folder") \
  X(NEW, "Training", bool, separate_documents, , "--separate-documents", Values{}, \
    "documents in a sequence do not see each other: attention stays within each, positions begin anew") \
  X(NEW, "Training", std::optional<std::int64_t>, separator, , "--separator", (Values{"TOKEN", whole().check}), \
    "the token between documents (default: of text the zero byte, of tokens what tokens.json says)") \
  X(START, "Training", bool, fit, , "--fit", Values{}, \
    "change what it takes to fit this host and leaves the training the same: stage, store, micro-batch, " \
    "--recompute and, in the folder that --nvme allows, states and parameters; options that are given stay") \
  X(START, "Training", std::string, memory, , "--memory", size_text(), \
    "of this host to plan with, such as 24GiB (default: what is free)") \
  X(START, "Training", std::string, gpu_memory, , "--gpu-memory", size_text(), \
    "of the GPU that each rank has, to plan with, such as 80GB (default: with --fit what is free)") \
  X(START, "Training", std::optional<double>, lr, , "--lr", real(0, 1e6), \
    "learning rate: the largest one of the schedule; overrides the configuration") \
  X(NEW, "Training", std::optional<std::int64_t>, batch_size, , "--batch-size", whole(1, std::int64_t{1} << 32), \
    "sequences of an optimizer step, over all ranks and micro-batches; overrides the configuration") \
  X(NEW, "Training", std::optional<std::int64_t>, micro_batch, , "--micro-batch", whole(1, std::int64_t{1} << 32), \
    "sequences that each rank takes at a time; overrides the configuration, the batch size stays") \
  X(NEW, "Training", std::string, dtype, , "--dtype", choice("fp32|bf16|fp16"), \
    "data type of parameters and activations; overrides the configuration") \
  X(START_PLAN, "Training", std::optional<std::int64_t>, steps, , "--steps", whole(1), \
    "optimizer steps (default 220; without a model and a configuration both are chosen for this machine)") \
  X(NEW, "Training", std::optional<std::int64_t>, seed, , "--seed", whole(), \
    "of the data order, the initial weights and dropout (default 1234)") \
  X(NEW_PLAN, "Training", std::optional<std::int64_t>, eval_every, , "--eval-every", whole(), \
    "steps between validations; 0: only first and last (default: steps / 4)") \
  X(NEW_PLAN, "Training", std::int64_t, eval_batches, 24, "--eval-batches", whole(), \
    "batches of 8 sequences per validation; 0: all there are") \
  X(START, "Training", std::optional<std::string>, resume, , "--resume", Values{"[RUN]"}, \
    "go on with the run in this folder (or --run-dir; default: the newest in runs/) from its last checkpoint; " \
    "-n, --stage, --store, --nvme and --steps may be others") \
  X(START, "Training", std::optional<std::string>, restart, , "--restart", Values{"[RUN]"}, \
    "start the run in this folder (or --run-dir; default: the newest in runs/) over; its checkpoints and " \
    "metrics are kept in its folder before.1", .excludes = "--resume") \
  X(START_PLAN, "Training", bool, keep_going, , "--keep-going", Values{}, \
    "train on when the loss is not a number (default: stop, with an error)") \
  X(START_PLAN, "Training", std::optional<bool>, keep_best, , "--keep-best", Values{}, \
    "keep a checkpoint of the best validation in the run's folder best, and --export that") \
  X(START, "Training", std::optional<std::int64_t>, checkpoint_every, , "--checkpoint-every", whole(), \
    "steps between checkpoints; 0: none but the last (default: by time, every 10 minutes)") \
  X(START_PLAN, "Training", double, max_minutes, 0, "--max-minutes", real(0, 1e9), \
    "stop with a checkpoint after the step that ends later than this; 0: never") \
  X(START, "Training", int, max_restarts, 0, "--max-restarts", whole(0, 1'000'000), \
    "go on from the last checkpoint when ranks fail, at most so often") \
  X(START, "Training", bool, force, , "--force", Values{}, \
    "start although the memory of this host is too small (zero plan)") \
  X(START, "Training", double, grace_s, 120, "--grace", real(0, 1e6, "S"), \
    "after a stop signal: seconds for the step and the checkpoint, then the ranks are killed") \
  X(NEW_PLAN, "Sample at the end", std::string, prompt, , "--prompt", Values{"TEXT"}, \
    "what the sample continues; \\n is a line end (default: \"def forward(self, x):\\n\"; of tokens: validation " \
    "text)") \
  X(NEW_PLAN, "Sample at the end", std::optional<std::int64_t>, sample_length, , "--sample-length", whole(), \
    "bytes to generate (default 400), or tokens (64); 0: none") \
  X(START, "Output", std::string, run_dir, , "--run-dir", not_empty("DIR", "a folder"), \
    "folder of the run; default: runs/<date-time>-<preset>") \
  X(START_PLAN, "Output", bool, quiet, , "-q,--quiet", Values{}, "print only the result and errors") \
  X(START_PLAN, "Output", bool, verbose, , "-v,--verbose", Values{}, \
    "also the parts of a step and the traffic of a rank", .excludes = "--quiet") \
  X(START_PLAN, "Output", bool, json, , "--json", Values{}, "print only the run's summary.json, and errors", \
    .excludes = "--verbose") \
  X(START, "Output", bool, trace, , "--trace", Values{}, \
    "record what every rank does in steps 3 and 4, as trace/rank0.json, ... in the run's folder, for " \
    "Perfetto (other steps: zerotorch.trace)") \
  X(START_PLAN, "Output", std::optional<bool>, noise, , "--noise", Values{}, \
    "record the gradient noise scale: the batch size, in sequences, above which larger ones help little") \
  X(NEW, "Output", bool, no_tensorboard, , "--no-tensorboard", Values{}, "write no TensorBoard event files") \
  X(NEW, "Output", bool, print_config, , "--print-config", Values{}, \
    "print the configuration that would be used, and end") \
  X(START, "", bool, as_rank, , "--as-rank", Values{}, "this process is a rank that `zero train` has started")
// clang-format on

/// The text of rows that are in TrainPlan, and of those that a run is told when it is new, for the X of
/// ZERO_TRAIN_OPTIONS; nothing for others.
#define ZERO_IF_PLAN(when, ...) ZERO_IF_PLAN_##when(__VA_ARGS__)
#define ZERO_IF_PLAN_NEW(...)
#define ZERO_IF_PLAN_START(...)
#define ZERO_IF_PLAN_NEW_PLAN(...) __VA_ARGS__
#define ZERO_IF_PLAN_START_PLAN(...) __VA_ARGS__
#define ZERO_IF_NEW(when, ...) ZERO_IF_NEW_##when(__VA_ARGS__)
#define ZERO_IF_NEW_NEW(...) __VA_ARGS__
#define ZERO_IF_NEW_START(...)
#define ZERO_IF_NEW_NEW_PLAN(...) __VA_ARGS__
#define ZERO_IF_NEW_START_PLAN(...)

struct TrainOptions {
#define ZERO_FIELD(when, group, type, name, value, ...) type name{value};
  ZERO_TRAIN_OPTIONS(ZERO_FIELD)
#undef ZERO_FIELD
};

/// The rows, for `options`.
std::vector<OptionRow> train_rows(TrainOptions& options);

/// "\n" -> a line end, "\t" -> a tab, "\\" -> a backslash.
std::string unescape(const std::string& text);

}  // namespace zero::app
