#pragma once
// What `zero train` trains: its own GPT, or a model in Hugging Face's shapes.
#include <ATen/core/Tensor.h>

#include <string>
#include <variant>

#include "train_plan.h"
#include "zero/causal_lm.h"
#include "zero/engine.h"
#include "zero/models.h"

namespace zero::app {

class LanguageModel {
 public:
  /// The plan's, in fp32, never whole (zero::deferred_init): initialised from libtorch's default generator, or without
  /// values where the plan has weights to begin with.
  explicit LanguageModel(const TrainPlan& plan);

  /// *Collective.* Throws as zero::initialize() and models::load_weights().
  Engine initialize(const TrainPlan& plan, const Config& config, Group group) const;

  // As GPT's and CausalLM's.
  at::Tensor forward(const at::Tensor& tokens);
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);
  void train(bool on = true);
  void eval() { train(false); }

  /// Writes the model as a Hugging Face folder, TrainPlan::export_folder. *Collective.* Throws IoError,
  /// CheckpointError.
  void export_weights(const TrainPlan& plan, Engine& engine) const;

 private:
  std::variant<GPT, models::CausalLM> model_;
};

/// As GPT-2 was trained: no weight decay on biases and norms.
ParameterGroup no_decay_group();

}  // namespace zero::app
