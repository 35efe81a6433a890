#include "model/language_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "zero/init.h"
#include "zero/lm/lora.h"

namespace zero::app {

LanguageModel::Model LanguageModel::build(const TrainPlan& plan, bool without_values) {
  const auto make = [&](const auto& construct) { return deferred_init(construct, {.without_values = without_values}); };
  if (plan.model.empty()) return make([&] { return GPT(gpt_options(plan)); });
  auto model = make([&] { return models::CausalLM(causal_lm_config(plan)); });
  if (!plan.lora.empty()) models::add_lora(model, models::parse_lora(plan.lora));  // they begin with values
  return model;
}

LanguageModel::LanguageModel(Model model, at::Device device) : model_(std::move(model)), device_(device) {}

LanguageModel::LanguageModel(const TrainPlan& plan, at::Device device)
    : LanguageModel(build(plan, !plan.init_from.empty()), device) {}

LanguageModel LanguageModel::without_values(const TrainPlan& plan, at::Device device) {
  return {build(plan, /*without_values=*/true), device};
}

Engine LanguageModel::initialize(const Config& config, InitializeOptions options) const {
  options.device = device_;
  return std::visit([&](const auto& model) -> Engine { return zero::initialize(model, config, options); }, model_);
}

void LanguageModel::load_weights(Engine& engine, const std::string& folder) const {
  models::load_weights(engine, std::get<models::CausalLM>(model_), folder);
}

at::Tensor LanguageModel::forward(const at::Tensor& tokens) {
  return std::visit([&](auto& model) { return model->forward(tokens.to(device_)); }, model_);
}

at::Tensor LanguageModel::loss(const at::Tensor& tokens, const at::Tensor& targets, double divisor) {
  return std::visit([&](auto& model) { return model->loss(tokens.to(device_), targets.to(device_), divisor); }, model_);
}

std::int64_t LanguageModel::vocab() const {
  if (const GPT* gpt = std::get_if<GPT>(&model_)) return (*gpt)->options.vocab;
  return std::get<models::CausalLM>(model_)->config.vocab;
}

std::vector<std::int64_t> LanguageModel::generate(const std::vector<std::int64_t>& prompt,
                                                  const GenerateOptions& options) {
  if (auto* model = std::get_if<models::CausalLM>(&model_)) return models::generate(*model, prompt, options);
  GenerateOptions of_gpt = options;
  of_gpt.context = std::get<GPT>(model_)->options.seq;
  return generate_tokens([&](const at::Tensor& tokens) { return forward(tokens); }, prompt, of_gpt);
}

void LanguageModel::train(bool on) {
  std::visit([&](auto& model) { model->train(on); }, model_);
}

void LanguageModel::load_adapters(Engine& engine, const std::string& folder) const {
  models::load_adapters(engine, std::get<models::CausalLM>(model_), folder);
}

void LanguageModel::export_weights(const TrainPlan& plan, Engine& engine) const {
  const auto& model = std::get<models::CausalLM>(model_);
  if (!plan.lora.empty() && !plan.merge) {
    models::save_adapters(engine, model, models::parse_lora(plan.lora), plan.export_folder);
    return;
  }
  if (plan.merge) models::merge_adapters(engine, model);
  models::save_pretrained(engine, model, plan.export_folder, "module", tokenizer_of(plan));
}

ParameterGroup no_decay_group() {
  return {.names = {"*.bias", "*.ln1.weight", "*.ln2.weight", "lnf.weight", "*.ln_1.weight", "*.ln_2.weight",
                    "*.ln_f.weight", "*norm.weight"},
          .weight_decay = 0.0};
}

}  // namespace zero::app
