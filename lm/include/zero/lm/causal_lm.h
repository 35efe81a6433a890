#pragma once
// Causal language models in Hugging Face's shapes: names of parameters, config.json and safetensors files as there.
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zero/engine.h"
#include "zero/lm/models.h"
#include "zero/plan.h"

namespace zero::models {

/// How far apart positions are turned in rotary embeddings: Hugging Face's `rope_scaling` or `rope_parameters`.
struct Rope {
  enum class Type : std::uint8_t { kDefault, kLinear, kDynamic, kYarn, kLongRope, kLlama3 };
  Type type = Type::kDefault;
  double theta = 10'000;
  double factor = 1;
  std::optional<double> attention_factor;  ///< yarn, longrope; not given: from `factor`
  double beta_fast = 32, beta_slow = 1;    ///< yarn
  std::optional<double> mscale, mscale_all_dim;
  bool truncate = true;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  std::int64_t original_max_positions = 0;           ///< yarn, longrope, llama3; 0: the model's
  std::vector<double> long_factor, short_factor;     ///< longrope

  bool operator==(const Rope&) const = default;
};

/// Experts in place of the MLP of a layer.
struct Experts {
  std::int64_t count = 0;  ///< 0: none
  std::int64_t per_token = 2;
  std::int64_t mlp_dim = 0;  ///< of each
  bool normalize = true;     ///< the weights of a token's experts add up to one
  double loss_factor = 0;    ///< of the load-balancing loss, which is part of loss() in training; 0: it is not
  std::vector<std::int64_t> dense_layers;  ///< layers with an MLP all the same

  bool operator==(const Experts&) const = default;
};

/// What a model is: the part of Hugging Face's config.json that has an effect here.
struct CausalLMConfig {
  enum class Family : std::uint8_t { kGpt2, kLlama, kMistral, kQwen2, kQwen3, kMixtral, kQwen3Moe };
  Family family = Family::kLlama;
  std::int64_t vocab = 32'000, dim = 4096, layers = 32, heads = 32;
  std::int64_t kv_heads = 32;  ///< each serves heads / kv_heads heads
  std::int64_t head_dim = 128;
  std::int64_t mlp_dim = 11'008;
  std::int64_t max_positions = 4096;
  double norm_eps = 1e-6;
  bool tied = false;            ///< the head shares the weight of the token embedding
  bool attention_bias = false;  ///< of q, k, v
  bool output_bias = false;     ///< of attention's output
  bool mlp_bias = false;
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;
  double initializer_range = 0.02;
  Rope rope;
  /// Positions a token sees, itself included; 0: all before it. By layer, or of all layers if there is one.
  std::vector<std::int64_t> windows = {0};
  Experts experts;
  /// In training mode, every so many blocks one is run by zero::recompute(): 1: all of them, 0: none. Not in
  /// config.json.
  std::int64_t recompute_every = 0;
  /// The token that begins a document: attention stays within documents, and positions begin anew in each; not in
  /// next_logits(). Negative: a sequence is one document. Not in config.json.
  std::int64_t separator = -1;
  /// What such a block keeps. Not in config.json.
  KeptResults recompute_keep = KeptResults::kNone;
  /// loss(): rows whose logits exist at a time, as LinearCrossEntropyOptions::rows. Not in config.json.
  std::int64_t loss_rows = 0;
  /// What was read, so that to_json() keeps what has no effect here (ids of special tokens, for example). JSON.
  std::string source;

