// Hugging Face folders: weights into an engine, and out of it.
#include <fmt/format.h>

#include <ATen/Functions.h>

#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "models/families/family.h"
#include "models/folder_files.h"
#include "zero/errors.h"
#include "zero/init.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {
namespace {

constexpr std::array<const char*, 9> kTokenizerFiles = {
    "tokenizer.json", "tokenizer_config.json",   "tokenizer.model",        "vocab.json",         "merges.txt",
    "vocab.txt",      "special_tokens_map.json", "generation_config.json", "chat_template.jinja"};

void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(from))
    throw IoError(fmt::format("'{}', which has the tokenizer, is not a folder", from.string()));
  for (const char* name : kTokenizerFiles) {
    std::error_code problem;
    if (!fs::exists(from / name, problem) || fs::equivalent(from / name, to / name, problem)) continue;
    fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing, problem);
    if (problem) throw IoError(fmt::format("'{}' cannot be copied: {}", (from / name).string(), problem.message()));
  }
}

}  // namespace

CausalLM build(const std::string& folder) {
  const CausalLMConfig config = read_config(folder);
  return deferred_init([&] { return CausalLM(config); }, {.without_values = true});
}

namespace {

/// The folder, or the archive in it where there are no safetensors.
std::string weights_in(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path path = folder;
  const bool has_safetensors =
      fs::exists(path / "model.safetensors", error) || fs::exists(path / "model.safetensors.index.json", error);
  const fs::path archive = path / "pytorch_model.bin";
  return !has_safetensors && fs::exists(archive, error) ? archive.string() : folder;
}

std::string dtype_in_json(const Engine& engine, const std::string& dtype) {
  const DType own = engine.config().param_dtype();
  const bool module = dtype == "module";
  if (dtype == "fp32" || (module && own == DType::kFloat32)) return "float32";
  return dtype == "fp16" || (module && own == DType::kFloat16) ? "float16" : "bfloat16";
}

/// config.json with the dtype that the weights are in.
std::string config_text(const CausalLMConfig& config, const std::string& dtype) {
  const std::string text = to_json(config);
  auto written = nlohmann::ordered_json::parse(text);
  bool same = true;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!written.contains(key) || written[key] == dtype) continue;
    written[key] = dtype;
    same = false;
  }
  if (!written.contains("dtype") && !written.contains("torch_dtype")) {
    written["dtype"] = dtype;
    same = false;
  }
  return same ? text : written.dump(2) + "\n";
}

/// Of a model with adapters: all but them, whose place is another file. Else: none. Throws ModelError for adapters that
/// add something. *Collective.*
std::map<std::string, std::string> base_names(Engine& engine, const CausalLM& model) {
  std::map<std::string, std::string> names;
  bool has_adapters = false;
  for (const auto& item : model->named_parameters()) {
    const std::string& name = item.key();
    const bool is_b = name.ends_with(".lora_B.weight");
    if (is_b && engine.full_weight(name).count_nonzero().item<std::int64_t>() > 0) {
      throw ModelError(
          fmt::format("save_pretrained: '{}' and other adapters have learnt something that would be lost: "
                      "merge_adapters() before, or save_adapters()",
                      name));
    }
    has_adapters = has_adapters || is_b;
    if (!is_b && !name.ends_with(".lora_A.weight")) names.emplace(name, name);
  }
  return has_adapters ? names : std::map<std::string, std::string>();
}

}  // namespace

LoadReport load_weights(Engine& engine, const CausalLM& model, const std::string& folder) {
  FullWeightsOptions options;
  const FamilyTraits& traits = family_of(model->config).traits();
  options.prefix = std::string(traits.decoder) + ".";
  // Constants that older versions of transformers saved.
  options.ignored = {"*.attn.bias", "*.attn.masked_bias", "*.rotary_emb.inv_freq"};
  options.optional = {"*.lora_A.weight", "*.lora_B.weight"};
  if (model->config.tied) options.aliases.emplace("lm_head.weight", traits.embedding);
  return engine.load_full_weights(weights_in(folder), options);
}

checkpoint::ExportReport save_pretrained(Engine& engine, const CausalLM& model, const std::string& folder,
                                         const std::string& dtype, const std::string& tokenizer_from) {
  const auto report = engine.save_full_weights(folder, {.dtype = dtype, .names = base_names(engine, model)});
  Group group = engine.all_ranks();
  on_first(group, [&] {
    write_text(std::filesystem::path(folder) / "config.json", config_text(model->config, dtype_in_json(engine, dtype)));
    if (!tokenizer_from.empty()) copy_tokenizer(tokenizer_from, folder);
  });
  return report;
}

}  // namespace zero::models
