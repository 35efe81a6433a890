#pragma once
// Models to train, measure and test with: plain libtorch modules that know nothing of ZeRO.
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
  /// Longest sequence: positions are learnt.
  std::int64_t seq = 64;
  /// On embeddings, attention weights and residual branches, while training.
  double dropout = 0;
  /// The head uses the weight of the token embedding; there is no head.weight then.
  bool tied = false;
};

/// "gpt-tiny" (0.1M parameters), "gpt-2m", "gpt-11m" (10.9M), "gpt-10m" (14M), "gpt-25m", "gpt-152m",
/// "gpt-1b"; byte vocabulary. Throws ConfigError with the names for any other.
GPTOptions gpt_preset(std::string_view name);

/// The names gpt_preset() knows, smallest first.
std::vector<std::string> gpt_presets();

/// Number of parameters, without building the model.
std::int64_t gpt_numel(const GPTOptions& options);

/// The parameters of GPT in its order, without building it: for a plan of its memory.
plan::ModelShape gpt_shape(const GPTOptions& options, const std::string& name = "gpt");

struct GPTBlockImpl;
struct LayerNormImpl;
struct EmbeddingImpl;
struct LinearImpl;

/// GPT-2 with the layer norm in front of each branch: token and position embeddings, `layers` blocks of
/// causal attention and a tanh-GELU MLP four times as wide, final layer norm, head without bias. Parameters:
/// wte.weight, wpe.weight, h.<i>.{ln1,qkv,proj,ln2,fc,out}.{weight,bias}, lnf.{weight,bias}, head.weight.
struct GPTImpl : torch::nn::Module {
  /// Built in fp32 on the CPU and initialised as GPT-2 from libtorch's default generator. Throws ConfigError
  /// for sizes that do not fit each other.
  explicit GPTImpl(const GPTOptions& options);

  /// tokens [B, T] int64, T <= seq -> logits [B, T, vocab] in the parameters' dtype. Throws ModelError for
  /// another shape or dtype.
  at::Tensor forward(const at::Tensor& tokens);

  /// Mean cross entropy in nats per token, computed in fp32. tokens and targets [B, T] int64. Scalar, fp32.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  /// Normal(0, 0.02) for matrices, divided by sqrt(2 * layers) for the two that end a residual branch; zero
  /// for biases; one for layer norm weights. Uses libtorch's default generator, in the order of the
  /// parameters.
  void reset_parameters();

  GPTOptions options;

 private:
  std::shared_ptr<EmbeddingImpl> wte_, wpe_;
  std::vector<std::shared_ptr<GPTBlockImpl>> blocks_;
  std::shared_ptr<LayerNormImpl> lnf_;
  std::shared_ptr<LinearImpl> head_;  // null when tied
};
TORCH_MODULE(GPT);

struct GenerateOptions {
  /// Bytes to generate.
  std::int64_t length = 256;
  /// 0: always the likeliest byte. Larger: more varied.
  double temperature = 0.8;
  /// Only among so many likeliest bytes; 0: among all.
  std::int64_t top_k = 0;
  std::uint64_t seed = 0;
  /// How many of the last bytes the model sees; at most its `seq`.
  std::int64_t context = 64;
};

/// Continues `prompt` byte by byte and returns what was added. `forward` maps tokens [1, T] int64 to logits
/// [1, T, vocab]; it is called without gradients, once per byte. An empty prompt starts as a file starts
/// (after a zero byte). The same logits and seed give the same bytes. *Collective* when `forward` is: then
/// every rank must call it with the same arguments. Throws ConfigError for options out of range, ModelError
/// for logits of another shape.
std::string generate(const std::function<at::Tensor(const at::Tensor&)>& forward, std::string_view prompt,
                     const GenerateOptions& options = {});

}  // namespace zero