  std::int64_t window_of(std::int64_t layer) const {
    return windows[windows.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  bool has_experts(std::int64_t layer) const;
  bool operator==(const CausalLMConfig&) const = default;
};

/// "gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe": Hugging Face's model_type.
std::string_view family_name(CausalLMConfig::Family family);

/// `path`: a config.json, or a folder with one. Throws ConfigError, which names the file and the key, for an unknown
/// model_type, for an option that is not built, and for a key that nobody knows; IoError. Local.
CausalLMConfig read_config(const std::string& path);
/// As read_config(), of JSON; `where` is named in errors.
CausalLMConfig parse_config(const std::string& json, const std::string& where = "config.json");
/// A config.json. parse_config() of it gives the same model.
std::string to_json(const CausalLMConfig& config);
/// Throws ConfigError for sizes that do not go together.
void check(const CausalLMConfig& config);

/// The shapes of the parameters, in their order, without building the model: for a memory plan.
plan::ModelShape shape_of(const CausalLMConfig& config, const std::string& name = "model");
struct LoraOptions;
/// The same of a model with adapters (zero/lm/lora.h), of which only these are trained.
plan::ModelShape shape_of(const CausalLMConfig& config, const LoraOptions& lora, const std::string& name = "model");

class DecoderImpl;

/// Keys and values of the positions that a model has read, so that the tokens after them cost only themselves. They are
/// of the parameters' values at that time: clear() after a step. Copies share memory. One thread at a time.
class KeyValueCache {
 public:
  std::int64_t length() const { return length_; }  ///< positions
  void clear() { *this = {}; }

  // For layers of models.

  /// Keeps keys and values [B, heads, T, head_dim] of `layer`, which follow the length() positions so far, and returns
  /// those of all positions. Throws ModelError for other sizes than the cache has.
  std::pair<at::Tensor, at::Tensor> append(std::size_t layer, const at::Tensor& keys, const at::Tensor& values);
  /// After the last layer: these tokens [B, T] have been read, too.
  void advance(const at::Tensor& tokens);
  /// All tokens that have been read, and these.
  at::Tensor with(const at::Tensor& tokens) const;

 private:
  struct Layer {
    at::Tensor keys, values;  ///< [B, heads, capacity, head_dim]
  };
  std::vector<Layer> layers_;
  at::Tensor tokens_;  ///< [B, length]
  std::int64_t length_ = 0;
};

/// Parameters have the names and shapes that they have in Hugging Face's files. Attention is
/// scaled_dot_product_attention; positions begin at 0 in each row.
struct CausalLMImpl : torch::nn::Module {
  /// Builds the model in libtorch's default dtype on the CPU, initialised as by transformers: normal(0,
  /// initializer_range) for matrices, GPT-2's residual projections divided by sqrt(2 * layers), zero for biases, one
  /// for norms; from libtorch's default generator, in the order of the parameters. Throws ConfigError.
  explicit CausalLMImpl(const CausalLMConfig& config);

  /// tokens [B, T] int64 -> logits [B, T, vocab] in the parameters' dtype. Throws ModelError for another shape or
  /// dtype, and for T over max_positions where positions are learnt.
  at::Tensor forward(const at::Tensor& tokens);

  /// Mean cross entropy in nats per target, in fp32; in training mode Experts::loss_factor times the load-balancing
  /// loss is added. tokens and targets [B, T] int64: targets are not shifted here; those of -100 do not count. Scalar,
  /// fp32. Logits exist of some rows at a time (zero/lm/loss.h).
  /// `divisor` as LinearCrossEntropyOptions::divisor; the load-balancing loss is not divided by it.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, double divisor = 0);

  /// Logits of the token after `tokens` [B, T], which follow the positions in `cache`: [B, vocab], without gradients.
  /// The same as the last logits of forward() of all tokens but for rounding: products are of other shapes, and so are
  /// libtorch's sums. Where rotations depend on the length of the text ("dynamic" beyond max_positions, "longrope"
  /// once), all of it is read again. Throws as forward(), and ModelError in training mode or for another B than before;
  /// the cache is then as it was.
  at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache);

  void reset_parameters();

  const CausalLMConfig config;

 private:
  void check(const at::Tensor& tokens) const;
  const at::Tensor& head_weight() const;  ///< [vocab, dim]

  std::shared_ptr<DecoderImpl> decoder_;
  std::shared_ptr<torch::nn::Module> head_;  // null when tied
};
TORCH_MODULE(CausalLM);

/// The model of a Hugging Face folder, never whole on a rank and without values: give it to initialize() and its engine
/// to load_weights(). Local. Throws as read_config().
CausalLM build(const std::string& folder);

/// Continues `prompt`, token by token, with a KeyValueCache. Call eval() before. *Collective* for a model whose
/// parameters are sharded: then every rank must call it with the same arguments. Throws ConfigError for an empty prompt
/// or options out of range, ModelError as CausalLMImpl::next_logits().
std::vector<std::int64_t> generate(CausalLM& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options = {});

/// Gives an engine of `model` the weights of a Hugging Face folder (safetensors, in one file or with an index, or
/// pytorch_model.bin); adapters (zero/lm/lora.h) keep their values. Names may lack the prefix of the base model, as
/// GPT-2's do on the hub. *Collective.* Throws CheckpointError that lists what is missing, left over or of another
/// shape; then nothing has changed.
LoadReport load_weights(Engine& engine, const CausalLM& model, const std::string& folder);

/// Writes config.json and safetensors that transformers loads; `dtype`: as checkpoint::ExportOptions. What else
/// `tokenizer_from`, a folder, has of a tokenizer is copied. *Collective.* Throws IoError, and ModelError for a model
/// whose adapters (zero/lm/lora.h) would be lost.
checkpoint::ExportReport save_pretrained(Engine& engine, const CausalLM& model, const std::string& folder,
                                         const std::string& dtype = "bf16", const std::string& tokenizer_from = {});

}  // namespace zero::models
