#pragma once
// What `zero train` trains: its own GPT, or a model in Hugging Face's shapes.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "train/train_plan.h"
#include "zero/engine.h"
#include "zero/lm/causal_lm.h"
#include "zero/lm/models.h"

namespace zero::app {

class LanguageModel {
 public:
  /// The plan's, in fp32: initialised from libtorch's default generator, or without values where the plan has weights
  /// to begin with. Never whole (zero::deferred_init); initialize() takes it to `device`.
  explicit LanguageModel(const TrainPlan& plan, at::Device device = at::kCPU);
  /// The plan's, whose values are loaded in any case.
  static LanguageModel without_values(const TrainPlan& plan, at::Device device);

  /// *Collective.* Throws as zero::initialize().
  Engine initialize(const Config& config, InitializeOptions options) const;
  /// Of a Hugging Face folder. *Collective.* Throws as models::load_weights().
  void load_weights(Engine& engine, const std::string& folder) const;

  /// As models::load_adapters(). *Collective.*
  void load_adapters(Engine& engine, const std::string& folder) const;

  // As GPT's and CausalLM's. Tokens and targets may be on the CPU.
  at::Tensor forward(const at::Tensor& tokens);
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, double divisor = 0);
  std::int64_t vocab() const;
  /// As models::generate(), or generate_tokens() of the plan's sequence length. *Collective.*
  std::vector<std::int64_t> generate(const std::vector<std::int64_t>& prompt, const GenerateOptions& options);
  void train(bool on = true);
  void eval() { train(false); }

  /// Writes the model as a Hugging Face folder, or its adapters as PEFT's, to TrainPlan::export_folder. *Collective.*
  /// Throws IoError, CheckpointError.
  void export_weights(const TrainPlan& plan, Engine& engine) const;

 private:
  using Model = std::variant<GPT, models::CausalLM>;
  LanguageModel(Model model, at::Device device);
  static Model build(const TrainPlan& plan, bool without_values);

  Model model_;
  at::Device device_ = at::kCPU;
};

/// As GPT-2 was trained: no weight decay on biases and norms.
ParameterGroup no_decay_group();

}  // namespace zero::app
