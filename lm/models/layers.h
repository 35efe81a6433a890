#pragma once
// Layers with the parameter names of torch.nn, each one operator. Initialised by the model that owns them.
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

namespace zero {

struct LinearImpl;

/// A linear map that may have a low-rank adapter (zero/lm/lora.h) beside it.
struct AdaptableImpl : torch::nn::Module {
  AdaptableImpl(std::int64_t in_in, std::int64_t out_in) : in(in_in), out(out_in) {}
  /// Registers lora_A and lora_B, without values.
  void add_adapter(std::int64_t rank, double scale, double dropout);
  /// y, and what the adapter makes of x.
  at::Tensor adapted(const at::Tensor& x, at::Tensor y);

  const std::int64_t in, out;
  std::shared_ptr<LinearImpl> lora_A, lora_B;  // NOLINT(readability-identifier-naming): as in PEFT's files
  double adapter_scale = 0, adapter_dropout = 0;
};

/// x [..., in] -> [..., out]. at::linear is one fused addmm, where torch::nn::Linear is a matmul and an add.
struct LinearImpl : AdaptableImpl {
  LinearImpl(std::int64_t in_in, std::int64_t out_in, bool with_bias);
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
