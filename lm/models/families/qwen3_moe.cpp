#include "models/families/qwen3_moe.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/experts_config.h"
#include "models/families/llama.h"
#include "models/window_config.h"

namespace zero::models {
namespace {

void read_experts(ConfigReader& in, CausalLMConfig& config) {
  Experts& experts = config.experts;
  // transformers writes the one up to version 4 and the other from 5 on, and reads both.
  experts.count = in.get<std::int64_t>("num_experts", in.get<std::int64_t>("num_local_experts", 128));
  if (in.get<std::int64_t>("num_local_experts", experts.count) != experts.count)
    in.refuse("num_local_experts", fmt::format("num_experts is {}", experts.count));
  experts.per_token = in.get<std::int64_t>("num_experts_per_tok", 8);
  experts.mlp_dim = in.get<std::int64_t>("moe_intermediate_size", 768);
  experts.normalize = in.get("norm_topk_prob", false);
  const auto step = in.get<std::int64_t>("decoder_sparse_step", 1);
  if (step < 1) in.refuse("decoder_sparse_step", "want 1 or more");
  experts.dense_layers = in.get("mlp_only_layers", experts.dense_layers);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    if ((i + 1) % step != 0) experts.dense_layers.push_back(i);
  }
  std::ranges::sort(experts.dense_layers);
  const auto rest = std::ranges::unique(experts.dense_layers);
  experts.dense_layers.erase(rest.begin(), rest.end());
  read_router_loss(in, experts);
}

class Qwen3MoeFamily final : public LlamaLikeFamily {
 public:
  Qwen3MoeFamily()
      : LlamaLikeFamily(
            {.model_type = "qwen3_moe",
             .architecture = "Qwen3MoeForCausalLM",
             .query_key_norms = true,
             .rounds_expert_weights = true},
            {.vocab = 151'936, .dim = 2048, .layers = 24, .kv_heads = 4, .mlp_dim = 6144, .max_positions = 32'768}) {}
  void read(ConfigReader& in, CausalLMConfig& config) const override {
    LlamaLikeFamily::read(in, config);
    config.attention_bias = config.output_bias = in.get("attention_bias", false);
    read_experts(in, config);
    // Of all layers, whatever max_window_layers says.
    const bool uses = in.get("use_sliding_window", false);
    const std::int64_t window = read_window(in, 4096);
    config.windows = {uses ? window : 0};
    for (const char* key : {"max_window_layers", "layer_types"}) in.pass_over(key);
  }
  void write(const CausalLMConfig& config, nlohmann::json& out) const override {
    LlamaLikeFamily::write(config, out);
    out["attention_bias"] = config.attention_bias;
    write_window_use(config, out);
    write_routing(config.experts, out);
    out["num_experts"] = config.experts.count;
    out["moe_intermediate_size"] = config.experts.mlp_dim;
    out["norm_topk_prob"] = config.experts.normalize;
    out["decoder_sparse_step"] = 1;
    out["mlp_only_layers"] = config.experts.dense_layers;
  }
};

}  // namespace

const ModelFamily& qwen3_moe_family() {
  static const Qwen3MoeFamily family;
  return family;
}

}  // namespace zero::models
