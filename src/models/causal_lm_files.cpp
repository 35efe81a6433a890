// Hugging Face folders: weights into an engine, and out of it.
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "zero/causal_lm.h"
#include "zero/errors.h"
#include "zero/init.h"

namespace zero::models {
namespace {

constexpr std::array<const char*, 9> kTokenizerFiles = {
    "tokenizer.json", "tokenizer_config.json",   "tokenizer.model",        "vocab.json",         "merges.txt",
    "vocab.txt",      "special_tokens_map.json", "generation_config.json", "chat_template.jinja"};

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw IoError(fmt::format("'{}' cannot be written: {}", path.string(), std::strerror(errno)));
}

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

/// Runs `work` on the first rank; what goes wrong there all ranks throw. *Collective.*
template <class Work>
void on_first(Group& group, Work work) {
  std::string error;
  if (group.rank() == 0) {
    try {
      work();
    } catch (const std::exception& problem) {
      error = problem.what();
    }
  }
  auto length = static_cast<std::int64_t>(error.size());
  group.broadcast(&length, 1, DType::kInt64, 0, {.label = "save_pretrained"}).wait();
  if (length == 0) return;
  error.resize(static_cast<std::size_t>(length));
  group.broadcast(error.data(), length, DType::kByte, 0, {.label = "save_pretrained"}).wait();
  throw IoError(error);
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
  auto json = nlohmann::ordered_json::parse(text);
  bool same = true;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!json.contains(key) || json[key] == dtype) continue;
    json[key] = dtype;
    same = false;
  }
  if (!json.contains("dtype") && !json.contains("torch_dtype")) {
    json["dtype"] = dtype;
    same = false;
  }
  return same ? text : json.dump(2) + "\n";
}

}  // namespace

LoadReport load_weights(Engine& engine, const CausalLM& model, const std::string& folder) {
  FullWeightsOptions options;
  options.prefix = model->config.family == CausalLMConfig::Family::kGpt2 ? "transformer." : "model.";
  // Constants that older versions of transformers saved.
  options.ignored = {"*.attn.bias", "*.attn.masked_bias", "*.rotary_emb.inv_freq"};
  if (model->config.tied) {
    const bool is_gpt2 = model->config.family == CausalLMConfig::Family::kGpt2;
    options.aliases.emplace("lm_head.weight", is_gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
  }
  return engine.load_full_weights(weights_in(folder), options);
}

checkpoint::ExportReport save_pretrained(Engine& engine, const CausalLM& model, const std::string& folder,
                                         const std::string& dtype, const std::string& tokenizer_from) {
  const auto report = engine.save_full_weights(folder, {.dtype = dtype});
  Group group = engine.all_ranks();
  on_first(group, [&] {
    write_file(std::filesystem::path(folder) / "config.json", config_text(model->config, dtype_in_json(engine, dtype)));
    if (!tokenizer_from.empty()) copy_tokenizer(tokenizer_from, folder);
  });
  return report;
}

}  // namespace zero::models
