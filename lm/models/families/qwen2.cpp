#include "models/families/qwen2.h"

#include "models/families/llama.h"
#include "models/window_config.h"

namespace zero::models {
namespace {

class Qwen2Family final : public LlamaLikeFamily {
 public:
  Qwen2Family()
      : LlamaLikeFamily({.model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .windows_by_layer = true},
                        {.vocab = 151'936, .kv_heads = 32, .mlp_dim = 22'016, .max_positions = 32'768}) {}
  void read(ConfigReader& in, CausalLMConfig& config) const override {
    LlamaLikeFamily::read(in, config);
    config.attention_bias = true;
    config.windows = read_windows(in, config.layers);
  }
  void write(const CausalLMConfig& config, nlohmann::json& out) const override {
    LlamaLikeFamily::write(config, out);
    write_window_use(config, out);
    write_layer_types(config, out);
  }
};

}  // namespace

const ModelFamily& qwen2_family() {
  static const Qwen2Family family;
  return family;
}

}  // namespace zero::models
