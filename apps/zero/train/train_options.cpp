#include "train/train_options.h"

#include <CLI/CLI.hpp>

#include "text/number_check.h"
#include "train/kept_results_option.h"

namespace zero::app {
namespace {

constexpr const char* kData = "Text";
constexpr const char* kModel = "Model";
constexpr const char* kTraining = "Training";
constexpr const char* kSample = "Sample at the end";
constexpr const char* kOutput = "Output";

const CLI::Validator kPositive = whole_number(1);
const CLI::Validator kNotNegative = whole_number(0);

void add_training_options(CLI::App& command, TrainOptions& options) {
  command
      .add_option("-n,--ranks", options.ranks,
                  "processes on this host (default 2; with --device cuda one for each GPU)")
      ->transform(kPositive)
      ->type_name("N")
      ->group(kTraining);
  command
      .add_option("--device", options.device,
                  "what ranks train on: cpu, or cuda, of whose GPUs each takes one, in turn (default: cpu)")
      ->check(device_name())
      ->type_name("cpu|cuda")
      ->group(kTraining);
  command.add_option("--config", options.config, "DeepSpeed JSON; default: built in, see --print-config")
      ->type_name("FILE")
      ->group(kTraining);
  command.add_option("--stage", options.stage, "ZeRO stage; overrides the configuration")
      ->transform(whole_number(0, 3))
      ->type_name("0|1|2|3")
      ->group(kTraining);
  command
      .add_option("--store", options.store,
                  "who holds parameters: a host's ranks together (at any stage), or each; auto: together at stage 3")
      ->check(one_of({"auto", "node_shared", "copying"}))
      ->type_name("auto|node_shared|copying")
      ->group(kTraining);
  command
      .add_option(
          "--nvme", options.nvme,
          "keep master weights and optimizer states in scratch files in this folder; overrides the configuration")
      ->type_name("DIR")
      ->group(kTraining);
  command
      .add_flag("--nvme-parameters", options.nvme_parameters,
                "with --nvme: the parameters, too, which are then read just before use (stage 3)")
      ->needs("--nvme")
      ->group(kTraining);
  command
      .add_flag("--nvme-gradients", options.nvme_gradients,
                "with --nvme, or of a run that has it: the sums of gradients, too, which each micro-batch adds to "
                "(stage 1 and above)")
      ->group(kTraining);
  command
      .add_option("--recompute", options.recompute,
                  "activation checkpointing: of every N blocks, compute one again in backward; 1: all (default: none)")
      ->transform(kNotNegative)
      ->type_name("N")
      ->group(kTraining);
  add_recompute_keep(command, options.recompute_keep, kTraining);
  command
      .add_option("--nvme-activations", options.nvme_activations,
                  "with --recompute: what blocks keep for backward goes to a scratch file in this folder")
      ->type_name("DIR")
      ->group(kTraining);
  add_document_options(command, options, kTraining);
  command
      .add_flag("--fit", options.fit,
                "change what it takes to fit this host and leaves the training the same: stage, store, micro-batch, "
                "--recompute and, in the folder that --nvme allows, states and parameters; options that are given stay")
      ->group(kTraining);
  command.add_option("--memory", options.memory, "of this host to plan with, such as 24GiB (default: what is free)")
      ->check(size_text())
      ->type_name("SIZE")
      ->group(kTraining);
  command
      .add_option("--gpu-memory", options.gpu_memory,
                  "of the GPU that each rank has, to plan with, such as 80GB (default: with --fit what is free)")
      ->check(size_text())
      ->type_name("SIZE")
      ->group(kTraining);
  add_override_options(command, options);
  command
      .add_option("--steps", options.steps,
                  "optimizer steps (default 220; without a model and a configuration both are chosen for this machine)")
      ->transform(kPositive)
      ->type_name("N")
      ->group(kTraining);
  command.add_option("--seed", options.seed, "of the data order, the initial weights and dropout (default 1234)")
      ->transform(kNotNegative)
      ->type_name("N")
      ->group(kTraining);
  command
      .add_option("--eval-every", options.eval_every,
                  "steps between validations; 0: only first and last (default: steps / 4)")
      ->transform(kNotNegative)
      ->type_name("N")
      ->group(kTraining);
  command.add_option("--eval-batches", options.eval_batches, "batches of 8 sequences per validation; 0: all there are")
      ->transform(kNotNegative)
      ->capture_default_str()
      ->type_name("N")
      ->group(kTraining);
}

void add_sample_options(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--prompt", options.prompt,
                  "what the sample continues; \\n is a line end (default: \"def forward(self, x):\\n\"; of tokens: "
                  "validation text)")
      ->type_name("TEXT")
      ->group(kSample);
  command
      .add_option("--sample-length", options.sample_length, "bytes to generate (default 400), or tokens (64); 0: none")
      ->transform(kNotNegative)
      ->type_name("N")
      ->group(kSample);
  command.add_option("--temperature", options.temperature, "0: always the likeliest byte; larger: more varied")
      ->check(real_number(0, 100))
      ->capture_default_str()
      ->type_name("X")
      ->group(kSample);
  command.add_option("--top-k", options.top_k, "only among so many likeliest bytes; 0: among all")
      ->transform(kNotNegative)
      ->capture_default_str()
      ->type_name("N")
      ->group(kSample);
}

/// What a run that goes on has decided for itself.
constexpr const char* kFixedByTheRun[] = {
    "--data",          "--suffix",     "--all-files",      "--cache-dir",    "--pack-only",
    "--preset",        "--lora",       "--lora-targets",   "--lora-alpha",   "--lora-dropout",
    "--model",         "--init-from",  "--layers",         "--dim",          "--heads",
    "--seq",           "--config",     "--seed",           "--batch-size",   "--micro-batch",
    "--dtype",         "--eval-every", "--eval-batches",   "--prompt",       "--temperature",
    "--sample-length", "--top-k",      "--no-tensorboard", "--print-config", "--separate-documents",
    "--separator",     "--weights"};

/// An option that may be followed by the folder of a run.
CLI::Option* add_run_option(CLI::App& command, const std::string& name, bool& wanted, std::string& run_dir,
                            const std::string& help) {
  const auto take = [&wanted, &run_dir, &command, name](const std::vector<std::string>& given) {
    wanted = true;
    if (given.empty() || given.front().empty()) return;
    if (command.count("--run-dir") > 0) throw CLI::ValidationError(name, "the run is named twice; remove --run-dir");
    run_dir = given.front();
  };
  return command.add_option_function<std::vector<std::string>>(name, take, help)
      ->expected(0, 1)
      ->type_name("[RUN]")
      ->group(kTraining);
}

void add_resume_options(CLI::App& command, TrainOptions& options) {
  auto* resume = add_run_option(command, "--resume", options.resume, options.run_dir,
                                "go on with the run in this folder (or --run-dir; default: the newest in runs/) from "
                                "its last checkpoint; -n, --stage, --store, --nvme and --steps may be others");
  auto* restart = add_run_option(command, "--restart", options.restart, options.run_dir,
                                 "start the run in this folder (or --run-dir; default: the newest in runs/) over; its "
                                 "checkpoints and metrics are kept in its folder before.1");
  resume->excludes(restart);
  for (const char* name : kFixedByTheRun) {
    resume->excludes(command.get_option(name));
    restart->excludes(command.get_option(name));
  }
  command
      .add_flag("--keep-going", options.keep_going,
                "train on when the loss is not a number (default: stop, with an error)")
      ->group(kTraining);
  command
      .add_flag("--keep-best", options.keep_best,
                "keep a checkpoint of the best validation in the run's folder best, and --export that")
      ->group(kTraining);
  command
      .add_option("--checkpoint-every", options.checkpoint_every,
                  "steps between checkpoints; 0: none but the last (default: by time, every 10 minutes)")
      ->transform(kNotNegative)
      ->type_name("N")
      ->group(kTraining);
  command
      .add_option("--max-minutes", options.max_minutes,
                  "stop with a checkpoint after the step that ends later than this; 0: never (default)")
      ->check(real_number(0, 1e9))
      ->type_name("X")
      ->group(kTraining);
  command
      .add_option("--max-restarts", options.max_restarts,
                  "go on from the last checkpoint when ranks fail, at most so often (default 0)")
      ->transform(whole_number(0, 1'000'000))
      ->type_name("N")
      ->group(kTraining);
  command.add_flag("--force", options.force, "start although the memory of this host is too small (zero plan)")
      ->group(kTraining);
  command
      .add_option("--grace", options.grace_s,
                  "after a stop signal: seconds for the step and the checkpoint, then the ranks are killed")
      ->check(real_number(0, 1e6))
      ->capture_default_str()
      ->type_name("S")
      ->group(kTraining);
}

void add_output_options(CLI::App& command, TrainOptions& options) {
  command.add_option("--run-dir", options.run_dir, "folder of the run; default: runs/<date-time>-<preset>")
      ->check(not_empty("a folder"))
      ->type_name("DIR")
      ->group(kOutput);
  command.add_flag("-q,--quiet", options.quiet, "print only the result and errors")->group(kOutput);
  command.add_flag("-v,--verbose", options.verbose, "also the parts of a step and the traffic of a rank")
      ->group(kOutput)
      ->excludes("--quiet");
  command.add_flag("--json", options.json, "print only the run's summary.json, and errors")
      ->group(kOutput)
      ->excludes("--verbose");
  command
      .add_flag("--trace", options.trace,
                "record what every rank does in steps 3 and 4, as trace/rank0.json, ... in the run's folder, for "
                "Perfetto (other steps: zerotorch.trace)")
      ->group(kOutput);
  command
      .add_flag("--noise", options.noise,
                "record the gradient noise scale: the batch size, in sequences, above which larger ones help little")
      ->group(kOutput);
  command.add_flag("--no-tensorboard", options.no_tensorboard, "write no TensorBoard event files")->group(kOutput);
  command.add_flag("--print-config", options.print_config, "print the configuration that would be used, and end")
      ->group(kOutput);
  command.add_flag("--as-rank", options.as_rank)->group("");  // hidden
}

}  // namespace

