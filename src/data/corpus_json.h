#pragma once
// The files of a packed corpus, and corpus.json in particular.
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "zero/data.h"

namespace zero::data {

inline constexpr const char* kTrainFile = "train.bin";
inline constexpr const char* kValidationFile = "val.bin";
inline constexpr const char* kCorpusFile = "corpus.json";

using Histogram = std::array<std::int64_t, 256>;
double entropy_nats(const Histogram& histogram);

void write_corpus_json(const std::filesystem::path& folder, const CorpusInfo& info, const std::string& fingerprint);

/// Throws IoError when corpus.json is missing or damaged, or a split has not the size it says.
CorpusInfo read_corpus_json(const std::filesystem::path& folder);

/// The complete corpus in `folder` when it was packed from the same options and files.
std::optional<CorpusInfo> find_packed(const std::filesystem::path& folder, const std::string& fingerprint);

}  // namespace zero::data
