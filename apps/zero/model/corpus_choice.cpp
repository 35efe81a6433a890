#include "model/corpus_choice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <string_view>
#include <utility>

#include "host/host_facts.h"
#include "text/text_format.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

fs::path default_cache() {
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return fs::path(xdg) / "zerotorch";
  if (const std::string home = variable("HOME"); !home.empty()) return fs::path(home) / ".cache" / "zerotorch";
  throw ConfigError(
      "neither XDG_CACHE_HOME nor HOME is set, so there is no place for the packed text; give one with "
      "--cache-dir");
}

// FNV-1a.
constexpr std::uint64_t kHashStart = 0xCBF29CE484222325ull;
std::uint64_t hash_on(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

/// A name for the packed form of one source: readable, and different for different sources.
std::string cache_name(const fs::path& source, const std::vector<std::string>& suffixes) {
  std::string key = source.string();
  for (const std::string& suffix : suffixes) key += '\n' + suffix;
  return fmt::format("{}-{:016x}", source.filename().string(), hash_on(kHashStart, key));
}

/// The wheel's Python sources; a plain libtorch folder has none.
fs::path python_prefix() { return ZERO_TORCH_PREFIX; }

/// The system's Python, the newest; empty: there is none.
fs::path python_sources_of_system() {
  fs::path newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/usr/lib", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("python3.") || !fs::exists(entry.path() / "argparse.py", error)) continue;
    // "python3.9" is older than "python3.11".
    const std::string known = newest.filename().string();
    if (std::pair(name.size(), name) > std::pair(known.size(), known)) newest = entry.path();
  }
  return newest;
}

/// Text that is here without being asked for.
fs::path default_source() {
  fs::path prefix = python_prefix();
  std::error_code error;
  if (fs::exists(prefix / "__init__.py", error)) return prefix;
  if (const fs::path system = python_sources_of_system(); !system.empty()) return system;
  throw ConfigError(
      fmt::format("there is no text to learn from: {} (the libtorch this was built with) has no Python sources, and "
                  "there is no Python in /usr/lib. Give a file or a folder of text with --data PATH, or set ZERO_DATA",
                  prefix.string()));
}

/// Standard input, in a file below `cache` that is named by its contents, so that a run which goes on finds it again.
fs::path keep_standard_input(const fs::path& cache) {
  std::error_code error;
  fs::create_directories(cache, error);
  std::string pattern = (cache / "stdin-XXXXXX").string();
  const int fd = ::mkstemp(pattern.data());
  if (fd < 0)
    throw IoError(fmt::format("--data -: cannot make a file in {}: {}", cache.string(), std::strerror(errno)));
  std::uint64_t hash = kHashStart;
  std::string buffer(1 << 20, '\0');
  bool ok = true;
  for (ssize_t got = 0; ok && (got = ::read(STDIN_FILENO, buffer.data(), buffer.size())) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      ::close(fd);
      fs::remove(pattern, error);
      throw IoError(fmt::format("--data -: cannot read standard input: {}", std::strerror(errno)));
    }
    const std::string_view text(buffer.data(), static_cast<std::size_t>(got));
    hash = hash_on(hash, text);
    ok = ::write(fd, text.data(), text.size()) == got;
  }
  ::close(fd);
  if (hash == kHashStart) {
    fs::remove(pattern, error);
    throw ConfigError("--data -: standard input is empty");
  }
  const fs::path kept = cache / fmt::format("stdin-{:016x}.txt", hash);
  if (ok) fs::rename(pattern, kept, error);
  if (ok && !error) return kept;
  fs::remove(pattern, error);
  throw IoError(fmt::format("--data -: cannot keep the text in {}; is there room?", cache.string()));
}

void check_exists(const fs::path& source, const char* from) {
  std::error_code error;
  if (fs::is_fifo(source, error)) {
    throw ConfigError(
        fmt::format("{}: {} is a pipe, and can be read but once; text of a program: `... | zero train --data -`", from,
                    source.string()));
  }
  if (fs::exists(source, error)) return;
  throw ConfigError(fmt::format("{}: there is no file or folder {}; give the text to learn from with --data PATH", from,
                                source.string()));
}

std::string shortened(const std::string& name) {
  constexpr std::size_t kMost = 40;
  return name.size() <= kMost ? name : "..." + name.substr(name.size() - kMost + 3);
}

