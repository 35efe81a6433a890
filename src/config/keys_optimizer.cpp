// "optimizer".
#include <tuple>

#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;
using Optimizer = Config::Optimizer;

/// Filled in by hand: it counts then, without being given.
bool is_set(const Optimizer& one) {
  const Optimizer unset;
  const auto values = [](const Optimizer& o) {
    return std::tuple(o.type, o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.bias_correction, o.adam_w_mode);
  };
  return values(one) != values(unset);
}

constexpr Key kOptimizer[] = {
    section("optimizer", "without it: AdamW with the defaults below"),
    {.path = "optimizer.type",
     .kind = Kind::kChoice,
     .fallback = "\"AdamW\"",
     .note = "AdamW, or Adam (decoupled weight decay as well unless params.adam_w_mode is false)",
     .choices = "AdamW|Adam",
     .refused_choices =
         "OneBitAdam|ZeroOneAdam|OneBitLamb|Lamb|Lion|Muon|Adagrad|MuAdam|MuAdamW|MuSGD|SGD|RMSprop|"
         "Adamax|NAdam|RAdam|Adadelta|ASGD|Rprop|LBFGS|SparseAdam|Adafactor",
     .field = {.bind = field<&Config::optimizer, &Optimizer::type>.bind,
               .unbind = [](const Config& c) -> Value {
                 return {.given = c.optimizer.given || is_set(c.optimizer), .text = c.optimizer.type};
               }}},
    no_effect("optimizer.legacy_fusion", Kind::kBool, "false", "the step is always one fused pass", "false"),
    section("optimizer.params", "of the optimizer"),
    honoured("optimizer.params.lr", Kind::kNumber, "1e-3", "learning rate",
             field<&Config::optimizer, &Optimizer::lr>),
    {.path = "optimizer.params.betas",
     .kind = Kind::kPair,
     .fallback = "[0.9, 0.999]",
     .note = "decay of the first and second moment",
     .maximum = 1,
     .below = true,
     .field = {.bind = [](Config& c, const Value& v) { c.optimizer.beta1 = v.number, c.optimizer.beta2 = v.second; },
               .unbind = [](const Config& c) -> Value {
                 return {.number = c.optimizer.beta1, .second = c.optimizer.beta2};
               }}},
    honoured("optimizer.params.eps", Kind::kNumber, "1e-8", "added to the denominator",
             field<&Config::optimizer, &Optimizer::eps>),
    honoured("optimizer.params.weight_decay", Kind::kNumber, "0.0",
             "DeepSpeed's default; torch::optim::AdamW has 0.01",
             field<&Config::optimizer, &Optimizer::weight_decay>),
    honoured("optimizer.params.bias_correction", Kind::kBool, "true", "divide the moments by 1 - beta^step",
             field<&Config::optimizer, &Optimizer::bias_correction>),
    honoured("optimizer.params.adam_w_mode", Kind::kBool, "true",
             "type Adam: false adds the decay to the gradient (L2); type AdamW is always decoupled",
             field<&Config::optimizer, &Optimizer::adam_w_mode>),
    no_effect("optimizer.params.torch_adam", Kind::kBool, "false",
              "the engine's own fused kernel is always used; it follows torch.optim's numbers", "false"),
    no_effect("optimizer.params.fused", Kind::kBool, "null", "the step is always one fused pass", "true"),
    no_effect("optimizer.params.foreach", Kind::kBool, "null", "the step is always one fused pass", "false"),
    no_effect("optimizer.params.set_grad_none", Kind::kBool, "true",
              "gradients leave the parameters during backward, so there is nothing to zero", "true"),
    refused("optimizer.params.amsgrad", Kind::kBool, "false",
            "AMSGrad is not built (nor in DeepSpeed's FusedAdam); remove the key", "false"),
    refused("optimizer.params.maximize", Kind::kBool, "false", "only minimising is built; negate the loss",
            "false"),
    refused("optimizer.params.fp32_optimizer_states", Kind::kBool, "true",
            "moments are always fp32; remove the key", "true"),
    refused("optimizer.params.max_grad_norm", Kind::kNumber, "0.0",
            "not an optimizer parameter; use the top-level key gradient_clipping", "0"),
};

}  // namespace

std::span<const Key> optimizer_keys() { return kOptimizer; }

}  // namespace zero::config
