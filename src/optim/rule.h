#pragma once
// Rule: an optimizer as a value. It names the states that it keeps per element of a parameter and updates elements
// independently, so that any range of a shard can be updated anywhere. No libtorch.
//
// A rule that needs more than single elements (norms of whole tensors, whole matrices) has two passes. The first leaves
// the weights alone and computes the direction of every element. The direction is then changed by what the rule needs
// of the whole tensor, and the second pass, take_direction(), applies it.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optim/state_format.h"
#include "zero/dtype.h"
#include "zero/optimizers.h"

namespace c10 {
struct Device;
}

namespace zero::optim {

using zero::Algorithm;

/// Hyper-parameters of one update; each rule reads those it knows.
struct Hyper {
  double lr = 1e-3;
#define ZERO_FIELD(where, type, name, value, range, meaning) type name = value;
  ZERO_HYPER_PARAMETERS(ZERO_FIELD)
#undef ZERO_FIELD
  bool gram_newton_schulz = true;
  double eps2 = 1e-3;
  std::int64_t step = 1;      ///< 1 for the first update
  double gradient_scale = 1;  ///< multiplies the gradient: averaging, unscaling and clipping in one

  /// Factor of the gradient for which descent is the right direction.
  double signed_scale() const { return maximize ? -gradient_scale : gradient_scale; }
  bool operator==(const Hyper&) const = default;
};

/// What torch.optim.SGD wants for nesterov; the configuration wants the same (config/cross_check.cpp).
inline bool may_be_nesterov(const Hyper& hyper) { return hyper.momentum > 0 && hyper.dampening == 0; }

/// A hyper-parameter under its name in the JSON's optimizer.params; beta1 and beta2 for betas.
struct HyperNumber {
  std::string_view name;
  double (*of)(const Hyper&);
  bool may_be_negative = false;
};
/// All but lr, step and gradient_scale.
std::span<const HyperNumber> hyper_numbers();

/// A state kept per element.
struct StateColumn {
  std::string_view name;  ///< as torch.optim, checkpoints and Engine::full_optimizer_state() call it
  StateFormat format = StateFormat::kFloat32;
  double (*initial)(const Hyper&) = nullptr;  ///< before the first update; null: zero

  double initial_of(const Hyper& hyper) const { return initial ? initial(hyper) : 0; }
};
inline constexpr std::size_t kMostStates = 4;

// A bf16 parameter is its fp32 master rounded to nearest, ties away from zero. With that rounding (and not with ties to
// even), the parameter and the low 16 bits of the master reproduce the master bit for bit:
//
//   master = (parameter << 16) + remainder      as bit patterns, remainder signed
//
// NaNs are the only exception: they become the quiet NaN.

// A fp16 parameter is its fp32 master rounded to nearest, ties to even.

/// One fused update of [numel] elements. `low` (of `low_dtype`, or null) receives the new weights. The master weights
/// are `master`, or `low` (bf16) together with `remainder` if that is given.
struct UpdateArgs {
  float* master = nullptr;
  std::uint16_t* remainder = nullptr;
  std::array<void*, kMostStates> states{};  ///< in the order of Rule::states
  const float* gradient = nullptr;
  float* direction = nullptr;  ///< two-pass rules: result of the first pass; may alias `gradient`
  void* low = nullptr;
  DType low_dtype = DType::kBFloat16;  ///< or kFloat16; for Passes::update also kFloat32
  std::int64_t numel = 0;

  /// Only for Passes::update; rules see fp32. Replaces `master` and `gradient` where these are kept in 16 bits.
  struct Narrow {
    void* master = nullptr;  ///< `low` receives the same bits, unless it is the same memory or null
    const void* gradient = nullptr;
    StateFormat master_format = StateFormat::kBFloat16;
    StateFormat gradient_format = StateFormat::kBFloat16;
    /// True: rounds bf16 masters up with a probability equal to the fraction of the way from the lower to the upper
    /// neighbour. False: to nearest even. The random number of an element depends only on seed, Hyper::step and its
    /// index.
    bool stochastic = false;
    std::uint64_t seed = 0;
    std::uint64_t first_element = 0;  ///< a multiple of kQuantizedBlockNumel
  } narrow = {};
};

struct Rule {
  std::string_view name;
  std::span<const StateColumn> states;
  /// Update in host memory.
  void (*update)(const UpdateArgs&, const Hyper&) = nullptr;
  /// Update in another device's memory by ATen operators, on its current stream; never with remainders. Null: none.
  void (*update_on_device)(const UpdateArgs&, const Hyper&, const c10::Device&) = nullptr;
  /// Update by a device's own kernels (optim/device_kernels.h), in one of its streams. Null: none.
  void (*update_by)(const struct DeviceKernels&, const UpdateArgs&, const StateFormat* formats, const Hyper&,
                    void* stream) = nullptr;
  /// Returns a state that an update with these hyper-parameters needs and this rule does not keep; empty: none. Null:
  /// never any.
  std::string_view (*missing_state)(const Hyper&) = nullptr;
  /// The work between its two passes (optim/whole_steps.h); null: the rule has one pass.
  const struct WholeStep* whole = nullptr;

  std::int64_t state_nbytes(std::int64_t numel) const;  ///< for [numel] elements, whole blocks of every format
};

/// The states of all rules, each name once; and those of one rule among them (bit i: columns[i]).
std::vector<StateColumn> columns_of(std::span<const Rule* const> rules);
std::uint32_t which_of(std::span<const StateColumn> columns, const Rule& rule);

/// The name of the algorithm's rules, as checkpoints have it: "Adam" for AdamW, too.
std::string_view algorithm_name(Algorithm algorithm);

/// The rule that keeps the states that at least one of `groups` needs, with torch.optim's names
/// (optim/optimizer_rules.cpp). Lives as long as the process.
/// `format`: of states that a rule would keep in fp32; kBFloat16 halves their memory.
const Rule& rule_for(Algorithm algorithm, std::span<const Hyper> groups, StateFormat format = StateFormat::kFloat32);

/// The same with states in their own formats, fp32 unless the rule is of 8 bits.
const Rule& rule_in_fp32(Algorithm algorithm, std::span<const Hyper> groups);

/// Adam without amsgrad.
const Rule& adam();

/// Whether the rule needs whole tensors brought together between two passes; and the number of fp32 state values of a
/// tensor of this shape that are not per element.
bool brings_together(const Rule& rule);
std::int64_t tensor_state_numel(const Rule& rule, std::span<const std::int64_t> shape);

/// The second pass: w (1 - lr weight_decay) - lr direction; the direction is passed as the gradient.
const Rule& take_direction();

}  // namespace zero::optim
