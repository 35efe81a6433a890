#pragma once
// GPT-2: learned positions, layer norms, weights [in, out].
#include "models/families/family.h"

namespace zero::models {

const ModelFamily& gpt2_family();
std::shared_ptr<DecoderImpl> make_gpt2_decoder(const CausalLMConfig& config);

}  // namespace zero::models
