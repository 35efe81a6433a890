#include "data/token_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "data/files.h"
#include "data/listing.h"
#include "zero/errors.h"

namespace zero::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTokensFile = "tokens.json";
constexpr std::int64_t kHeaderNbytes = 1024;     // of llm.c: 256 int32
constexpr std::int64_t kMostTokens = 1ll << 24;  // in a vocabulary

/// llm.c's header: what it is, its version, how many tokens.
struct Header {
  std::int32_t magic = 0, version = 0, count = 0;
};
struct HeaderKind {
  std::int32_t magic, version;
  int token_nbytes;
};
constexpr HeaderKind kHeaderKinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

std::int64_t size_of(const fs::path& path) {
  std::error_code error;
  const auto nbytes = fs::file_size(path, error);
  if (error) throw IoError(fmt::format("{}: {}", path.string(), error.message()));
  return static_cast<std::int64_t>(nbytes);
}

Header header_of(const fs::path& path) {
  std::string bytes;
  Header header;
  if (FileReader(path).read(0, sizeof header, bytes)) std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

Part whole(const fs::path& path, int token_nbytes) {
  const std::int64_t nbytes = size_of(path);
  if (nbytes % token_nbytes != 0) {
    throw IoError(
        fmt::format("{}: {} bytes are no whole number of tokens of {} bytes: the file is cut off, or of "
                    "another kind",
                    path.string(), nbytes, token_nbytes));
  }
  return {path, 0, nbytes};
}

/// As whole(), of so many tokens as the writer has stated (null: it has not).
Part counted(const fs::path& path, const json& stated, int token_nbytes) {
  const Part part = whole(path, token_nbytes);
  if (stated.is_null() || stated == part.nbytes / token_nbytes) return part;
  throw IoError(
      fmt::format("{}: got {} tokens, and tokens.json says {}: the file is cut off, or of another time; make "
                  "the tokens again",
                  path.string(), part.nbytes / token_nbytes, stated.dump()));
}

/// What `python -m zerotorch.tokenize` has written.
TokenFiles read_own(const fs::path& folder) {
  const fs::path path = folder / kTokensFile;
  std::string text;
  if (!read_file(path, text)) throw IoError(fmt::format("{}: cannot be read", path.string()));
  TokenFiles files;
  json stored;
  try {
    stored = json::parse(text);
    files.tokens.nbytes = stored.at("token_nbytes");
    files.tokens.text_nbytes = stored.at("validation_text_nbytes_per_token");
    if (fs::exists(folder / "pieces.json")) files.tokens.pieces = (folder / "pieces.json").string();
    files.tokens.tokenizer = stored.value("tokenizer", "");
    files.tokens.has_context = stored.value("has_context", false);
  } catch (const json::exception& error) {
    throw IoError(fmt::format("{}: damaged ({})", path.string(), error.what()));
  }
  if (files.tokens.nbytes != 4 && (files.tokens.nbytes != 2 || files.tokens.has_context)) {
    throw IoError(fmt::format("{}: token_nbytes is {}, want {}", path.string(), files.tokens.nbytes,
                              files.tokens.has_context ? "4, with context" : "2 or 4"));
  }
  if (!(files.tokens.text_nbytes >= 0)) {
    throw IoError(fmt::format("{}: validation_text_nbytes_per_token is {}, want 0 or more", path.string(),
                              files.tokens.text_nbytes));
  }
  files.parts = {{counted(folder / kTrainFile, stored.value("train_tokens", json()), files.tokens.nbytes)},
                 {counted(folder / kValidationFile, stored.value("validation_tokens", json()), files.tokens.nbytes)}};
  return files;
}

std::vector<fs::path> binary_files(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".bin" && entry.is_regular_file(error)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  return paths;
}

/// Shards with llm.c's header; nullopt when one has another.
std::optional<TokenFiles> read_shards(const std::vector<fs::path>& paths) {
  TokenFiles files;
  files.tokens.nbytes = 0;
  files.tokens.text_nbytes = 0;
  for (const fs::path& path : paths) {
    const Header header = header_of(path);
    const auto* const kind = std::ranges::find(kHeaderKinds, header.magic, &HeaderKind::magic);
    if (kind == std::end(kHeaderKinds)) return std::nullopt;
    if (header.version != kind->version || (files.tokens.nbytes != 0 && files.tokens.nbytes != kind->token_nbytes)) {
      throw IoError(fmt::format("{}: version {} of token files; want {}, and one kind in a folder", path.string(),
                                header.version, kind->version));
    }
    files.tokens.nbytes = kind->token_nbytes;
    const Part part{path, kHeaderNbytes, header.count * std::int64_t{kind->token_nbytes}};
    if (size_of(path) != part.skip_nbytes + part.nbytes) {
      throw IoError(fmt::format("{}: got {} bytes, want {} for the {} tokens of its header: the file is cut off",
                                path.string(), size_of(path), part.skip_nbytes + part.nbytes, header.count));
    }
    const std::string name = path.stem().string();
    const bool is_train = name.find("train") != std::string::npos, is_val = name.find("val") != std::string::npos;
    if (is_train == is_val) {
      throw IoError(
          fmt::format("{}: is it to train on or to validate on? want \"train\" or \"val\" in its name", path.string()));
    }
    (is_train ? files.parts.train : files.parts.validation).push_back(part);
  }
  return files;
}

class Scan {
 public:
  explicit Scan(const TokenInfo& tokens)
      : token_nbytes_(tokens.nbytes), has_context_(tokens.has_context), tokens_(kAtATime) {}

  struct Seen {
    double entropy_nats = 0;
    std::int64_t targets = 0;
  };
  /// Of a split.
  Seen of(const std::vector<Part>& parts, FileHash& hash) {
    std::vector<std::int64_t> counts;
    std::string bytes;
    for (const Part& part : parts) {
      const FileReader reader(part.path);
      for (std::int64_t done = 0; done < part.nbytes;) {
        const std::int64_t nbytes = std::min<std::int64_t>(kAtATime * token_nbytes_, part.nbytes - done);
        if (!reader.read(part.skip_nbytes + done, nbytes, bytes))
          throw IoError(fmt::format("{}: cannot be read", part.path.string()));
        hash.add(bytes);
        const std::span tokens(tokens_.data(), static_cast<std::size_t>(nbytes / token_nbytes_));
        widen({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, token_nbytes_, tokens);
        count(tokens, counts, part.path);
        done += nbytes;
      }
    }
    return {entropy_nats(counts), std::reduce(counts.begin(), counts.end())};
  }
  std::int64_t largest() const { return largest_; }

 private:
  static constexpr std::int64_t kAtATime = 1 << 18;

  void count(std::span<const std::int64_t> tokens, std::vector<std::int64_t>& counts, const fs::path& path) {
    for (std::int64_t token : tokens) {
      const bool counts_it = !has_context_ || !(token & kContextBit);
      if (has_context_) token &= ~kContextBit;
      if (token >= static_cast<std::int64_t>(counts.size())) {
        if (token >= kMostTokens) {
          throw IoError(fmt::format("{}: a token is {}: the file is not of tokens of {} bytes", path.string(), token,
                                    token_nbytes_));
        }
        counts.resize(static_cast<std::size_t>(token) + 1);
      }
      counts[static_cast<std::size_t>(token)] += counts_it ? 1 : 0;
    }
    largest_ = std::max(largest_, static_cast<std::int64_t>(counts.size()) - 1);
  }

  const int token_nbytes_;
  const bool has_context_;
  std::vector<std::int64_t> tokens_;
  std::int64_t largest_ = 0;
};

std::int64_t nbytes_of(const std::vector<Part>& parts) {
  std::int64_t nbytes = 0;
  for (const Part& part : parts) nbytes += part.nbytes;
  return nbytes;
}

}  // namespace

std::optional<TokenFiles> find_token_files(const fs::path& source) {
  std::error_code error;
  if (!fs::is_directory(source, error)) return std::nullopt;
  if (fs::exists(source / kTokensFile, error)) return read_own(source);
  const std::vector<fs::path> paths = binary_files(source);
  if (paths.empty() || fs::exists(source / kCorpusFile, error)) return std::nullopt;
  if (auto files = read_shards(paths)) {
    if (!files->parts.train.empty() && !files->parts.validation.empty()) return files;
    throw IoError(fmt::format("{}: has token files to {} on only; want \"train\" and \"val\" in their names",
                              source.string(), files->parts.train.empty() ? "validate" : "train"));
  }
  const bool is_nano_gpt = paths == std::vector{source / kTrainFile, source / kValidationFile};
  if (!is_nano_gpt) return std::nullopt;
  TokenFiles files;
  files.tokens.nbytes = 2;
  files.tokens.text_nbytes = 0;
  files.parts = {{whole(paths[0], 2)}, {whole(paths[1], 2)}};
  return files;
}

std::string fingerprint(const TokenFiles& files) {
  std::string text = fmt::format("tokens of {} bytes{}, {} of text, {} {}\n", files.tokens.nbytes,
                                 files.tokens.has_context ? " with context" : "", files.tokens.text_nbytes,
                                 files.tokens.pieces, files.tokens.tokenizer);
  for (const auto* parts : {&files.parts.train, &files.parts.validation}) {
    for (const Part& part : *parts) {
      std::error_code error;
      const auto time = fs::last_write_time(part.path, error).time_since_epoch().count();
      text += fmt::format("{} {} {} {}\n", part.path.string(), part.skip_nbytes, part.nbytes, time);
    }
    text += "\n";
  }
  return hash_of(text);
}

CorpusInfo scan(const TokenFiles& files) {
  CorpusInfo info;
  info.tokens = files.tokens;
  info.train_nbytes = nbytes_of(files.parts.train);
  info.validation_nbytes = nbytes_of(files.parts.validation);
  info.files = static_cast<std::int64_t>(files.parts.train.size() + files.parts.validation.size());
  FileHash hash;
  Scan all(files.tokens);
  const Scan::Seen validation = all.of(files.parts.validation, hash);
  const Scan::Seen train = all.of(files.parts.train, hash);
  info.validation_unigram_entropy_nats = validation.entropy_nats;
  info.train_unigram_entropy_nats = train.entropy_nats;
  info.validation_targets = validation.targets;
  info.train_targets = train.targets;
  info.tokens.largest = all.largest();
  info.hash = hash.text();
  return info;
}

void widen(std::span<const std::uint8_t> bytes, int nbytes, std::span<std::int64_t> tokens) {
  const auto all = [&]<class T>(T) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      T token;
      std::memcpy(&token, bytes.data() + i * sizeof token, sizeof token);
      tokens[i] = token;
    }
  };
  nbytes == 1 ? all(std::uint8_t()) : nbytes == 2 ? all(std::uint16_t()) : all(std::uint32_t());
}

}  // namespace zero::data

namespace zero {

bool holds_tokens(const std::filesystem::path& source) { return data::find_token_files(source).has_value(); }

std::vector<std::string> token_pieces(const std::string& path) {
  std::string text;
  if (!data::read_file(path, text)) throw IoError(fmt::format("{}: cannot be read", path));
  std::vector<std::string> pieces;
  try {
    for (const auto& hex : nlohmann::json::parse(text)) {
      const auto digits = hex.get<std::string>();
      std::string& piece = pieces.emplace_back();
      for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
        piece += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    }
  } catch (const std::exception& error) {
    throw IoError(fmt::format("{}: damaged ({})", path, error.what()));
  }
  return pieces;
}

}  // namespace zero
