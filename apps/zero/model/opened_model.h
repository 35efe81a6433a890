#pragma once
// A model to use and not to train: a Hugging Face folder, or what a run has learnt.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/language_model.h"
#include "train/train_plan.h"
#include "zero/engine.h"

namespace CLI {
class App;
}

namespace zero::app {

/// What every command is told that uses a model.
struct ModelArguments {
  std::string model, dtype;
  std::string device = "cpu";
  int ranks = 1;
  bool as_rank = false;  ///< internal: this process is one of them
};
/// Adds them and its own to `command`, which then calls `run`. `ranks`: what its ranks are.
void add_model_command(CLI::App& command, ModelArguments& arguments, const std::string& ranks,
                       std::vector<OptionRow> own, std::function<void()> run);

struct OpenedModel {
  TrainPlan plan;          ///< the model, and of a run what its text was
  std::string checkpoint;  ///< of a run: the folder of its weights; empty: those of plan.init_from
  std::string adapters;    ///< a folder of adapters of plan.lora; empty: none, or the checkpoint has them
  std::int64_t steps = 0;  ///< of a run: after how many
  std::string dtype;       ///< fp32, bf16 or fp16

  /// Its tokens are bytes of text.
  bool takes_bytes() const;
  bool is_run() const { return plan.init_from.empty() || !checkpoint.empty(); }
  /// Its folder, where a tokenizer may be; empty: tokens are bytes, or nobody knows.
  std::string tokenizer_folder() const { return is_run() ? tokenizer_of(plan) : plan.init_from; }
};

/// `model`: a Hugging Face folder, one of adapters (PEFT's; their base is where adapter_config.json says), the folder
/// of a run of `zero train` (its newest checkpoint), or a checkpoint in one. `dtype` empty: that of its file, or of the
/// run. Local. Throws ConfigError, CheckpointError.
OpenedModel open_model(const ModelArguments& arguments);

/// A line for people: "model  llama: 134.5 M parameters ...".
std::string describe(const OpenedModel& model);

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OpenedModel, plan, checkpoint, adapters, steps, dtype)

/// The model with its weights, sharded (ZeRO stage 3), in eval mode.
struct LoadedModel {
  LanguageModel model;
  Engine engine;
};
/// On the device of its plan. *Collective.* Throws as Engine::load_checkpoint() and models::load_weights().
LoadedModel load(const OpenedModel& opened, Group group);

}  // namespace zero::app
