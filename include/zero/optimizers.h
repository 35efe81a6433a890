#pragma once
// The optimizers and their hyper-parameters, one row each. The keys of optimizer.params, their checks, the fields of
// zero::Config::Optimizer and zero::ParameterGroup, what the kernels read and what Python lists are made of these rows.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace zero {

/// The numbers that a hyper-parameter may have.
struct HyperParameterRange {
  double minimum = 0;
  double maximum = std::numeric_limits<double>::infinity();
  bool below = false;  ///< the maximum itself is too large
};
constexpr HyperParameterRange at_least(double minimum) { return {.minimum = minimum}; }
constexpr HyperParameterRange from_to(double minimum, double maximum) { return {minimum, maximum, false}; }
constexpr HyperParameterRange from_to_below(double minimum, double maximum) { return {minimum, maximum, true}; }

/// A row is X(where, type, name, default, range, meaning); an optimizer may have another default and range, see
/// kOptimizers. `where` says how a parameter group gives it: BETAS as `betas`, COMMON and GROUP by its name, SHARED not
/// at all, as all groups have the same.
// clang-format off
#define ZERO_HYPER_PARAMETERS(X) \
  X(BETAS, double, beta1, 0.9, from_to_below(0, 1), \
    "Adam, AdamW: decay of the first and second moment; Lion: of the momentum in the step and in the state; " \
    "AdEMAMix: a third is beta3") \
  X(BETAS, double, beta2, 0.999, from_to_below(0, 1), "the second of betas") \
  X(COMMON, double, eps, 1e-8, at_least(0), "added to the denominator: all but SGD and Lion; Adagrad: 1e-10") \
  X(COMMON, double, weight_decay, 0.0, at_least(0), \
    "decoupled in AdamW, AdEMAMix, Lion and Muon, else added to the gradient. torch::optim::AdamW has 0.01") \
  X(GROUP, bool, bias_correction, true, at_least(0), "Adam, AdamW: divide the moments by 1 - beta^step") \
  X(SHARED, bool, adam_w_mode, true, at_least(0), \
    "type Adam: false adds the decay to the gradient (L2); type AdamW is always decoupled") \
  X(GROUP, bool, amsgrad, false, at_least(0), \
    "Adam, AdamW: divide by the largest second moment so far, a third state") \
  X(GROUP, bool, maximize, false, at_least(0), "all but Lion, Lamb and Muon: climb instead of descending") \
  X(GROUP, double, momentum, 0.0, at_least(0), \
    "SGD, RMSprop: decay of the momentum; not 0: a state more. Muon: 0.95") \
  X(GROUP, double, dampening, 0.0, at_least(0), "SGD: the part of a gradient that does not go into the momentum") \
  X(GROUP, bool, nesterov, false, at_least(0), "SGD: Nesterov's momentum; needs a momentum and no dampening") \
  X(GROUP, double, alpha, 0.99, from_to(0, 1), \
    "RMSprop: decay of the mean of squares. AdEMAMix: weight of the slow average, 5.0") \
  X(GROUP, bool, centered, false, at_least(0), \
    "RMSprop: divide by the deviation from the mean gradient, a state more") \
  X(GROUP, double, lr_decay, 0.0, at_least(0), "Adagrad: update k, from 0, has the rate lr / (1 + k lr_decay)") \
  X(GROUP, double, initial_accumulator_value, 0.0, at_least(0), "Adagrad: its sums of squares at the start") \
  X(GROUP, double, max_coeff, 10.0, at_least(0), "Lamb: upper bound of the ratio of a weight's norm to its step's") \
  X(GROUP, double, min_coeff, 0.01, at_least(0), "Lamb: lower bound of that ratio") \
  X(SHARED, bool, eps_inside_sqrt, false, at_least(0), "Lamb: eps is added before the root is taken") \
  X(SHARED, double, beta2_decay, -0.8, from_to(-10, 0), \
    "Adafactor: the second moments take step^beta2_decay of the new squares") \
  X(SHARED, double, d, 1.0, at_least(1), \
    "Adafactor: bound of the root mean square of a tensor's step before its rate") \
  X(GROUP, double, beta3, 0.9999, from_to_below(0, 1), \
    "AdEMAMix: decay of the slow average; may be the third of betas") \
  X(GROUP, std::int64_t, t_alpha, 0, from_to(0, 1e15), "AdEMAMix: steps in which alpha grows from 0; 0: none") \
  X(GROUP, std::int64_t, t_beta3, 0, from_to(0, 1e15), \
    "AdEMAMix: steps in which beta3 grows from the first beta; 0: none")
// clang-format on

/// The text of rows that a parameter group gives by their own name, for the X of ZERO_HYPER_PARAMETERS; nothing for
/// others.
#define ZERO_IF_GROUP(where, ...) ZERO_IF_GROUP_##where(__VA_ARGS__)
#define ZERO_IF_GROUP_BETAS(...)
#define ZERO_IF_GROUP_COMMON(...)
#define ZERO_IF_GROUP_SHARED(...)
#define ZERO_IF_GROUP_GROUP(...) __VA_ARGS__

enum class HyperParameterType : std::uint8_t { kBool, kCount, kNumber };

