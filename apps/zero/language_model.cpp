#include "language_model.h"

#include <utility>

#include "zero/init.h"

namespace zero::app {
namespace {

std::variant<GPT, models::CausalLM> build(const TrainPlan& plan) {
  if (plan.model.empty()) return deferred_init([&] { return GPT(gpt_options(plan)); });
  return deferred_init([&] { return models::CausalLM(causal_lm_config(plan)); },
                       {.without_values = !plan.init_from.empty()});
}

}  // namespace

LanguageModel::LanguageModel(const TrainPlan& plan) : model_(build(plan)) {}

Engine LanguageModel::initialize(const TrainPlan& plan, const Config& config, Group group) const {
  const InitializeOptions options{.group = std::move(group), .parameter_groups = {no_decay_group()}};
  Engine engine =
      std::visit([&](const auto& model) -> Engine { return zero::initialize(model, config, options); }, model_);
  if (!plan.init_from.empty() && !plan.goes_on)
    models::load_weights(engine, std::get<models::CausalLM>(model_), plan.init_from);
  return engine;
}

at::Tensor LanguageModel::forward(const at::Tensor& tokens) {
  return std::visit([&](auto& model) { return model->forward(tokens); }, model_);
}

at::Tensor LanguageModel::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return std::visit([&](auto& model) { return model->loss(tokens, targets); }, model_);
}

void LanguageModel::train(bool on) {
  std::visit([&](auto& model) { model->train(on); }, model_);
}

void LanguageModel::export_weights(const TrainPlan& plan, Engine& engine) const {
  models::save_pretrained(engine, std::get<models::CausalLM>(model_), plan.export_folder, "module", plan.tokenizer);
}

ParameterGroup no_decay_group() {
  return {.names = {"*.bias", "*.ln1.weight", "*.ln2.weight", "lnf.weight", "*.ln_1.weight", "*.ln_2.weight",
                    "*.ln_f.weight", "*norm.weight"},
          .weight_decay = 0.0};
}

}  // namespace zero::app
