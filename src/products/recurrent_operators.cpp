// LSTMs. libtorch has a fused kernel for fp32, which it leaves for one operator per gate and time step where the
// processor has no units for the dtype; ours is the fused one, in fp32. Other recurrent networks are products at every
// time step in every dtype (products/matrix_operators.cpp).
#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/lstm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_cpu_dispatch.h>
#include <ATen/ops/mkldnn_rnn_layer_cpu_dispatch.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "products/panels.h"
#include "products/registry.h"

namespace zero::products {
namespace {

using at::Tensor;
using at::TensorList;

constexpr std::int64_t kModeLstm = 2;  // of mkldnn_rnn_layer, as in cuDNN

/// What the fp32 kernel kept for the backward pass is for its own backward only, also where no scope is open any more.
Tensor marked_as_ours(const Tensor& workspace) { return workspace.defined() ? workspace.unsqueeze(0) : workspace; }
bool is_ours(const Tensor& workspace) { return workspace.defined() && workspace.dim() == 2; }

std::tuple<Tensor, Tensor, Tensor, Tensor> rnn_layer(const Tensor& input, const Tensor& weight0, const Tensor& weight1,
                                                     const Tensor& weight2, const Tensor& weight3, const Tensor& hx,
                                                     const Tensor& cx, bool reverse, at::IntArrayRef batch_sizes,
                                                     std::int64_t mode, std::int64_t hidden_size,
                                                     std::int64_t num_layers, bool has_biases, bool bidirectional,
                                                     bool batch_first, bool train) {
  const at::ScalarType dtype = input.scalar_type();
  if (!is_taken(dtype)) {
    return at::cpu::mkldnn_rnn_layer(input, weight0, weight1, weight2, weight3, hx, cx, reverse, batch_sizes, mode,
                                     hidden_size, num_layers, has_biases, bidirectional, batch_first, train);
  }
  auto [output, hy, cy, workspace] =
      at::cpu::mkldnn_rnn_layer(wide_copy(input), wide_copy(weight0), wide_copy(weight1), wide_copy(weight2),
                                wide_copy(weight3), wide_copy(hx), wide_copy(cx), reverse, batch_sizes, mode,
                                hidden_size, num_layers, has_biases, bidirectional, batch_first, train);
  return {output.to(dtype), hy.to(dtype), cy.to(dtype), marked_as_ours(workspace)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> rnn_layer_backward(
    const Tensor& input, const Tensor& weight1, const Tensor& weight2, const Tensor& weight3, const Tensor& weight4,
    const Tensor& hx, const Tensor& cx, const Tensor& output, const Tensor& hy, const Tensor& cy,
    const std::optional<Tensor>& grad_output, const std::optional<Tensor>& grad_hy,
    const std::optional<Tensor>& grad_cy, bool reverse, std::int64_t mode, std::int64_t hidden_size,
    std::int64_t num_layers, bool has_biases, bool train, bool bidirectional, at::IntArrayRef batch_sizes,
    bool batch_first, const Tensor& workspace) {
  const at::ScalarType dtype = input.scalar_type();
  if (!is_ours(workspace)) {
    return at::cpu::mkldnn_rnn_layer_backward(input, weight1, weight2, weight3, weight4, hx, cx, output, hy, cy,
                                              grad_output, grad_hy, grad_cy, reverse, mode, hidden_size, num_layers,
                                              has_biases, train, bidirectional, batch_sizes, batch_first, workspace);
  }
  auto grads = at::cpu::mkldnn_rnn_layer_backward(
      wide_copy(input), wide_copy(weight1), wide_copy(weight2), wide_copy(weight3), wide_copy(weight4), wide_copy(hx),
      wide_copy(cx), wide_copy(output), wide_copy(hy), wide_copy(cy), wide_copy(grad_output), wide_copy(grad_hy),
      wide_copy(grad_cy), reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes,
      batch_first, workspace.squeeze(0));
  std::apply([&](auto&... grad) { ((grad = grad.defined() ? grad.to(dtype) : grad), ...); }, grads);
  return grads;
}

/// Weights and states as the fused kernel takes them: no projections, all of the input's dtype.
bool takes_lstm(const Tensor& input, TensorList hx, TensorList params, bool has_biases, std::int64_t num_layers,
                bool bidirectional) {
  const auto alike = [&](const Tensor& tensor) { return tensor.scalar_type() == input.scalar_type(); };
  const std::int64_t directions = bidirectional ? 2 : 1;
  return is_taken(input) && at::globalContext().userEnabledMkldnn() && input.numel() > 0 && input.dim() == 3 &&
         hx.size() == 2 && hx[0].sizes() == hx[1].sizes() && hx[0].dim() == 3 &&
         static_cast<std::int64_t>(params.size()) == num_layers * directions * (has_biases ? 4 : 2) &&
         std::all_of(params.begin(), params.end(), alike) && std::all_of(hx.begin(), hx.end(), alike);
}

/// Layer by layer over libtorch's fused operator, whose gradients keep the 16-bit weights only.
std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, TensorList hx, TensorList params, bool has_biases,
                                        std::int64_t num_layers, double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  if (!takes_lstm(input, hx, params, has_biases, num_layers, bidirectional)) {
    return at::compositeimplicitautograd::lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                                               batch_first);
  }
  const std::int64_t directions = bidirectional ? 2 : 1, hidden_size = hx[0].size(2);
  const std::size_t per_layer = has_biases ? 4 : 2;
  Tensor layer_input = (batch_first ? input.transpose(0, 1) : input).contiguous();
  std::vector<Tensor> hidden, cells;
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (std::int64_t direction = 0; direction < directions; ++direction) {
      const auto index = static_cast<std::size_t>(layer * directions + direction);
      const TensorList weights = params.slice(index * per_layer, per_layer);
      const auto bias = [&](std::size_t which) {
        return has_biases ? weights[2 + which] : at::zeros({weights[which].size(0)}, weights[which].options());
      };
      auto [output, hy, cy, workspace] = at::mkldnn_rnn_layer(
          layer_input, weights[0], weights[1], bias(0), bias(1), hx[0].select(0, static_cast<std::int64_t>(index)),
          hx[1].select(0, static_cast<std::int64_t>(index)), direction == 1, {}, kModeLstm, hidden_size, num_layers,
          has_biases, bidirectional, batch_first, train);
      outputs.push_back(output);
      hidden.push_back(hy);
      cells.push_back(cy);
    }
    layer_input = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (dropout > 0 && train && layer < num_layers - 1) layer_input = at::dropout(layer_input, dropout, true);
  }
  return {batch_first ? layer_input.transpose(0, 1) : layer_input, at::stack(hidden, 0), at::stack(cells, 0)};
}

}  // namespace

void register_recurrent(torch::Library& cpu, torch::Library& autograd) {
  cpu.impl("mkldnn_rnn_layer", TORCH_FN(rnn_layer));
  cpu.impl("mkldnn_rnn_layer_backward", TORCH_FN(rnn_layer_backward));
  cpu.impl("lstm.input", TORCH_FN(lstm));
  autograd.impl("lstm.input", TORCH_FN(lstm));
}

}  // namespace zero::products
