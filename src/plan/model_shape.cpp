// Parameter lists of models that are known by their sizes.
#include <fmt/format.h>

#include <utility>

#include "plan/sizes.h"
#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::plan {
namespace {

class Builder {
 public:
  explicit Builder(ModelShape& model) : model_(model) {}

  void add(std::string name, std::vector<std::int64_t> shape) {
    waiting_.push_back(static_cast<int>(model_.parameters.size()));
    std::int64_t numel = 1;
    for (const std::int64_t size : shape) numel *= size;
    model_.parameters.push_back({std::move(name), numel, true, std::move(shape)});
  }
  /// One operator reads what was added since the last one.
  void use(bool in_backward = true) { model_.uses.push_back({std::exchange(waiting_, {}), in_backward}); }

  void linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
    use();
  }
  /// zero::GPT adds the two embeddings in one expression, whose right side g++ evaluates first.
  void swap_last_uses() { std::swap(model_.uses.back(), model_.uses[model_.uses.size() - 2]); }

  void embedding(const std::string& name, std::int64_t count, std::int64_t dim) {
    add(name + ".weight", {count, dim});
    use(/*in_backward=*/false);
  }
  void norm(const std::string& name, std::int64_t dim, bool bias) {
    add(name + ".weight", {dim});
    if (bias) add(name + ".bias", {dim});
    use();
  }

 private:
  ModelShape& model_;
  std::vector<int> waiting_;
};

void add_gpt_block(Builder& build, const std::string& name, const Transformer& t) {
  const std::int64_t attended = t.heads * t.head_dim;
  build.norm(name + ".ln1", t.dim, true);
  build.linear(name + ".qkv", t.dim, attended + 2 * t.kv_heads * t.head_dim, true);
  build.linear(name + ".proj", attended, t.dim, true);
  build.norm(name + ".ln2", t.dim, true);
  build.linear(name + ".fc", t.dim, t.mlp_dim, true);
  build.linear(name + ".out", t.mlp_dim, t.dim, true);
}

void add_llama_block(Builder& build, const std::string& name, const Transformer& t) {
  const std::int64_t attended = t.heads * t.head_dim, shared = t.kv_heads * t.head_dim;
  build.norm(name + ".input_layernorm", t.dim, false);
  build.linear(name + ".self_attn.q_proj", t.dim, attended, t.qkv_bias);
  build.linear(name + ".self_attn.k_proj", t.dim, shared, t.qkv_bias);
  build.linear(name + ".self_attn.v_proj", t.dim, shared, t.qkv_bias);
  build.linear(name + ".self_attn.o_proj", attended, t.dim, false);
  build.norm(name + ".post_attention_layernorm", t.dim, false);
  build.linear(name + ".mlp.gate_proj", t.dim, t.mlp_dim, false);
  build.linear(name + ".mlp.up_proj", t.dim, t.mlp_dim, false);
  build.linear(name + ".mlp.down_proj", t.mlp_dim, t.dim, false);
}

void add_blocks(Builder& build, const Transformer& t) {
  const bool gpt = t.style == Transformer::Style::kGpt;
  build.embedding(gpt ? "wte" : "model.embed_tokens", t.vocab, t.dim);
  if (gpt) {
    build.embedding("wpe", t.positions, t.dim);
    build.swap_last_uses();
  }
  for (std::int64_t i = 0; i < t.layers; ++i) {
    gpt ? add_gpt_block(build, fmt::format("h.{}", i), t)
        : add_llama_block(build, fmt::format("model.layers.{}", i), t);
  }
  build.norm(gpt ? "lnf" : "model.norm", t.dim, gpt);
}

void check_positive(const char* what, std::int64_t value) {
  if (value >= 1 && value <= kMostSize) return;
  throw ConfigError(fmt::format("model: got {} {}, want 1 to {}", what, value, kMostSize));
}

/// Sums of what passes stay far from the end of 64 bits.
void check_numel(double numel) {
  if (numel >= 0 && numel <= kMostParameters) return;
  throw ConfigError(
      fmt::format("model: got {:g} parameters, want 0 to {:g}", numel, static_cast<double>(kMostParameters)));
}

}  // namespace

Transformer with_defaults(Transformer t) {
  if (t.kv_heads == 0) t.kv_heads = t.heads;
  check_positive("heads", t.heads);
  if (t.head_dim == 0 && t.dim % t.heads != 0) {
    throw ConfigError(fmt::format("model: dim {} is not a multiple of heads {}; change one of them", t.dim, t.heads));
  }
  if (t.head_dim == 0) t.head_dim = t.dim / t.heads;
  if (t.mlp_dim == 0) t.mlp_dim = 4 * t.dim;
  if (t.positions == 0) t.positions = t.seq;
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"layers", t.layers},     {"dim", t.dim},           {"heads", t.heads},
      {"kv_heads", t.kv_heads}, {"vocab", t.vocab},       {"seq", t.seq},
      {"mlp_dim", t.mlp_dim},   {"head_dim", t.head_dim}, {"positions", t.positions}};
  for (const auto& [what, value] : sizes) check_positive(what, value);
  check_positive("heads * head_dim", t.heads * t.head_dim);
  if (t.style == Transformer::Style::kGpt && t.seq > t.positions) {
    throw ConfigError(
        fmt::format("model: got samples of {} tokens, want at most the {} positions it learns", t.seq, t.positions));
  }
  if (t.layers > kMostLayers) {
    throw ConfigError(fmt::format("model: got layers {}, want at most {}", t.layers, kMostLayers));
  }
  return t;
}

std::int64_t ModelShape::numel() const {
  std::int64_t sum = 0;
  for (const auto& parameter : parameters) sum += parameter.numel;
  return sum;
}

ModelShape transformer(const Transformer& shape, std::string name) {
  const Transformer t = with_defaults(shape);
  ModelShape model;
  model.name = std::move(name);
  model.transformer = t;
  Builder build(model);
  add_blocks(build, t);
  if (t.tied) {
    model.uses.push_back({{0}, true});  // the token embedding once more
  } else {
    build.linear(t.style == Transformer::Style::kGpt ? "head" : "lm_head", t.dim, t.vocab, false);
  }
  double numel = 0;
  for (const auto& parameter : model.parameters) numel += static_cast<double>(parameter.numel);
  check_numel(numel);
  return model;
}

ModelShape model_of_numel(std::int64_t numel) {
  check_numel(static_cast<double>(numel));
  constexpr std::int64_t kLayers = 32;
  ModelShape model;
  model.name = "given by its number of parameters";
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const std::int64_t part = numel / kLayers + (i < numel % kLayers ? 1 : 0);
    model.parameters.push_back({fmt::format("layer{}.weight", i), part, true});
  }
  return model;
}

}  // namespace zero::plan
