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
    return std::tuple(o.type, o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.bias_correction, o.adam_w_mode,
                      o.amsgrad, o.maximize, o.momentum, o.dampening, o.nesterov, o.alpha, o.centered, o.lr_decay,
                      o.initial_accumulator_value, o.max_coeff, o.min_coeff, o.eps_inside_sqrt, o.muon_lr, o.adam_lr,
                      o.ns_method, o.beta2_decay, o.d);
  };
  return values(one) != values(unset);
}

constexpr std::string_view kAdams = "Adam|AdamW|Adam8bit|AdamW8bit";

constexpr Key taken_by(std::string_view types, Key key) {
  key.taken_by = types;
  return key;
}

constexpr Key kOptimizer[] = {
    section("optimizer", "without it: AdamW with the defaults below"),
    {.path = "optimizer.type",
     .kind = Kind::kChoice,
     .fallback = "\"AdamW\"",
     .note = "AdamW, Adam (decoupled weight decay as well unless params.adam_w_mode is false), SGD, Adagrad, RMSprop, "
             "Lion, Lamb, Muon, Adafactor, AdamW8bit or Adam8bit: docs/optimizers.md",
     .choices = "AdamW|Adam|SGD|Adagrad|RMSprop|Lion|Lamb|Muon|Adafactor|AdamW8bit|Adam8bit",
     .refused_choices = "OneBitAdam|ZeroOneAdam|OneBitLamb|MuAdam|MuAdamW|MuSGD|Adamax|NAdam|RAdam|Adadelta|"
                        "ASGD|Rprop|LBFGS|SparseAdam",
     .nullable = true,
     .field = {.bind = field<&Config::optimizer, &Optimizer::type>.bind,
               .unbind = [](const Config& c) -> Value {
                 return {.given = c.optimizer.given || is_set(c.optimizer), .text = c.optimizer.type};
               }}},
    or_null(no_effect("optimizer.legacy_fusion", Kind::kBool, "false", "the step is always one fused pass", "false")),
    section("optimizer.params", "of the optimizer"),
    honoured("optimizer.params.lr", Kind::kNumber, "1e-3",
             "learning rate; Adagrad, RMSprop, Adafactor: 1e-2; Muon: see muon_lr",
             field<&Config::optimizer, &Optimizer::lr>),
    {.path = "optimizer.params.betas",
     .kind = Kind::kPair,
     .fallback = "[0.9, 0.999]",
     .note = "Adam, AdamW: decay of the first and second moment; Lion: of the momentum in the step and in the state",
     .maximum = 1,
     .below = true,
     .taken_by = "Adam|AdamW|Adam8bit|AdamW8bit|Lion|Lamb|Muon",
     .field = {.bind = [](Config& c, const Value& v) { c.optimizer.beta1 = v.number, c.optimizer.beta2 = v.second; },
               .unbind = [](const Config& c) -> Value {
                 return {.number = c.optimizer.beta1, .second = c.optimizer.beta2};
               }}},
    taken_by("Adam|AdamW|Adam8bit|AdamW8bit|Adagrad|RMSprop|Lamb|Muon",
             honoured("optimizer.params.eps", Kind::kNumber, "1e-8",
                      "added to the denominator: all but SGD and Lion; Adagrad: 1e-10",
                      field<&Config::optimizer, &Optimizer::eps>)),
    honoured("optimizer.params.weight_decay", Kind::kNumber, "0.0",
             "decoupled in AdamW, Lion and Muon, else added to the gradient. torch::optim::AdamW has 0.01",
             field<&Config::optimizer, &Optimizer::weight_decay>),
    taken_by("Adam|AdamW|Adam8bit|AdamW8bit|Lamb", honoured("optimizer.params.bias_correction", Kind::kBool, "true",
                                                            "Adam, AdamW: divide the moments by 1 - beta^step",
                                                            field<&Config::optimizer, &Optimizer::bias_correction>)),
    taken_by("Adam|AdamW|Adam8bit|AdamW8bit|Muon",
             honoured("optimizer.params.adam_w_mode", Kind::kBool, "true",
                      "type Adam: false adds the decay to the gradient (L2); type AdamW is always decoupled",
                      field<&Config::optimizer, &Optimizer::adam_w_mode>)),
    taken_by("Adam|AdamW", honoured("optimizer.params.amsgrad", Kind::kBool, "false",
                                    "Adam, AdamW: divide by the largest second moment so far, a third state",
                                    field<&Config::optimizer, &Optimizer::amsgrad>)),
    taken_by("Adam|AdamW|Adam8bit|AdamW8bit|SGD|Adagrad|RMSprop|Adafactor",
             honoured("optimizer.params.maximize", Kind::kBool, "false",
                      "all but Lion, Lamb and Muon: climb instead of "
                      "descending",
                      field<&Config::optimizer, &Optimizer::maximize>)),
    taken_by("SGD|RMSprop|Muon", honoured("optimizer.params.momentum", Kind::kNumber, "0.0",
                                          "SGD, RMSprop: decay of the momentum; not 0: a state more. Muon: 0.95",
                                          field<&Config::optimizer, &Optimizer::momentum>)),
    taken_by("SGD", honoured("optimizer.params.dampening", Kind::kNumber, "0.0",
                             "SGD: the part of a gradient that does not go into the momentum",
                             field<&Config::optimizer, &Optimizer::dampening>)),
    taken_by("SGD", honoured("optimizer.params.nesterov", Kind::kBool, "false",
                             "SGD: Nesterov's momentum; needs a momentum and no dampening",
                             field<&Config::optimizer, &Optimizer::nesterov>)),
    {.path = "optimizer.params.alpha",
     .kind = Kind::kNumber,
     .fallback = "0.99",
     .note = "RMSprop: decay of the mean of squares",
     .maximum = 1,
     .taken_by = "RMSprop",
     .field = field<&Config::optimizer, &Optimizer::alpha>},
    taken_by("RMSprop", honoured("optimizer.params.centered", Kind::kBool, "false",
                                 "RMSprop: divide by the deviation from the mean gradient, a state more",
                                 field<&Config::optimizer, &Optimizer::centered>)),
    taken_by("Adagrad", honoured("optimizer.params.lr_decay", Kind::kNumber, "0.0",
                                 "Adagrad: update k, from 0, has the rate lr / (1 + k lr_decay)",
                                 field<&Config::optimizer, &Optimizer::lr_decay>)),
    taken_by("Adagrad", honoured("optimizer.params.initial_accumulator_value", Kind::kNumber, "0.0",
                                 "Adagrad: its sums of squares at the start",
                                 field<&Config::optimizer, &Optimizer::initial_accumulator_value>)),
    {.path = "optimizer.params.max_coeff",
     .kind = Kind::kNumber,
     .fallback = "10.0",
     .note = "Lamb: upper bound of the ratio of a weight's norm to its step's",
     .taken_by = "Lamb",
     .field = field<&Config::optimizer, &Optimizer::max_coeff>},
    {.path = "optimizer.params.min_coeff",
     .kind = Kind::kNumber,
     .fallback = "0.01",
     .note = "Lamb: lower bound of that ratio",
     .taken_by = "Lamb",
     .field = field<&Config::optimizer, &Optimizer::min_coeff>},
    taken_by("Lamb", honoured("optimizer.params.eps_inside_sqrt", Kind::kBool, "false",
                              "Lamb: eps is added before the root is taken",
                              field<&Config::optimizer, &Optimizer::eps_inside_sqrt>)),
    taken_by("Muon", honoured("optimizer.params.muon_lr", Kind::kNumber, "null",
                              "Muon: the rate of its matrices; null: lr, or 0.02 where that is not given",
                              field<&Config::optimizer, &Optimizer::muon_lr>)),
    taken_by("Muon", honoured("optimizer.params.adam_lr", Kind::kNumber, "null",
                              "Muon: the rate of what AdamW updates; null: lr, or 3e-4 where that is not given",
                              field<&Config::optimizer, &Optimizer::adam_lr>)),
    {.path = "optimizer.params.ns_method",
     .kind = Kind::kChoice,
     .fallback = "\"gram\"",
     .note = "Muon: Newton-Schulz on the small Gram matrix, or the standard iteration",
     .choices = "gram|standard",
     .taken_by = "Muon",
     .field = {.bind = field<&Config::optimizer, &Optimizer::ns_method>.bind,
               .unbind = field<&Config::optimizer, &Optimizer::ns_method>.unbind}},
    {.path = "optimizer.params.beta2_decay",
     .kind = Kind::kNumber,
     .fallback = "-0.8",
     .note = "Adafactor: the second moments take step^beta2_decay of the new squares",
     .minimum = -10,
     .maximum = 0,
     .taken_by = "Adafactor",
     .field = field<&Config::optimizer, &Optimizer::beta2_decay>},
    {.path = "optimizer.params.d",
     .kind = Kind::kNumber,
     .fallback = "1.0",
     .note = "Adafactor: bound of the root mean square of a tensor's step before its rate",
     .minimum = 1,
     .taken_by = "Adafactor",
     .field = field<&Config::optimizer, &Optimizer::d>},
    taken_by("Muon", refused("optimizer.params.per_head_muon", Kind::kBool, "false",
                             "matrices are orthogonalised whole; remove the key", "false")),
    {.path = "optimizer.params.torch_adam",  // read by cross_check()
     .kind = Kind::kBool,
     .fallback = "false",
     .note = "Adam, AdamW: true: without weight_decay torch.optim.AdamW's 0.01 where it is decoupled, as in DeepSpeed. "
             "The kernel is the engine's own either way and follows torch.optim's numbers",
     .taken_by = kAdams},
    no_effect("optimizer.params.fused", Kind::kBool, "null", "the step is always one fused pass", "true"),
    no_effect("optimizer.params.foreach", Kind::kBool, "null", "the step is always one fused pass", "false"),
    no_effect("optimizer.params.capturable", Kind::kBool, "false", "the step is not captured in graphs of a GPU",
              "false"),
    refused("optimizer.params.differentiable", Kind::kBool, "false",
            "autograd does not go through steps; remove the key", "false"),
    no_effect("optimizer.params.set_grad_none", Kind::kBool, "true",
              "gradients leave the parameters during backward, so there is nothing to zero", "true"),
    refused("optimizer.params.fp32_optimizer_states", Kind::kBool, "true",
            "states are fp32 unless bf16.bf16_optimizer_states is true, or the type ends in 8bit; remove the key",
            "true"),
    refused("optimizer.params.max_grad_norm", Kind::kNumber, "0.0",
            "not an optimizer parameter; use the top-level key gradient_clipping", "0"),
};

}  // namespace

std::span<const Key> optimizer_keys() { return kOptimizer; }

}  // namespace zero::config
