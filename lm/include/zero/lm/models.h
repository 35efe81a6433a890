#pragma once
// Models for training, benchmarks and tests: plain libtorch modules, independent of ZeRO.
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zero/plan.h"

namespace zero {

struct GPTOptions {
  std::int64_t layers = 2;
  std::int64_t dim = 64;
  std::int64_t heads = 2;
  std::int64_t vocab = 256;
  /// Maximum sequence length (learnt positions).
  std::int64_t seq = 64;
  /// Dropout on embeddings, attention weights and residual branches, in training mode.
  double dropout = 0;
  /// The head shares the weight of the token embedding; there is no head.weight then.
  bool tied = false;
  /// In training mode, every so many blocks one is run by zero::recompute(): 1: all of them, 0: none. The same bits.
  std::int64_t recompute_every = 0;
  KeptResults recompute_keep = KeptResults::kNone;  ///< what such a block keeps
  /// The token that begins a document: attention stays within documents, and positions begin anew in each. Negative: a
  /// sequence is one document.
  std::int64_t separator = -1;
};

/// Options of a preset: "gpt-tiny" (0.1M parameters), "gpt-2m", "gpt-11m" (10.9M), "gpt-14m", "gpt-25m",
/// "gpt-152m", "gpt-1b"; byte vocabulary. Throws ConfigError that lists the names for any other name.
GPTOptions gpt_preset(std::string_view name);

/// The names gpt_preset() knows, smallest first.
std::vector<std::string> gpt_presets();

/// Number of parameters, without building the model.
std::int64_t gpt_numel(const GPTOptions& options);

/// The shapes of GPT's parameters, in its order, without building it: for a memory plan.
plan::ModelShape gpt_shape(const GPTOptions& options, const std::string& name = "gpt");

struct GPTBlockImpl;
struct LayerNormImpl;
struct EmbeddingImpl;
struct LinearImpl;

/// GPT-2 with pre-layer-norm: token and position embeddings, `layers` blocks of causal attention and a tanh-GELU MLP
/// four times as wide, final layer norm, head without bias. Parameters: wte.weight, wpe.weight,
/// `h.<i>.{ln1,qkv,proj,ln2,fc,out}.{weight,bias}`, lnf.{weight,bias}, head.weight.
struct GPTImpl : torch::nn::Module {
  /// Builds the model in fp32 on the CPU and initialises it like GPT-2 from libtorch's default generator. Throws
  /// ConfigError for inconsistent sizes.
  explicit GPTImpl(const GPTOptions& options);

  /// tokens [B, T] int64, T <= seq -> logits [B, T, vocab] in the parameters' dtype. Throws ModelError for
  /// another shape or dtype.
  at::Tensor forward(const at::Tensor& tokens);

  /// Mean cross entropy in nats per token, computed in fp32. tokens and targets [B, T] int64. Scalar, fp32. Logits
  /// exist of some rows at a time (zero/lm/loss.h).
  /// `divisor` as LinearCrossEntropyOptions::divisor.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, double divisor = 0);

  /// Normal(0, 0.02) for matrices, divided by sqrt(2 * layers) for the two that end a residual branch; zero
  /// for biases; one for layer norm weights. Uses libtorch's default generator, in the order of the
  /// parameters.
  void reset_parameters();

  GPTOptions options;

 private:
  at::Tensor hidden(const at::Tensor& tokens);
  const at::Tensor& head_weight() const;

  std::shared_ptr<EmbeddingImpl> wte_, wpe_;
  std::vector<std::shared_ptr<GPTBlockImpl>> blocks_;
  std::shared_ptr<LayerNormImpl> lnf_;
  std::shared_ptr<LinearImpl> head_;  // null when tied
};
TORCH_MODULE(GPT);

struct GenerateOptions {
  /// Bytes (or tokens) to generate.
  std::int64_t length = 256;
  /// 0: always the most likely byte. Larger: more varied.
  double temperature = 0.8;
  /// Sample among this many most likely bytes; 0: among all.
  std::int64_t top_k = 0;
  /// Sample among the most likely bytes that together have this probability, after temperature and top_k; 1: among all.
  double top_p = 1;
  std::uint64_t seed = 0;
  /// Number of last bytes that the model gets; at most its `seq`. Not used by models::generate().
  std::int64_t context = 64;
  /// The text ends before one of these.
  std::vector<std::int64_t> stop;
  /// Called with each byte (or token) that is added. What it throws ends the generation.
  std::function<void(std::int64_t token)> on_token;
};

/// Continues `prompt` byte by byte and returns the added bytes. `forward` maps tokens [1, T] int64 to logits [1, T,
/// vocab]; it is called without gradients, once per byte. An empty prompt starts like a file (after a zero byte). Equal
/// logits and seed give equal bytes. *Collective* if `forward` is: then every rank must call it with the same
/// arguments. Throws ConfigError for options out of range, ModelError for logits of another shape.
std::string generate(const std::function<at::Tensor(const at::Tensor&)>& forward, std::string_view prompt,
                     const GenerateOptions& options = {});

/// As generate(), of tokens: continues `prompt`, which has at least one.
std::vector<std::int64_t> generate_tokens(const std::function<at::Tensor(const at::Tensor&)>& forward,
                                          std::vector<std::int64_t> prompt, const GenerateOptions& options = {});

}  // namespace zero
