#include "models/families/qwen3.h"

#include "models/families/llama.h"
#include "models/window_config.h"

namespace zero::models {
namespace {

class Qwen3Family final : public LlamaLikeFamily {
 public:
  Qwen3Family()
      : LlamaLikeFamily(
            {.model_type = "qwen3",
             .architecture = "Qwen3ForCausalLM",
             .windows_by_layer = true,
             .query_key_norms = true},
            {.vocab = 151'936, .kv_heads = 32, .mlp_dim = 22'016, .max_positions = 32'768, .head_dim = 128}) {}
  void read(ConfigReader& in, CausalLMConfig& config) const override {
    LlamaLikeFamily::read(in, config);
    config.attention_bias = config.output_bias = in.get("attention_bias", false);
    config.windows = read_windows(in, config.layers);
  }
  void write(const CausalLMConfig& config, nlohmann::json& out) const override {
    LlamaLikeFamily::write(config, out);
    out["attention_bias"] = config.attention_bias;
    write_window_use(config, out);
    write_layer_types(config, out);
  }
};

}  // namespace

const ModelFamily& qwen3_family() {
  static const Qwen3Family family;
  return family;
}

}  // namespace zero::models