struct HyperParameterInfo {
  std::string_view name;
  HyperParameterType type = HyperParameterType::kNumber;
  std::string_view default_value;  ///< as JSON
  HyperParameterRange range;
  bool in_groups = false;  ///< a parameter group may set it; beta1 and beta2 as betas
  std::string_view meaning;
};

namespace detail {
constexpr HyperParameterType hyper_parameter_type(bool) { return HyperParameterType::kBool; }
constexpr HyperParameterType hyper_parameter_type(std::int64_t) { return HyperParameterType::kCount; }
constexpr HyperParameterType hyper_parameter_type(double) { return HyperParameterType::kNumber; }

constexpr bool is_in_groups(std::string_view where) { return where != "SHARED"; }
}  // namespace detail

#define ZERO_INFO(where, type, name, value, range, meaning) \
  HyperParameterInfo{#name, detail::hyper_parameter_type(type{}), #value, range, detail::is_in_groups(#where), meaning},
/// Of all optimizers.
inline constexpr HyperParameterInfo kHyperParameters[] = {
    {"lr", HyperParameterType::kNumber, "1e-3", at_least(0), true,
     "learning rate; Adagrad, RMSprop, Adafactor: 1e-2; Muon: see muon_lr"},
    ZERO_HYPER_PARAMETERS(ZERO_INFO)};
#undef ZERO_INFO

/// The algorithms; `src/optim` has their states and kernels.
enum class Algorithm : std::uint8_t {
  kAdam,
  kSgd,
  kAdagrad,
  kRmsprop,
  kLion,
  kLamb,
  kMuon,
  kAdafactor,
  kAdam8bit,
  kAdemamix,
  kCount  ///< not an algorithm
};
inline constexpr std::size_t kAlgorithms = static_cast<std::size_t>(Algorithm::kCount);

/// What an optimizer has instead of a hyper-parameter's own default and range.
struct OptimizerDefault {
  std::string_view name;  ///< empty: no more
  double value = 0;
  HyperParameterRange range = {};
};

struct OptimizerInfo {
  Algorithm algorithm;
  /// What optimizer.type may be, separated by '|'.
  std::string_view types;
  /// The hyper-parameters that it has besides lr and weight_decay, and keys of optimizer.params that are no
  /// hyper-parameters of updates, separated by '|'.
  std::string_view parameters;
  std::array<OptimizerDefault, 4> defaults = {};
  /// Schedules that cycle momentum cycle its first beta.
  bool cycles_beta1 = false;
};

inline constexpr OptimizerInfo kOptimizers[] = {
    {.algorithm = Algorithm::kAdam,
     .types = "AdamW|Adam",
     .parameters = "betas|eps|bias_correction|adam_w_mode|amsgrad|maximize|torch_adam",
     .cycles_beta1 = true},
    {.algorithm = Algorithm::kSgd, .types = "SGD", .parameters = "maximize|momentum|dampening|nesterov"},
    {.algorithm = Algorithm::kAdagrad,
     .types = "Adagrad",
     .parameters = "eps|maximize|lr_decay|initial_accumulator_value",
     .defaults = {{{"lr", 1e-2}, {"eps", 1e-10}}}},
    {.algorithm = Algorithm::kRmsprop,
     .types = "RMSprop",
     .parameters = "eps|maximize|momentum|alpha|centered",
     .defaults = {{{"lr", 1e-2}}}},
    {.algorithm = Algorithm::kLion, .types = "Lion", .parameters = "betas", .cycles_beta1 = true},
    {.algorithm = Algorithm::kLamb,
     .types = "Lamb",
     .parameters = "betas|eps|bias_correction|max_coeff|min_coeff|eps_inside_sqrt"},
    {.algorithm = Algorithm::kMuon,
     .types = "Muon",
     .parameters = "betas|eps|adam_w_mode|momentum|muon_lr|adam_lr|ns_method|per_head_muon",
     .defaults = {{{"lr", 0.02}, {"momentum", 0.95}, {"beta2", 0.95, from_to_below(0, 1)}, {"eps", 1e-10}}}},
    {.algorithm = Algorithm::kAdafactor,
     .types = "Adafactor",
     .parameters = "maximize|beta2_decay|d",
     .defaults = {{{"lr", 1e-2}}}},
    {.algorithm = Algorithm::kAdam8bit,
     .types = "AdamW8bit|Adam8bit",
     .parameters = "betas|eps|bias_correction|adam_w_mode|maximize|torch_adam",
     .cycles_beta1 = true},
    {.algorithm = Algorithm::kAdemamix,
     .types = "AdEMAMix",
     .parameters = "betas|eps|maximize|beta3|alpha|t_alpha|t_beta3",
     .defaults = {{{"alpha", 5.0}}},
     .cycles_beta1 = true},
};

/// Whether `name` is one of `names`, which are separated by '|'.
constexpr bool is_among(std::string_view name, std::string_view names) {
  while (!names.empty()) {
    const std::size_t bar = names.find('|');
    if (names.substr(0, bar) == name) return true;
    if (bar == std::string_view::npos) break;
    names.remove_prefix(bar + 1);
  }
  return false;
}

/// Null for a type that is not there.
constexpr const OptimizerInfo* find_optimizer(std::string_view type) {
  for (const OptimizerInfo& optimizer : kOptimizers) {
    if (is_among(type, optimizer.types)) return &optimizer;
  }
  return nullptr;
}

}  // namespace zero