void add_document_options(CLI::App& command, TrainOptions& options, const std::string& group) {
  command
      .add_flag("--separate-documents", options.separate_documents,
                "documents in a sequence do not see each other: attention stays within each, positions begin anew")
      ->group(group);
  command
      .add_option("--separator", options.separator,
                  "the token between documents (default: of text the zero byte, of tokens what tokens.json says)")
      ->transform(kNotNegative)
      ->type_name("TOKEN")
      ->group(group);
}

void add_text_options(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--data", options.data,
                  "file or folder of text, - for standard input, or folder of token files (docs/models.md); default: "
                  "$ZERO_DATA, else the Python sources of torch, or of this system")
      ->check(not_empty("a path"))
      ->type_name("PATH")
      ->group(kData);
  command
      .add_option("--suffix", options.suffixes,
                  "of the files in a folder that are taken; may be repeated (default: .txt .md .py .rst)")
      ->type_name("TEXT")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(kData);
  command.add_flag("--all-files", options.all_files, "take text files of any suffix")->group(kData);
  command.add_option("--cache-dir", options.cache_dir, "where packed text is kept; default: ~/.cache/zerotorch")
      ->type_name("DIR")
      ->group(kData);
}

void add_override_options(CLI::App& command, TrainOptions& options) {
  command.add_option("--lr", options.lr, "learning rate: the largest one of the schedule; overrides the configuration")
      ->check(real_number(0, 1e6))
      ->type_name("X")
      ->group(kTraining);
  command
      .add_option("--batch-size", options.batch_size,
                  "sequences of an optimizer step, over all ranks and micro-batches; overrides the configuration")
      ->transform(kPositive)
      ->type_name("N")
      ->group(kTraining);
  command
      .add_option("--micro-batch", options.micro_batch,
                  "sequences that each rank takes at a time; overrides the configuration, the batch size stays")
      ->transform(kPositive)
      ->type_name("N")
      ->group(kTraining);
  add_dtype_option(command, options);
}

