#pragma once
// Which text `zero train` learns from, and where its packed form is kept.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "zero/lm/data.h"

namespace zero::app {

/// Options that pack `data` (a file or folder; "-": standard input, which is read here; empty: ZERO_DATA, else the
/// Python sources of the torch wheel this was built with) below `cache_dir` (empty: $XDG_CACHE_HOME/zerotorch, else
/// ~/.cache/zerotorch). A JSON file {"mixture": [{"data": PATH, "weight": X}, ...]} is a mixture of such. `suffixes` of
/// files in a folder; empty: the usual ones. Throws ConfigError when there is nothing at that place, or no folder to
/// keep it in.
CorpusOptions choose_corpus(const std::string& data, const std::string& cache_dir,
                            const std::vector<std::string>& suffixes = {});

/// Whether it, or a corpus of the mixture it is, is text and not tokens already.
bool has_text(const CorpusOptions& options);

/// Where the tokens are kept that the tokenizer in a folder makes of a text whose packed form would be in `packed`.
std::filesystem::path tokens_folder(const std::filesystem::path& packed, const std::string& tokenizer);

/// Packs it, or finds it packed. Throws as pack_corpus(), and ConfigError when either split is too small for
/// one sequence of `sequence_length` bytes (0: not checked).
CorpusInfo pack_and_check(const CorpusOptions& options, std::int64_t sequence_length);

/// What it is, for people: four lines, and one for each reason why files are left out. `seconds`: how long
/// packing took.
std::string describe_corpus(const CorpusInfo& info, double seconds);
/// How many files were taken, and a line for each reason why others are left out.
std::string describe_files(const CorpusInfo& info);
/// The same as JSON.
nlohmann::ordered_json corpus_json(const CorpusInfo& info);

}  // namespace zero::app
