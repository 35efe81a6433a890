#pragma once
// The files of a packed corpus, and corpus.json in particular.
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zero/lm/data.h"

namespace zero::data {

inline constexpr const char* kTrainFile = "train.bin";
inline constexpr const char* kValidationFile = "val.bin";
inline constexpr const char* kCorpusFile = "corpus.json";

using Histogram = std::array<std::int64_t, 256>;
double entropy_nats(std::span<const std::int64_t> histogram);

/// A file of a split, from `skip_nbytes` on.
struct Part {
  std::filesystem::path path;
  std::int64_t skip_nbytes = 0, nbytes = 0;
  int token_nbytes = 0;  ///< of this file; 0: as the corpus says
};

/// Where the tokens of a corpus are.
struct Parts {
  std::vector<Part> train, validation;
  std::string train_hash, validation_hash;  ///< hash_of() the folder's own files
};

/// `parts`: of token files that stay where they are; else only the hashes of the folder's own files.
void write_corpus_json(const std::filesystem::path& folder, const CorpusInfo& info, const std::string& fingerprint,
                       const Parts& parts = {});

struct StoredCorpus {
  CorpusInfo info;
  std::string fingerprint;
  Parts parts;
};

/// Reads the folder's own files and compares them with their hashes.
bool is_intact(const StoredCorpus& stored);

/// Throws IoError when corpus.json is missing or damaged, or a file has not the size it says.
StoredCorpus read_corpus_json(const std::filesystem::path& folder);

/// The complete corpus in `folder` when it was packed from the same options and files, and is what was packed.
std::optional<CorpusInfo> find_packed(const std::filesystem::path& folder, const std::string& fingerprint);

}  // namespace zero::data