/// "~/x" as a shell reads it; what is not absolute is relative to `folder`.
fs::path path_in(const fs::path& folder, const std::string& text) {
  const std::string home = variable("HOME");
  return text.starts_with("~/") && !home.empty() ? fs::path(home) / text.substr(2) : folder / text;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Of a file that is no JSON, but perhaps was to be one.
bool looks_like_mixture(const fs::path& path) {
  std::ifstream file(path);
  std::string text(std::size_t{1} << 16, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  static const std::regex key(R"("?mixture"?\s*:\s*\[)");
  return std::regex_search(lower(text), key);
}

[[noreturn]] void refuse_mixture(const fs::path& path, const std::string& what) {
  throw ConfigError(
      fmt::format("{}: {}; want {{\"mixture\": [{{\"data\": PATH, \"weight\": X}}, ...]}}", path.string(), what));
}

/// The list of {"mixture": [...]}; null for any other file.
nlohmann::json mixture_list(const fs::path& path) {
  std::error_code error;
  if (path.extension() != ".json" || !fs::is_regular_file(path, error)) return {};
  std::ifstream file(path);
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    if (looks_like_mixture(path)) refuse_mixture(path, fmt::format("is no JSON ({})", error.what()));
    return {};
  }
  if (!json.is_object()) return {};
  for (const auto& item : json.items()) {
    if (item.key() != "mixture" && lower(item.key()).starts_with("mixture"))
      refuse_mixture(path, fmt::format("has \"{}\"", item.key()));
  }
  if (!json.contains("mixture")) return {};
  if (json.size() > 1) refuse_mixture(path, "has other keys beside \"mixture\"");
  if (!json["mixture"].is_array() || json["mixture"].empty()) refuse_mixture(path, "\"mixture\" is no list of corpora");
  return json["mixture"];
}

/// {"mixture": [{"data": PATH, "weight": X}, ...]}; empty for any other file.
std::vector<std::pair<fs::path, double>> read_mixture(const fs::path& path) {
  std::vector<std::pair<fs::path, double>> mixture;
  for (const auto& one : mixture_list(path)) {
    const bool well = one.is_object() && one.contains("data") && one["data"].is_string() && one.contains("weight") &&
                      one["weight"].is_number() && one.size() == 2;
    if (!well || one["data"].get_ref<const std::string&>().empty())
      refuse_mixture(path, fmt::format("got {}", one.dump()));
    fs::path source = fs::absolute(path_in(path.parent_path(), one["data"])).lexically_normal();
    if (source.filename().empty()) source = source.parent_path();
    check_exists(source, path.c_str());
    if (!mixture_list(source).is_null()) refuse_mixture(path, fmt::format("{} is a mixture itself", source.string()));
    mixture.emplace_back(std::move(source), one["weight"].get<double>());
  }
  return mixture;
}

}  // namespace

CorpusOptions choose_corpus(const std::string& data, const std::string& cache_dir,
                            const std::vector<std::string>& suffixes) {
  CorpusOptions options;
  const fs::path cache = cache_dir.empty() ? default_cache() : fs::path(cache_dir);
  const std::string from_environment = variable("ZERO_DATA");
  if (data == "-") {
    options.source = keep_standard_input(cache);
  } else if (!data.empty() || !from_environment.empty()) {
    options.source = data.empty() ? from_environment : data;
    check_exists(options.source, data.empty() ? "ZERO_DATA" : "--data");
  } else {
    options.source = default_source();
    options.suffixes = {".py"};
  }
  if (options.source != python_prefix()) options.max_file_nbytes = std::numeric_limits<std::int64_t>::max();
  if (!suffixes.empty()) options.suffixes.clear();
  for (const std::string& suffix : suffixes)
    options.suffixes.push_back(suffix.starts_with("*") ? suffix.substr(1) : suffix);
  options.source = fs::absolute(options.source).lexically_normal();
  if (options.source.filename().empty()) options.source = options.source.parent_path();
  const auto folder_of = [&](const fs::path& source) {
    return fs::absolute(cache / cache_name(source, options.suffixes)).lexically_normal();
  };
  options.folder = folder_of(options.source);
  for (const auto& [source, weight] : read_mixture(options.source)) {
    options.mixture.push_back({source, folder_of(source), weight});
  }
  return options;
}

bool has_text(const CorpusOptions& options) {
  if (options.mixture.empty()) return !holds_tokens(options.source);
  return std::ranges::any_of(options.mixture, [](const MixedCorpus& one) { return !holds_tokens(one.source); });
}

fs::path tokens_folder(const fs::path& packed, const std::string& tokenizer) {
  return fmt::format("{}-tokens-{:016x}", packed.string(), hash_on(kHashStart, tokenizer));
}

CorpusInfo pack_and_check(const CorpusOptions& options, std::int64_t sequence_length) {
  CorpusInfo info = pack_corpus(options);
  if (sequence_length == 0) return info;
  if (info.train_targets == 0 || info.validation_targets == 0) {
    throw ConfigError(fmt::format("{}: {} has no token to learn: all are context", info.source,
                                  info.train_targets == 0 ? "the part to train on" : "the part to validate on"));
  }
  for (const MixtureMember& one : info.members) {
    if (one.train_tokens > sequence_length && one.validation_tokens > sequence_length) continue;
    throw ConfigError(fmt::format(
        "{}: {} has {} tokens to train on and {} to validate on, too few for sequences of {}; give more, or "
        "a smaller --seq",
        info.source, one.source, with_commas(one.train_tokens), with_commas(one.validation_tokens), sequence_length));
  }
  // A sequence has one more byte: the last target.
  if (info.train_tokens() > sequence_length && info.validation_tokens() > sequence_length) return info;
  if (info.tokens.nbytes > 1) {
    throw ConfigError(fmt::format(
        "{}: {} tokens to train on and {} to validate on are too few for sequences of {}; give "
        "more with --data, or a smaller --seq",
        info.source, with_commas(info.train_tokens()), with_commas(info.validation_tokens()), sequence_length));
  }
  throw ConfigError(
      fmt::format("{}: its {} to train on and {} to validate on, with a byte between documents, are too few for "
                  "sequences of {}; give more text with --data, or a smaller --seq",
                  info.source, human_nbytes(info.train_nbytes), human_nbytes(info.validation_nbytes),
                  counted(sequence_length, "byte")));
}

