#pragma once
// Layers with the parameter names of torch.nn, each one operator. Initialised by the model that owns them.
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

namespace zero {

/// x [..., in] -> [..., out]. at::linear is one fused addmm, where torch::nn::Linear is a matmul and an add.
struct LinearImpl : torch::nn::Module {
  LinearImpl(std::int64_t in, std::int64_t out, bool with_bias);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined
};

/// Over the last dimension.
struct LayerNormImpl : torch::nn::Module {
  explicit LayerNormImpl(std::int64_t dim, double eps = 1e-5);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor weight, bias;  // [dim]
  double eps;
};

/// Over the last dimension, in fp32; for backward it keeps its input and a number per row. Gradients of gradients are
/// refused (ModelError).
struct RmsNormImpl : torch::nn::Module {
  RmsNormImpl(std::int64_t dim, double eps);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor weight;  // [dim]
  double eps;
};

/// indices [...] int64 -> [..., dim].
struct EmbeddingImpl : torch::nn::Module {
  EmbeddingImpl(std::int64_t count, std::int64_t dim);
  at::Tensor forward(const at::Tensor& indices);
  at::Tensor weight;  // [count, dim]
};

}  // namespace zero
