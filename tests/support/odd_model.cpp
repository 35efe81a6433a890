#include "support/odd_model.h"

#include <ATen/Functions.h>
#include <torch/nn/functional/embedding.h>

namespace zero::testing {

OddModelImpl::OddModelImpl() {
  using namespace torch::nn;
  constexpr std::int64_t kDim = 19;
  embedding = register_module("embedding", Embedding(kOddVocab, kDim));
  lstm = register_module("lstm", LSTM(LSTMOptions(kDim, 23).batch_first(true)));
  norm = register_module("norm", LayerNorm(LayerNormOptions({23})));
  up = register_module("up", Linear(23, 61));
  frozen = register_module("frozen", Linear(61, 61));
  twice = register_module("twice", Linear(LinearOptions(61, 61).bias(false)));
  batch_norm = register_module("batch_norm", BatchNorm1d(61));
  dropout = register_module("dropout", Dropout(0.1));
  down = register_module("down", Linear(61, kDim));
  for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  transposed = register_parameter("transposed", at::randn({kDim, 11}).mul_(0.1).t());  // [11, 19], column-major
  empty = register_parameter("empty", at::zeros({0, 5}));
  unused = register_parameter("unused", at::randn({7, 3}));
  scale = register_parameter("scale", at::ones({}));  // a scalar
  // Half of a larger storage: a parameter that starts at an offset.
  shift_storage = register_parameter("shift", at::randn({2 * kDim}).narrow(0, kDim, kDim).mul(0.1));
  register_module("embedding_again", embedding);  // tied module: the same parameters under two names
}

at::Tensor OddModelImpl::forward(const at::Tensor& tokens) {
  at::Tensor x = embedding(tokens);
  x = std::get<0>(lstm(x));
  x = at::gelu(up(norm(x)));
  x = x + frozen(x);
  x = at::tanh(twice(at::tanh(twice(x))));
  x = batch_norm(x.transpose(1, 2)).transpose(1, 2);
  x = dropout(x);
  x = down(x) * scale + shift_storage;
  const at::Tensor mixed = at::matmul(at::matmul(x, transposed.t()), transposed);  // through views, twice
  x = x + mixed + empty.sum();
  return at::matmul(x, embedding->weight.t());  // tied, reached from outside its module
}

at::Tensor OddModelImpl::loss(const at::Tensor& tokens) {
  const auto length = tokens.size(1) - 1;
  const at::Tensor logits = forward(tokens.narrow(1, 0, length)).to(at::kFloat);
  return at::cross_entropy_loss(logits.reshape({-1, kOddVocab}), tokens.narrow(1, 1, length).reshape({-1}));
}

at::Tensor micro_batch_tokens(std::int64_t global_index, std::int64_t batch, std::int64_t length) {
  at::Tensor tokens = at::empty({batch, length}, at::kLong);
  auto* out = tokens.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i) {
    std::uint64_t z = (static_cast<std::uint64_t>(global_index) * 1000003 + i + 1) * 0x9E3779B97F4A7C15ull;
    z ^= z >> 29;
    z *= 0xBF58476D1CE4E5B9ull;
    out[i] = static_cast<std::int64_t>((z >> 33) % kOddVocab);
  }
  return tokens;
}

DeepModelImpl::DeepModelImpl(std::int64_t layers, std::int64_t dim) {
  for (std::int64_t i = 0; i < layers; ++i) {
    linears.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(dim, dim)));
  }
}

at::Tensor DeepModelImpl::forward(at::Tensor x) {
  for (std::size_t i = 0; i < linears.size(); ++i) {
    if (static_cast<std::int64_t>(i) != skipped_layer) x = x + at::tanh(linears[i](x));
  }
  return x;
}

}  // namespace zero::testing