namespace {

std::string describe_members(const CorpusInfo& info) {
  std::string text;
  for (const MixtureMember& one : info.members) {
    text += fmt::format("           {:.1f} % of the sequences: {} ({} tokens to train on)\n",
                        100.0 * static_cast<double>(one.sequences) / kMixtureSequences, short_path(one.source),
                        with_commas(one.train_tokens));
  }
  return text;
}

std::string describe_tokens(const CorpusInfo& info, double seconds) {
  const std::string text =
      info.tokens.text_nbytes > 0 ? fmt::format("; a token is {:.2f} bytes of text", info.tokens.text_nbytes) : "";
  const double nats = info.validation_unigram_entropy_nats;
  const std::string context =
      info.tokens.has_context
          ? fmt::format("           a loss is taken on {:.0f} % of them; the others are context\n",
                        100.0 * static_cast<double>(info.train_targets) / static_cast<double>(info.train_tokens()))
          : "";
  return fmt::format(
      "data       {}: {} file{} of tokens; {}\n"
      "           {} tokens to train on, {} to validate on{}\n{}"
      "           to beat: {:.3f} nats a token, the unigram entropy: the loss of knowing just\n"
      "           how often each token occurs\n",
      short_path(info.source), with_commas(info.files), info.files == 1 ? "" : "s",
      info.reused ? "read before" : fmt::format("read in {}", duration(seconds)),
      human_count(static_cast<double>(info.train_tokens())), human_count(static_cast<double>(info.validation_tokens())),
      text, describe_members(info) + context, nats);
}

/// A line for each reason.
std::string describe_left_out(const CorpusInfo& info) {
  std::string text;
  for (const LeftOutFiles& one : info.left_out) {
    text += hanging("", fmt::format("left out: {}, {}; {}: {}", counted(one.files, "file"), human_nbytes(one.nbytes),
                                    one.reason, shortened(one.largest)));
  }
  return text;
}

}  // namespace

std::string describe_files(const CorpusInfo& info) {
  return hanging("", fmt::format("{} taken", counted(info.files, "file"))) + describe_left_out(info);
}

ordered_json corpus_json(const CorpusInfo& info) {
  ordered_json left_out = ordered_json::array(), members = ordered_json::array();
  for (const LeftOutFiles& one : info.left_out)
    left_out.push_back(
        {{"reason", one.reason}, {"files", one.files}, {"nbytes", one.nbytes}, {"largest", one.largest}});
  for (const MixtureMember& one : info.members)
    members.push_back({{"source", one.source}, {"train_tokens", one.train_tokens}, {"sequences", one.sequences}});
  return {{"source", info.source},
          {"folder", info.folder.string()},
          {"hash", info.hash},
          {"reused", info.reused},
          {"files", info.files},
          {"token_nbytes", info.tokens.nbytes},
          {"train_tokens", info.train_tokens()},
          {"validation_tokens", info.validation_tokens()},
          {"train_unigram_entropy_nats", info.train_unigram_entropy_nats},
          {"validation_unigram_entropy_nats", info.validation_unigram_entropy_nats},
          {"left_out", left_out},
          {"mixture", members}};
}

std::string describe_corpus(const CorpusInfo& info, double seconds) {
  if (info.tokens.nbytes > 1) return describe_tokens(info, seconds);
  const std::string left_out = info.source == ZERO_TORCH_PREFIX ? "" : describe_left_out(info);
  const std::string packed = info.reused ? "found packed" : fmt::format("packed in {}", duration(seconds));
  const double nats = info.validation_unigram_entropy_nats;
  const std::string source = info.source == ZERO_TORCH_PREFIX
                                 ? fmt::format("Python sources of torch {}", libtorch_version())
                                 : short_path(info.source);
  return fmt::format(
      "data       {}: {} file{}; {}\n"
      "           {} to train on, {} to validate on; a token is a byte\n{}"
      "           to beat: {:.3f} nats = {:.3f} bits per byte, the unigram entropy:\n"
      "           the loss of knowing just how often each byte occurs\n{}",
      source, with_commas(info.files), info.files == 1 ? "" : "s", packed, human_nbytes(info.train_nbytes),
      human_nbytes(info.validation_nbytes), describe_members(info), nats, to_bits(nats), left_out);
}

}  // namespace zero::app
