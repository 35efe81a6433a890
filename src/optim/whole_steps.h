#pragma once
// What optimizers of two passes do with whole tensors between them. Host memory; ATen.
#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>
#include <vector>

#include "optim/rule.h"

namespace zero::optim {

/// A state of a whole tensor, of a shape of its own; fp32, zero at first. It lies on the rank that changes the tensor.
struct TensorState {
  std::string_view name;  ///< as torch.optim, checkpoints and Engine::full_optimizer_state() call it
  std::vector<std::int64_t> shape;
};

struct WholeStep {
  /// What second() is told of, both before the tensor is changed.
  bool needs_weight_norm = false, needs_direction_norm = false;
  /// On one rank, in place. Null: tensors are not brought together.
  void (*change)(const at::Tensor& direction, std::span<const at::Tensor> states, const Hyper& hyper) = nullptr;
  std::vector<TensorState> (*states)(std::span<const std::int64_t> shape) = nullptr;  ///< null: none
  /// The second pass is w (1 - lr weight_decay) - lr direction, with these of the result.
  Hyper (*second)(const Hyper& hyper, double weight_norm, double direction_norm, std::int64_t numel) = nullptr;
};

/// The direction is scaled by the ratio of the norms, as DeepSpeed's csrc/lamb does.
const WholeStep& lamb_step();
/// The direction is orthogonalised.
const WholeStep& muon_step();
/// Second moments are kept as means of rows and columns; as torch.optim.Adafactor.
const WholeStep& adafactor_step();

/// The states of a tensor of that shape; none for rules of one pass.
std::vector<TensorState> tensor_states(const Rule& rule, std::span<const std::int64_t> shape);

}  // namespace zero::optim