void add_dtype_option(CLI::App& command, TrainOptions& options) {
  command.add_option("--dtype", options.dtype, "data type of parameters and activations; overrides the configuration")
      ->check(one_of({"fp32", "bf16", "fp16"}))
      ->type_name("fp32|bf16|fp16")
      ->group(kTraining);
}

void add_model_options(CLI::App& command, TrainOptions& options) {
  command
      .add_option(
          "--preset", options.preset,
          "by parameters: gpt-tiny (137 k), gpt-2m, gpt-11m, gpt-14m, gpt-25m, gpt-152m, gpt-1b, gpt-4b or gpt-7b")
      ->check(preset_name())
      ->type_name("PRESET")
      ->group(kModel);
  command.add_option("--layers", options.layers, "overrides the preset's number of blocks")
      ->transform(kPositive)
      ->type_name("N")
      ->group(kModel);
  command.add_option("--dim", options.dim, "overrides the preset's width")
      ->transform(kPositive)
      ->type_name("N")
      ->group(kModel);
  command.add_option("--heads", options.heads, "overrides the preset's attention heads")
      ->transform(kPositive)
      ->type_name("N")
      ->group(kModel);
  command.add_option("--seq", options.seq, "overrides the preset's sequence length, in bytes of text")
      ->transform(kPositive)
      ->type_name("N")
      ->group(kModel);
}

