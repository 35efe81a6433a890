#include "setup/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "zero/errors.h"

namespace zero::setup {

optim::Algorithm algorithm_of(const Config::Optimizer& optimizer) {
  using enum optim::Algorithm;
  if (optimizer.type == "AdamW" || optimizer.type == "Adam") return kAdam;
  if (optimizer.type == "AdamW8bit" || optimizer.type == "Adam8bit") return kAdam8bit;
  for (const optim::Algorithm algorithm : {kSgd, kAdagrad, kRmsprop, kLion, kLamb, kMuon, kAdafactor}) {
    if (optimizer.type == optim::algorithm_name(algorithm)) return algorithm;
  }
  throw ConfigError(
      fmt::format("optimizer.type: there is no '{}'; docs/optimizers.md lists what there is", optimizer.type));
}

optim::Hyper hyper_of(const Config::Optimizer& optimizer, bool by_muon) {
  optim::Hyper hyper;
  hyper.lr = optimizer.lr;
  if (optimizer.type == "Muon") hyper.lr = (by_muon ? optimizer.muon_lr : optimizer.adam_lr).value_or(optimizer.lr);
  hyper.beta1 = optimizer.beta1;
  hyper.beta2 = optimizer.beta2;
  hyper.eps = optimizer.eps;
  hyper.weight_decay = optimizer.weight_decay;
  hyper.decoupled = optimizer.adam_w_mode;
  hyper.bias_correction = optimizer.bias_correction;
  hyper.amsgrad = optimizer.amsgrad;
  hyper.maximize = optimizer.maximize;
  hyper.momentum = optimizer.momentum;
  hyper.dampening = optimizer.dampening;
  hyper.nesterov = optimizer.nesterov;
  hyper.alpha = optimizer.alpha;
  hyper.centered = optimizer.centered;
  hyper.lr_decay = optimizer.lr_decay;
  hyper.initial_accumulator_value = optimizer.initial_accumulator_value;
  hyper.max_coeff = optimizer.max_coeff;
  hyper.min_coeff = optimizer.min_coeff;
  hyper.eps_inside_sqrt = optimizer.eps_inside_sqrt;
  hyper.beta2_decay = optimizer.beta2_decay;
  hyper.d = optimizer.d;
  hyper.gram_newton_schulz = optimizer.ns_method == "gram";
  return hyper;
}

bool is_for_muon(std::string_view name, int dims) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return dims >= 2 && lower.find("embed") == std::string::npos && lower.find("lm_head") == std::string::npos;
}

const optim::Rule& rule_of(const Config& config, bool by_muon) {
  const optim::Hyper hyper = hyper_of(config.optimizer, by_muon);
  optim::Algorithm algorithm = algorithm_of(config.optimizer);
  if (algorithm == optim::Algorithm::kMuon && !by_muon) algorithm = optim::Algorithm::kAdam;
  return optim::rule_for(algorithm, {&hyper, 1}, optim::format_of(config.state_dtype()));
}

}  // namespace zero::setup
