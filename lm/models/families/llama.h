#pragma once
// Llama, and what its descendants share with it.
#include <nlohmann/json.hpp>
#include <utility>

#include "models/families/family.h"

namespace zero::models {

/// What transformers takes for keys that a file does not have.
struct LlamaDefaults {
  std::int64_t vocab = 32'000, dim = 4096, layers = 32, kv_heads = 0, mlp_dim = 11'008, max_positions = 2048;
  std::int64_t head_dim = 0;  ///< 0: dim by heads
  double norm_eps = 1e-6, rope_theta = 10'000;
};

/// Rotary embeddings, RMS norms, gated MLPs.
class LlamaLikeFamily : public ModelFamily {
 public:
  LlamaLikeFamily(FamilyTraits traits, LlamaDefaults defaults) : traits_(std::move(traits)), defaults_(defaults) {}
  const FamilyTraits& traits() const override { return traits_; }
  void read(ConfigReader& in, CausalLMConfig& config) const override;
  void write(const CausalLMConfig& config, nlohmann::json& out) const override;
  void check(const CausalLMConfig& config) const override;
  std::shared_ptr<DecoderImpl> make_decoder(const CausalLMConfig& config) const override;

 private:
  const FamilyTraits traits_;
  const LlamaDefaults defaults_;
};

const ModelFamily& llama_family();
std::shared_ptr<DecoderImpl> make_llama_decoder(const CausalLMConfig& config);

}  // namespace zero::models
