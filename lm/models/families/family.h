#pragma once
// A family of Hugging Face's models: how its config.json is read and written, and what sets its modules apart. Another
// one is a file pair of this folder and a row in family.cpp.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/config_reader.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {

/// Of a gated MLP's linear maps.
struct MlpNames {
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";
};

struct FamilyTraits {
  std::string_view model_type;                                   ///< of config.json
  const char* architecture = "";                                 ///< transformers' class
  const char* decoder = "model";                                 ///< name of its module
  const char* embedding = "model.embed_tokens.weight";           ///< of tokens
  std::vector<std::string> lora_targets = {"q_proj", "v_proj"};  ///< what PEFT adapts by default
  std::string_view branch_end = "";  ///< weights that end a residual branch begin smaller by depth; empty: none
  bool learned_positions = false;    ///< in place of rotary embeddings
  bool transposed_linear = false;    ///< linear maps have weights [in, out]
  bool windows_by_layer = false;     ///< layers may have different windows of attention
  bool query_key_norms = false;      ///< queries and keys are normalised by head
  const char* routed_mlp = "mlp";    ///< name of an MLP with experts
  MlpNames expert_names;
  bool rounds_expert_weights = false;  ///< to the dtype of activations, before experts are weighted
};

class ModelFamily {
 public:
  virtual ~ModelFamily() = default;
  virtual const FamilyTraits& traits() const = 0;
  /// From config.json, whose keys of all families have been read.
  virtual void read(ConfigReader& in, CausalLMConfig& config) const = 0;
  /// Into config.json, which has the keys of all families.
  virtual void write(const CausalLMConfig& config, nlohmann::json& out) const = 0;
  /// Throws ConfigError for sizes that do not go together, beyond those of all families.
  virtual void check(const CausalLMConfig& config) const = 0;
  virtual std::shared_ptr<DecoderImpl> make_decoder(const CausalLMConfig& config) const = 0;
};

const ModelFamily& family_of(CausalLMConfig::Family family);
inline const ModelFamily& family_of(const CausalLMConfig& config) { return family_of(config.family); }
/// By `model_type`. Throws ConfigError that names those there are.
CausalLMConfig::Family read_family(ConfigReader& in);

}  // namespace zero::models
