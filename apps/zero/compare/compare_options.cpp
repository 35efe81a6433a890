#include "compare/compare_options.h"

#include <CLI/CLI.hpp>

#include "text/number_check.h"

namespace zero::app {
namespace {

constexpr const char* kTraining = "Training";
constexpr const char* kComparison = "Comparison";
constexpr const char* kOthers = "Others";

void add_training_options(CLI::App& command, TrainOptions& options) {
  command
      .add_option("-n,--ranks", options.ranks,
                  "processes on this host (default 2; with --device cuda one for each GPU)")
      ->transform(whole_number(1, 1 << 20))
      ->type_name("N")
      ->group(kTraining);
  command.add_option("--config", options.config, "DeepSpeed JSON; its stage and store are replaced by each mode's")
      ->type_name("FILE")
      ->group(kTraining);
  command.add_option("--steps", options.steps, "optimizer steps of each mode, warm-up included (default 12)")
      ->transform(whole_number(2, 1 << 20))
      ->type_name("N")
      ->group(kTraining);
  command.add_option("--seed", options.seed, "of the data order and the initial weights (default 1234)")
      ->transform(whole_number(0))
      ->type_name("N")
      ->group(kTraining);
  add_dtype_option(command, options);
  command.add_option("--device", options.device, "what ranks compute on: cpu, or cuda, of whose GPUs each takes one")
      ->check(device_name())
      ->type_name("cpu|cuda")
      ->group(kTraining);
  command.add_flag("--force", options.force, "start also a mode that does not fit the memory")->group(kTraining);
}

}  // namespace

void add_compare_options(CLI::App& command, CompareOptions& options) {
  command.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_text_options(command, options.train);
  add_model_options(command, options.train);
  add_training_options(command, options.train);
  command
      .add_option("--modes", options.modes,
                  "of compute (forward and backward alone), stage0, stage1, stage2, stage3, stage3-copying")
      ->check(some_of({"compute", "stage0", "stage1", "stage2", "stage3", "stage3-copying"}))
      ->capture_default_str()
      ->type_name("LIST")
      ->group(kComparison);
  command.add_option("--warmup", options.warmup, "first steps of each mode whose time does not count")
      ->transform(whole_number(0, 1 << 20))
      ->capture_default_str()
      ->type_name("N")
      ->group(kComparison);
  command
      .add_option("--rounds", options.rounds,
                  "how often every mode runs, in turns, forwards and backwards: a machine that slows down slows all")
      ->transform(whole_number(1, 1 << 10))
      ->capture_default_str()
      ->type_name("N")
      ->group(kComparison);
  command
      .add_option("--out", options.out,
                  "folder of compare.json and the pictures; default: comparisons/<date-time>-<preset>")
      ->type_name("DIR")
      ->group(kComparison);
  command.add_flag("--no-plot", options.no_plot, "draw no picture")->group(kComparison);
  command.add_flag("-q,--quiet", options.train.quiet, "print only the tables and errors")->group(kComparison);
  command.add_flag("--json", options.json, "print compare.json in place of tables")->group(kComparison);
  command.add_flag("--peers", options.peers, "also DDP, FSDP2 and DeepSpeed, from Python (see --python)")
      ->group(kOthers);
  command.add_option("--peer-modes", options.peer_modes, "of compute, ddp, fsdp2, zero1, zero2, zero3")
      ->check(some_of({"compute", "ddp", "fsdp2", "zero1", "zero2", "zero3"}))
      ->capture_default_str()
      ->type_name("LIST")
      ->needs("--peers")
      ->group(kOthers);
  command
      .add_option("--peer-settings", options.peer_settings,
                  "users: as torchrun starts them; ours: pinned and with our allocator settings; or users,ours")
      ->check(some_of({"users", "ours"}))
      ->capture_default_str()
      ->type_name("LIST")
      ->needs("--peers")
      ->group(kOthers);
  command.add_option("--peer-timeout", options.peer_timeout_s, "seconds for each of them")
      ->transform(whole_number(1, 1 << 20))
      ->capture_default_str()
      ->type_name("S")
      ->needs("--peers")
      ->group(kOthers);
  command
      .add_option("--python", options.python,
                  "interpreter with torch, deepspeed, safetensors and matplotlib (`make peers` makes one)")
      ->type_name("FILE")
      ->group(kOthers);
  command.add_flag("--as-rank", options.as_rank)->group("");  // hidden
  command.footer(
      "Examples:\n"
      "  zero compare            stages 0 to 3 on two ranks, about four minutes\n"
      "  zero compare --preset gpt-152m --steps 6 --modes compute,stage0,stage3\n"
      "  zero compare --peers --python build/peers/bin/python");
}

}  // namespace zero::app
