#include "setup/optimizer.h"

#include <fmt/format.h>

#include "zero/errors.h"

namespace zero::setup {

optim::Algorithm algorithm_of(const Config::Optimizer& optimizer) {
  using enum optim::Algorithm;
  if (optimizer.type == "AdamW" || optimizer.type == "Adam") return kAdam;
  for (const optim::Algorithm algorithm : {kSgd, kAdagrad, kRmsprop, kLion}) {
    if (optimizer.type == optim::algorithm_name(algorithm)) return algorithm;
  }
  throw ConfigError(fmt::format("optimizer.type: there is no '{}'; docs/optimizers.md lists what there is",
                                optimizer.type));
}

optim::Hyper hyper_of(const Config::Optimizer& optimizer) {
  optim::Hyper hyper;
  hyper.lr = optimizer.lr;
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
  return hyper;
}

const optim::Rule& rule_of(const Config::Optimizer& optimizer) {
  const optim::Hyper hyper = hyper_of(optimizer);
  return optim::rule_for(algorithm_of(optimizer), {&hyper, 1});
}

}  // namespace zero::setup
