#pragma once
// Rule: an optimizer as a value. It names the states that it keeps for every element of a parameter and updates
// elements one by one, so that any range of a shard can be updated anywhere: rules that need norms of whole
// parameters or products of matrices do not fit. No libtorch.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "zero/dtype.h"

namespace c10 {
struct Device;
}

namespace zero::optim {

/// Hyper-parameters of one update; a rule reads those that it knows.
struct Hyper {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  ///< AdamW; false: decay is added to the gradient
  bool bias_correction = true;
  std::int64_t step = 1;      ///< 1 for the first update
  double gradient_scale = 1;  ///< multiplies the gradient: averaging, unscaling and clipping in one
};

/// A state of every element, zero at first.
struct StateColumn {
  std::string_view name;  ///< as checkpoints and Engine::full_optimizer_state() call it
  DType dtype = DType::kFloat32;
};
inline constexpr std::size_t kMostStates = 4;

// A bf16 parameter is its fp32 master rounded to nearest, ties away from zero. With that rule (and not with
// ties to even) the parameter and the low 16 bits of the master are the master, bit for bit:
//
//   master = (parameter << 16) + remainder      as bit patterns, remainder signed
//
// NaNs are the one exception: they become the quiet NaN.

/// One fused update of [numel] elements. `low` (bf16 or null) receives the new weights. The master weights
/// are `master`, or `low` together with `remainder` where that is given.
struct UpdateArgs {
  float* master = nullptr;
  std::uint16_t* remainder = nullptr;
  std::array<void*, kMostStates> states{};  ///< in the order of Rule::states
  const float* gradient = nullptr;
  void* low = nullptr;
  std::int64_t numel = 0;
};

struct Rule {
  std::string_view name;
  std::span<const StateColumn> states;
  /// In host memory.
  void (*update)(const UpdateArgs&, const Hyper&) = nullptr;
  /// In memory of another device, on its current stream; never with remainders. Null: host memory only.
  void (*update_on_device)(const UpdateArgs&, const Hyper&, const c10::Device&) = nullptr;

  std::int64_t state_nbytes() const;  ///< of one element
};

/// Adam and AdamW (Hyper::decoupled): exp_avg, exp_avg_sq.
const Rule& adam();

}  // namespace zero::optim