/// Models of Hugging Face's shapes.
void add_folder_options(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--model", options.model,
                  "a Hugging Face folder or config.json in place of a preset: gpt2, llama, mistral, "
                  "qwen2, qwen3, mixtral, qwen3_moe")
      ->type_name("PATH")
      ->group(kModel)
      ->excludes("--preset");
  command
      .add_option(
          "--init-from", options.init_from,
          "begin with the weights of this Hugging Face folder (and its config.json, where --model is not given)")
      ->type_name("DIR")
      ->group(kModel)
      ->excludes("--preset");
  command
      .add_option("--weights", options.weights,
                  "begin with these weights of a model of the same sizes, as zero ckpt export writes them")
      ->type_name("PATH")
      ->group(kModel)
      ->excludes("--model")
      ->excludes("--init-from");
  command
      .add_option("--lora", options.lora_rank,
                  "train low-rank adapters of this rank, and not the model of --init-from (docs/models.md)")
      ->transform(kPositive)
      ->type_name("RANK")
      ->group(kModel);
  command
      .add_option("--lora-targets", options.lora_targets,
                  "linear maps that get adapters, or all-linear (default: q_proj v_proj, of gpt2 c_attn)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->delimiter(',')
      ->type_name("NAME")
      ->group(kModel);
  command.add_option("--lora-alpha", options.lora_alpha, "their factor is this / RANK (default: 2 RANK)")
      ->check(real_number(0, 1e6))
      ->type_name("X")
      ->group(kModel);
  command.add_option("--lora-dropout", options.lora_dropout, "of what they get (default 0)")
      ->check(real_number(0, 0.99))
      ->type_name("X")
      ->group(kModel);
  command
      .add_option("--export", options.export_dir,
                  "write the trained model there, as a Hugging Face folder; of adapters, as PEFT's")
      ->type_name("DIR")
      ->group(kModel);
  command.add_flag("--merge", options.merge, "with --lora: export the model with what its adapters have learnt")
      ->group(kModel);
}

void add_train_options(CLI::App& command, TrainOptions& options) {
  command.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_text_options(command, options);
  command.add_flag("--pack-only", options.pack_only, "pack the text, say what it is, and end")->group(kData);
  add_model_options(command, options);
  add_folder_options(command, options);
  add_training_options(command, options);
  add_sample_options(command, options);
  add_output_options(command, options);
  add_resume_options(command, options);
  command.footer(
      "Examples:\n"
      "  zero train                         two ranks, ZeRO-3, two to four minutes\n"
      "  zero train --data ~/books --preset gpt-25m --steps 2000\n"
      "  zero train -n 4 --config ds_config.json --stage 2\n"
      "  zero train --lr 1e-3 --batch-size 32 --dtype fp32 --checkpoint-every 100\n"
      "  zero train --init-from SmolLM2 --data tokens --lr 5e-5 --export tuned\n"
      "  zero train --resume                go on after Ctrl-C or a crash\n"
      "  mpirun -n 8 zero train --config ds_config.json");
}

std::vector<std::string> wanted_suffixes(const TrainOptions& options) {
  return options.all_files ? std::vector<std::string>{""} : options.suffixes;
}

std::string unescape(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool escape = text[i] == '\\' && (next == 'n' || next == 't' || next == '\\');
    result += !escape ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    if (escape) ++i;
  }
  return result;
}

}  // namespace zero::app
