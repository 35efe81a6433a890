#pragma once
// Files of tokens that others have written.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "data/corpus_json.h"

namespace zero::data {

struct TokenFiles {
  TokenInfo tokens;  ///< but for `largest`, which scan() finds
  Parts parts;
};

/// What the folder `source` has of token files (CorpusOptions::source); nullopt: none. Throws IoError for files that
/// are cut off or of a version that is not known.
std::optional<TokenFiles> find_token_files(const std::filesystem::path& source);

/// Of names, sizes and times.
std::string fingerprint(const TokenFiles& files);

/// Reads all tokens once: sizes, hash, frequencies, the largest token. Throws IoError.
CorpusInfo scan(const TokenFiles& files);

/// Set in tokens that are context only (TokenInfo::has_context).
inline constexpr std::int64_t kContextBit = std::int64_t{1} << 31;

/// Little-endian tokens of `nbytes` each.
void widen(std::span<const std::uint8_t> bytes, int nbytes, std::span<std::int64_t> tokens);

}  // namespace zero::data
