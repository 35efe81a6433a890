#pragma once
// A small model with everything that is awkward for sharding: odd shapes, a tied embedding, a frozen layer,
// an unused parameter, a parameter used twice, an LSTM, a BatchNorm with buffers, dropout, zero-sized and
// non-contiguous parameters, and modules that reach into each other's weights.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <vector>

namespace zero::testing {

struct OddModelImpl : torch::nn::Module {
  OddModelImpl();
  /// tokens [B, T] int64 -> logits [B, T, vocab]
  at::Tensor forward(const at::Tensor& tokens);
  /// Mean cross entropy of the next token, fp32.
  at::Tensor loss(const at::Tensor& tokens);

  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr}, frozen{nullptr}, twice{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  at::Tensor transposed, empty, unused, scale, shift_storage;
};
TORCH_MODULE(OddModel);

inline constexpr std::int64_t kOddVocab = 53;

/// The tokens of a micro-batch, [batch, length] int64; depends on its global index only.
at::Tensor micro_batch_tokens(std::int64_t global_index, std::int64_t batch = 3, std::int64_t length = 7);

/// `layers` equal residual blocks of two Linear layers: for memory bounds and byte counts.
struct DeepModelImpl : torch::nn::Module {
  DeepModelImpl(std::int64_t layers, std::int64_t dim);
  at::Tensor forward(at::Tensor x);
  std::vector<torch::nn::Linear> linears;
  /// Skips this layer when it is not -1.
  std::int64_t skipped_layer = -1;
};
TORCH_MODULE(DeepModel);

}  // namespace zero::testing
