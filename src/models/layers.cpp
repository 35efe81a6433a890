#include "models/layers.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace zero {

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool with_bias) {
  weight = register_parameter("weight", at::empty({out, in}));
  if (with_bias) bias = register_parameter("bias", at::zeros({out}));
}

at::Tensor LinearImpl::forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

LayerNormImpl::LayerNormImpl(std::int64_t dim) {
  weight = register_parameter("weight", at::ones({dim}));
  bias = register_parameter("bias", at::zeros({dim}));
}

at::Tensor LayerNormImpl::forward(const at::Tensor& x) { return at::layer_norm(x, weight.sizes(), weight, bias, 1e-5); }

EmbeddingImpl::EmbeddingImpl(std::int64_t count, std::int64_t dim) {
  weight = register_parameter("weight", at::empty({count, dim}));
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) { return at::embedding(weight, indices); }

}  // namespace zero
