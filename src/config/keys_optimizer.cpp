// "optimizer".
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "config/fields.h"

namespace zero::config {
namespace {

using enum KeyStatus;
using Optimizer = Config::Optimizer;

/// Filled in by hand: it counts then, without being given.
bool is_set(const Optimizer& one) {
  const Optimizer unset;
  bool same = one.type == unset.type && one.lr == unset.lr && one.muon_lr == unset.muon_lr &&
              one.adam_lr == unset.adam_lr && one.ns_method == unset.ns_method;
#define ZERO_COMPARE(where, type, name, value, range, meaning) same = same && one.name == unset.name;
  ZERO_HYPER_PARAMETERS(ZERO_COMPARE)
#undef ZERO_COMPARE
  return !same;
}

constexpr std::string_view kParams = "optimizer.params.";

std::string_view name_of(const Key& key) { return key.path.substr(kParams.size()); }

Key parameter(std::string_view path, const HyperParameterInfo& info, Field field) {
  constexpr Kind kKinds[] = {Kind::kBool, Kind::kCount, Kind::kNumber};  // as HyperParameterType
  return {.path = path,
          .kind = kKinds[static_cast<std::size_t>(info.type)],
          .fallback = info.default_value,
          .note = info.meaning,
          .minimum = info.range.minimum,
          .maximum = info.range.maximum,
          .below = info.range.below,
          .nullable = info.type == HyperParameterType::kCount,
          .field = field};
}

const HyperParameterInfo& info_of(std::string_view name) {
  return *std::ranges::find(kHyperParameters, name, &HyperParameterInfo::name);
}

/// A key for each row but those of betas.
void add_hyper_parameters(std::vector<Key>& keys) {
#define ZERO_KEY_OF_BETAS(name)
#define ZERO_KEY_OF_COMMON(name) \
  keys.push_back(parameter("optimizer.params." #name, info_of(#name), field<&Config::optimizer, &Optimizer::name>));
#define ZERO_KEY_OF_SHARED(name) ZERO_KEY_OF_COMMON(name)
#define ZERO_KEY_OF_GROUP(name) ZERO_KEY_OF_COMMON(name)
#define ZERO_KEY(where, type, name, value, range, meaning) ZERO_KEY_OF_##where(name)
  ZERO_HYPER_PARAMETERS(ZERO_KEY)
#undef ZERO_KEY
#undef ZERO_KEY_OF_BETAS
#undef ZERO_KEY_OF_COMMON
#undef ZERO_KEY_OF_SHARED
#undef ZERO_KEY_OF_GROUP
}

std::string joined(std::string_view separator, bool (*counts)(const OptimizerInfo&, std::string_view),
                   std::string_view name = {}) {
  std::string text;
  for (const OptimizerInfo& optimizer : kOptimizers) {
    if (counts(optimizer, name)) text += (text.empty() ? "" : std::string(separator)) + std::string(optimizer.types);
  }
  return text;
}

constexpr Key kBefore[] = {
    section("optimizer", "without it: AdamW with the defaults below"),
    {.path = "optimizer.type",
     .kind = Kind::kChoice,
     .fallback = "\"AdamW\"",
     .note = "AdamW, Adam (decoupled weight decay as well unless params.adam_w_mode is false), or another of "
             "docs/optimizers.md",
     .refused_choices = "OneBitAdam|ZeroOneAdam|OneBitLamb|MuAdam|MuAdamW|MuSGD|Adamax|NAdam|RAdam|Adadelta|"
                        "ASGD|Rprop|LBFGS|SparseAdam",
     .nullable = true,
     .field = {.bind = field<&Config::optimizer, &Optimizer::type>.bind,
               .unbind = [](const Config& c) -> Value {
                 return {.given = c.optimizer.given || is_set(c.optimizer), .text = c.optimizer.type};
               }}},
    or_null(no_effect("optimizer.legacy_fusion", Kind::kBool, "false", "the step is always one fused pass", "false")),
    section("optimizer.params", "of the optimizer"),
    honoured("optimizer.params.lr", Kind::kNumber, kHyperParameters[0].default_value, kHyperParameters[0].meaning,
             field<&Config::optimizer, &Optimizer::lr>),
    {.path = "optimizer.params.betas",
     .kind = Kind::kPair,
     .fallback = "[0.9, 0.999]",
     .note = kHyperParameters[1].meaning,
     .maximum = 1,
     .below = true,
     .field = {.bind =
                   [](Config& c, const Value& v) {
                     c.optimizer.beta1 = v.number, c.optimizer.beta2 = v.second;
                     if (v.third) c.optimizer.beta3 = *v.third;
                   },
               .unbind = [](const Config& c) -> Value {
                 return {.number = c.optimizer.beta1, .second = c.optimizer.beta2};
               }}},
};

constexpr Key kAfter[] = {
    honoured("optimizer.params.muon_lr", Kind::kNumber, "null",
             "Muon: the rate of its matrices; null: lr, or 0.02 where that is not given",
             field<&Config::optimizer, &Optimizer::muon_lr>),
    honoured("optimizer.params.adam_lr", Kind::kNumber, "null",
             "Muon: the rate of what AdamW updates; null: lr, or 3e-4 where that is not given",
             field<&Config::optimizer, &Optimizer::adam_lr>),
    {.path = "optimizer.params.ns_method",
     .kind = Kind::kChoice,
     .fallback = "\"gram\"",
     .note = "Muon: Newton-Schulz on the small Gram matrix, or the standard iteration",
     .choices = "gram|standard",
     .field = {.bind = field<&Config::optimizer, &Optimizer::ns_method>.bind,
               .unbind = field<&Config::optimizer, &Optimizer::ns_method>.unbind}},
    refused("optimizer.params.per_head_muon", Kind::kBool, "false", "matrices are orthogonalised whole; remove the key",
            "false"),
    {.path = "optimizer.params.torch_adam",  // read by cross_check()
     .kind = Kind::kBool,
     .fallback = "false",
     .note = "Adam, AdamW: true: without weight_decay torch.optim.AdamW's 0.01 where it is decoupled, as in DeepSpeed. "
             "The kernel is the engine's own either way and follows torch.optim's numbers"},
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

std::span<const Key> optimizer_keys() {
  // Keys and what they view live as long as the program.
  static const std::string& types = *new std::string(joined("|", [](const auto&, std::string_view) { return true; }));
  static const auto& keys = *new std::vector<Key>([] {
    std::vector<Key> all(std::begin(kBefore), std::end(kBefore));
    add_hyper_parameters(all);
    all.insert(all.end(), std::begin(kAfter), std::end(kAfter));
    for (Key& key : all) {
      if (key.path == "optimizer.type") key.choices = types;
      if (!key.path.starts_with(kParams)) continue;
      const auto has = [](const OptimizerInfo& one, std::string_view name) { return is_among(name, one.parameters); };
      key.taken_by = *new std::string(joined("|", has, name_of(key)));
    }
    return all;
  }());
  return keys;
}

Key for_optimizer(std::string_view type, const Key& key) {
  const OptimizerInfo* const optimizer = find_optimizer(type);
  if (!optimizer || !key.path.starts_with(kParams)) return key;
  Key its = key;
  const std::string_view name = name_of(key);
  if (name == "betas" && is_among("beta3", optimizer->parameters)) its.takes_third = true;
  for (const OptimizerDefault& one : optimizer->defaults) {
    if (one.name != name || name.empty()) continue;
    its.minimum = one.range.minimum;
    its.maximum = one.range.maximum;
    its.below = one.range.below;
  }
  return its;
}

}  // namespace zero::config
