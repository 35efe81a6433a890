#include "models/families/mistral.h"

#include "models/families/llama.h"
#include "models/window_config.h"

namespace zero::models {
namespace {

class MistralFamily final : public LlamaLikeFamily {
 public:
  MistralFamily()
      : LlamaLikeFamily({.model_type = "mistral", .architecture = "MistralForCausalLM"},
                        {.kv_heads = 8, .mlp_dim = 14'336, .max_positions = 131'072}) {}
  void read(ConfigReader& in, CausalLMConfig& config) const override {
    LlamaLikeFamily::read(in, config);
    config.windows = {read_window(in, 4096)};
  }
  void write(const CausalLMConfig& config, nlohmann::json& out) const override {
    LlamaLikeFamily::write(config, out);
    write_window(config.windows[0], out);
  }
};

}  // namespace

const ModelFamily& mistral_family() {
  static const MistralFamily family;
  return family;
}

}  // namespace zero::models
