#pragma once
// Hugging Face's tokenizers, by the Python package of that name in a program beside this one.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "zero/lm/data.h"

namespace zero::app {

/// Whether a folder has a tokenizer (tokenizer.json).
bool has_tokenizer(const std::string& folder);

struct PromptTokens {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> special;  ///< those of the vocabulary that stand for no text
};

/// `text` as the model of this tokenizer begins with it, special tokens included; pieces.json, by which
/// zero::token_pieces() knows the text of tokens, is written to `scratch`. Throws ConfigError when there is no Python
/// with tokenizers, or it has refused (and has said why).
PromptTokens tokenize_prompt(const std::string& tokenizer, const std::string& text,
                             const std::filesystem::path& scratch);

/// `text` (files, or JSONL) as a corpus of tokens, made in a folder beside text.folder and kept there: found when the
/// same were made before. Throws as tokenize_prompt().
CorpusOptions tokenized(const CorpusOptions& text, const std::string& tokenizer);

/// The tokens that end a text of the model in a Hugging Face folder: eos_token_id of generation_config.json, else of
/// config.json. Throws ConfigError for one that is no JSON.
std::vector<std::int64_t> end_tokens(const std::string& folder);

}  // namespace zero::app
