#include "model/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "host/side_programs.h"
#include "model/corpus_choice.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;

/// Runs zerotorch.tokenize, which needs no other part of its package.
void run_tokenizer(const std::string& tokenizer, std::vector<std::string> arguments) {
  const std::string python = find_python("", {"tokenizers"});
  if (python.empty()) {
    throw ConfigError(fmt::format(
        "text becomes tokens by {}/tokenizer.json, and {} the package tokenizers: pip install tokenizers, or set "
        "ZERO_PYTHON to a Python that has it",
        tokenizer, std::getenv("ZERO_PYTHON") ? "ZERO_PYTHON is no Python with" : "no Python here has"));
  }
  std::vector<std::string> command = python_script(python, find_side_program("zerotorch/tokenize.py"));
  command.insert(command.end(), {"--tokenizer", tokenizer});
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (run_program(command) != 0)
    throw ConfigError(fmt::format("the tokenizer of {} has not made tokens of the text", tokenizer));
}

nlohmann::json read_json(const fs::path& path) {
  std::ifstream file(path);
  auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw ConfigError(fmt::format("{}: is not a JSON object", path.string()));
  return json;
}

}  // namespace

bool has_tokenizer(const std::string& folder) {
  std::error_code error;
  return !folder.empty() && fs::exists(fs::path(folder) / "tokenizer.json", error);
}

PromptTokens tokenize_prompt(const std::string& tokenizer, const std::string& text, const fs::path& scratch) {
  const fs::path prompt = scratch / "prompt.txt";
  std::ofstream(prompt, std::ios::binary) << text;
  run_tokenizer(tokenizer, {"--prompt", prompt.string(), "--out", scratch.string()});
  try {
    const nlohmann::json made = read_json(scratch / "prompt.json");
    return {made.at("tokens"), made.at("special")};
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("the tokenizer of {} has written {}", tokenizer, error.what()));
  }
}

CorpusOptions tokenized(const CorpusOptions& text, const std::string& tokenizer) {
  if (!text.mixture.empty()) {
    CorpusOptions made = text;
    for (MixedCorpus& member : made.mixture) {
      CorpusOptions one = text;
      one.mixture.clear();
      one.source = member.source;
      one.folder = member.folder;
      if (holds_tokens(one.source)) continue;  // of the same tokenizer, or it is an error
      one = tokenized(one, tokenizer);
      member.source = one.source;
      member.folder = one.folder;
    }
    made.folder = tokens_folder(text.folder, tokenizer);
    return made;
  }
  const std::string tokens = tokens_folder(text.folder, tokenizer).string();
  std::vector<std::string> arguments = {"--data", text.source.string(),    "--out",
                                        tokens,   "--validation-fraction", fmt::format("{}", text.validation_fraction),
                                        "--keep"};
  std::vector<std::string> suffixes = text.suffixes;
  if (suffixes == CorpusOptions().suffixes) suffixes.emplace_back(".jsonl");
  for (const std::string& suffix : suffixes) arguments.insert(arguments.end(), {"--suffix", suffix});
  run_tokenizer(tokenizer, std::move(arguments));
  CorpusOptions made = text;
  made.source = tokens;
  made.folder = tokens + "-packed";
  return made;
}

std::vector<std::int64_t> end_tokens(const std::string& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    std::error_code error;
    const fs::path path = fs::path(folder) / name;
    if (!fs::exists(path, error)) continue;
    const nlohmann::json ends = read_json(path).value("eos_token_id", nlohmann::json());
    if (ends.is_null()) continue;
    const nlohmann::json list = ends.is_array() ? ends : nlohmann::json::array({ends});
    if (!std::ranges::all_of(list, [](const auto& end) { return end.is_number_integer(); }))
      throw ConfigError(
          fmt::format("{}: eos_token_id is {}; want a number or a list of numbers", path.string(), ends.dump()));
    return list.get<std::vector<std::int64_t>>();
  }
  return {};
}

}  // namespace zero::app
