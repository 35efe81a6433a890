#include "models/families/mixtral.h"

#include "models/experts_config.h"
#include "models/families/llama.h"
#include "models/window_config.h"

namespace zero::models {
namespace {

class MixtralFamily final : public LlamaLikeFamily {
 public:
  MixtralFamily()
      : LlamaLikeFamily(
            {.model_type = "mixtral",
             .architecture = "MixtralForCausalLM",
             .routed_mlp = "block_sparse_moe",
             .expert_names = {"w1", "w3", "w2"}},
            {.kv_heads = 8, .mlp_dim = 14'336, .max_positions = 131'072, .norm_eps = 1e-5, .rope_theta = 1e6}) {}
  void read(ConfigReader& in, CausalLMConfig& config) const override {
    LlamaLikeFamily::read(in, config);
    Experts& experts = config.experts;
    experts.count = in.get<std::int64_t>("num_local_experts", 8);
    experts.per_token = in.get<std::int64_t>("num_experts_per_tok", 2);
    experts.mlp_dim = config.mlp_dim;
    in.require("router_jitter_noise", 0.0);
    read_router_loss(in, experts);
    config.windows = {in.get<std::int64_t>("sliding_window", 0)};
  }
  void write(const CausalLMConfig& config, nlohmann::json& out) const override {
    LlamaLikeFamily::write(config, out);
    write_window(config.windows[0], out);
    write_routing(config.experts, out);
    out["num_local_experts"] = config.experts.count;
  }
};

}  // namespace

const ModelFamily& mixtral_family() {
  static const MixtralFamily family;
  return family;
}

}  // namespace zero::models
