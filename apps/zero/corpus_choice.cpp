#include "corpus_choice.h"

#include <fmt/format.h>

#include <cstdlib>

#include "host_facts.h"
#include "text_format.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

fs::path default_cache() {
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return fs::path(xdg) / "zerotorch";
  if (const std::string home = variable("HOME"); !home.empty())
    return fs::path(home) / ".cache" / "zerotorch";
  throw ConfigError(
      "neither XDG_CACHE_HOME nor HOME is set, so there is no place for the packed text; give one with "
      "--cache-dir");
}

/// A name for the packed form of one source: readable, and different for different sources.
std::string cache_name(const fs::path& source, const std::vector<std::string>& suffixes) {
  std::string key = source.string();
  for (const std::string& suffix : suffixes) key += '\n' + suffix;
  std::uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return fmt::format("{}-{:016x}", source.filename().string(), hash);
}

/// The wheel's Python sources; a plain libtorch folder has none.
fs::path python_sources_of_torch() {
  const fs::path prefix = ZERO_TORCH_PREFIX;
  std::error_code error;
  if (fs::exists(prefix / "__init__.py", error)) return prefix;
  throw ConfigError(
      fmt::format("there is no text to learn from: {} (the libtorch this was built with) has no Python "
                  "sources. Give a file or a folder of text with --data PATH, or set ZERO_DATA",
                  prefix.string()));
}

void check_exists(const fs::path& source, const char* from) {
  std::error_code error;
  if (fs::exists(source, error)) return;
  throw ConfigError(
      fmt::format("{}: there is no file or folder {}; give the text to learn from with --data PATH", from,
                  source.string()));
}

}  // namespace

CorpusOptions choose_corpus(const std::string& data, const std::string& cache_dir) {
  CorpusOptions options;
  const std::string from_environment = variable("ZERO_DATA");
  if (!data.empty() || !from_environment.empty()) {
    options.source = data.empty() ? from_environment : data;
    check_exists(options.source, data.empty() ? "ZERO_DATA" : "--data");
  } else {
    options.source = python_sources_of_torch();
    options.suffixes = {".py"};
  }
  options.source = fs::absolute(options.source).lexically_normal();
  if (options.source.filename().empty()) options.source = options.source.parent_path();
  const fs::path cache = cache_dir.empty() ? default_cache() : fs::path(cache_dir);
  options.folder = fs::absolute(cache / cache_name(options.source, options.suffixes)).lexically_normal();
  return options;
}

CorpusInfo pack_and_check(const CorpusOptions& options, std::int64_t sequence_length) {
  CorpusInfo info = pack_corpus(options);
  if (sequence_length == 0) return info;
  // A sequence has one more byte: the last target.
  if (info.train_nbytes > sequence_length && info.validation_nbytes > sequence_length) return info;
  throw ConfigError(fmt::format(
      "{}: {} to train on and {} to validate on are too few for sequences of {} bytes; give more "
      "text with --data, or a smaller --seq",
      info.source, human_nbytes(info.train_nbytes), human_nbytes(info.validation_nbytes), sequence_length));
}

std::string describe_corpus(const CorpusInfo& info, double seconds) {
  const std::int64_t left_out =
      info.files_duplicate + info.files_wrong_size + info.files_not_text + info.files_unreadable;
  const std::string packed = info.reused ? "found packed" : fmt::format("packed in {}", duration(seconds));
  const double nats = info.validation_unigram_entropy_nats;
  const std::string source = info.source == ZERO_TORCH_PREFIX
                                 ? fmt::format("Python sources of torch {}", libtorch_version())
                                 : short_path(info.source);
  return fmt::format(
      "data       {}: {} files{}; {}\n"
      "           {} to train on, {} to validate on; a token is a byte\n"
      "           to beat: {:.3f} nats = {:.3f} bits per byte, the unigram entropy: the loss\n"
      "           of knowing just how often each byte occurs\n",
      source, with_commas(info.files),
      left_out > 0 ? fmt::format(" ({} left out)", with_commas(left_out)) : "", packed,
      human_nbytes(info.train_nbytes), human_nbytes(info.validation_nbytes), nats, to_bits(nats));
}

}  // namespace zero::app
