#pragma once
// Low-rank adapters (LoRA, arXiv 2106.09685) of causal language models, in PEFT's file layout.
#include <cstdint>
#include <string>
#include <vector>

#include "zero/engine.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {

struct LoraOptions {
  std::int64_t rank = 8;
  double alpha = 16;    ///< what an adapter adds is multiplied by alpha / rank
  double dropout = 0;   ///< of its input, in training mode
  bool rslora = false;  ///< alpha / sqrt(rank) in place of alpha / rank (arXiv 2312.03732)
  /// Linear maps that get an adapter, by the end of their names ("q_proj", "self_attn.q_proj"). Empty: PEFT's choice, q
  /// and v of attention. "all-linear": those of attention and MLPs; of a model with routed experts, whose
  /// MLPs have maps of the experts' names, those of attention.
  std::vector<std::string> targets;
  /// The folder of the model that is adapted, for adapter_config.json.
  std::string base;

  bool operator==(const LoraOptions&) const = default;
};

/// Gives `model`, before initialize(), adapters `<linear map>.lora_A.weight` [rank, in] and `.lora_B.weight` [out,
/// rank], and freezes all its other parameters. A begins uniform as in PEFT, from libtorch's default generator, and B
/// with zeros, so that the model is at first what it was. Local. Throws ConfigError for a target that the model does
/// not have, or that cannot be adapted: the head, routers and routed experts.
void add_lora(CausalLM& model, const LoraOptions& options);

/// The options of an adapter's folder, or of its adapter_config.json. Throws ConfigError for whatever has an effect and
/// is not built (DoRA, biases, other ranks for some modules), by name; IoError. Local.
LoraOptions read_lora(const std::string& path);
/// As read_lora(), of JSON; `where` is named in errors.
LoraOptions parse_lora(const std::string& json, const std::string& where = "adapter_config.json");
/// An adapter_config.json that PEFT loads for a model of this family.
std::string to_json(const LoraOptions& options, CausalLMConfig::Family family);

/// Gives an engine of `model`, which has them, the adapters of a folder (adapter_model.safetensors). The base's weights
/// stay. *Collective.* Throws as load_weights().
LoadReport load_adapters(Engine& engine, const CausalLM& model, const std::string& folder);
/// Writes adapter_config.json and adapter_model.safetensors, which PEFT loads; `dtype`: as checkpoint::ExportOptions.
/// *Collective.* Throws as save_pretrained().
checkpoint::ExportReport save_adapters(Engine& engine, const CausalLM& model, const LoraOptions& options,
                                       const std::string& folder, const std::string& dtype = "fp32");
/// Adds what each adapter does to the weight beside it, in fp32, rounded once to the weight's dtype, and sets B to
/// zero: the model stays what it is but for rounding, and save_pretrained() writes it as one without adapters.
/// *Collective.*
void merge_adapters(Engine& engine, const CausalLM& model);

}  // namespace zero::models
