#include "data/corpus_json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "data/files.h"
#include "zero/errors.h"

namespace zero::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

void check_size(const Part& part) {
  std::error_code error;
  const auto got = fs::file_size(part.path, error);
  if (error) throw IoError(fmt::format("{}: {}; pack the corpus again", part.path.string(), error.message()));
  if (static_cast<std::int64_t>(got) != part.skip_nbytes + part.nbytes) {
    throw IoError(fmt::format("{}: got {} bytes, want {} as corpus.json says; pack the corpus again",
                              part.path.string(), got, part.skip_nbytes + part.nbytes));
  }
}

std::vector<Part> parts_of(const ordered_json& split, const fs::path& folder, const char* file, std::int64_t nbytes) {
  if (!split.contains("parts")) return {{folder / file, 0, nbytes}};
  std::vector<Part> parts;
  for (const auto& one : split.at("parts"))
    parts.push_back(
        {one.at("file").get<std::string>(), one.at("skip_nbytes"), one.at("nbytes"), one.value("token_nbytes", 0)});
  return parts;
}

TokenInfo tokens_of(const ordered_json& json) {
  TokenInfo tokens;
  if (!json.contains("tokens")) return tokens;
  const auto& stored = json.at("tokens");
  stored.at("nbytes").get_to(tokens.nbytes);
  stored.at("largest").get_to(tokens.largest);
  stored.at("text_nbytes").get_to(tokens.text_nbytes);
  stored.at("pieces").get_to(tokens.pieces);
  stored.at("tokenizer").get_to(tokens.tokenizer);
  tokens.has_context = stored.value("has_context", false);
  return tokens;
}

ordered_json split_json(const char* file, std::int64_t nbytes, std::int64_t targets, double entropy_nats,
                        const std::vector<Part>& parts, const std::string& hash) {
  ordered_json json = {{"file", file},
                       {"nbytes", nbytes},
                       {"targets", targets},
                       {"unigram_entropy_nats", entropy_nats},
                       {"unigram_entropy_bits", entropy_nats / std::numbers::ln2}};
  if (!hash.empty()) json["hash"] = hash;
  for (const Part& part : parts) {
    ordered_json one = {{"file", part.path.string()}, {"skip_nbytes", part.skip_nbytes}, {"nbytes", part.nbytes}};
    if (part.token_nbytes > 0) one["token_nbytes"] = part.token_nbytes;
    json["parts"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

/// Token files are their owner's, and a mixture has none of its own.
bool is_intact(const StoredCorpus& stored) {
  const bool is_own = stored.parts.train.size() == 1 && stored.parts.train[0].path == stored.info.folder / kTrainFile;
  if (!is_own) return true;
  const auto is_as_packed = [](const Part& part, const std::string& hash) {
    const FileReader reader(part.path);
    FileHash here;
    std::string piece;
    constexpr std::int64_t kPiece = 4 << 20;
    for (std::int64_t from = 0; from < part.nbytes; from += kPiece) {
      if (!reader.read(from, std::min(kPiece, part.nbytes - from), piece)) return false;
      here.add(piece);
    }
    return here.text() == hash;
  };
  return is_as_packed(stored.parts.train[0], stored.parts.train_hash) &&
         is_as_packed(stored.parts.validation[0], stored.parts.validation_hash);
}

StoredCorpus read_corpus_json(const fs::path& folder) {
  const fs::path path = folder / kCorpusFile;
  std::string text;
  if (!read_file(path, text)) {
    throw IoError(fmt::format("{}: cannot be read; pack a corpus there first", path.string()));
  }
  StoredCorpus stored;
  CorpusInfo& info = stored.info;
  try {
    const auto json = ordered_json::parse(text);
    info.folder = folder;
    json.at("source").get_to(info.source);
    json.at("hash").get_to(info.hash);
    json.at("listing").get_to(stored.fingerprint);
    info.tokens = tokens_of(json);
    const auto& train = json.at("train");
    train.at("nbytes").get_to(info.train_nbytes);
    train.at("unigram_entropy_nats").get_to(info.train_unigram_entropy_nats);
    const auto& validation = json.at("validation");
    validation.at("nbytes").get_to(info.validation_nbytes);
    validation.at("unigram_entropy_nats").get_to(info.validation_unigram_entropy_nats);
    info.train_targets = train.value("targets", info.train_tokens());
    info.validation_targets = validation.value("targets", info.validation_tokens());
    stored.parts = {parts_of(train, folder, kTrainFile, info.train_nbytes),
                    parts_of(validation, folder, kValidationFile, info.validation_nbytes), train.value("hash", ""),
                    validation.value("hash", "")};
    for (const auto& one : json.value("mixture", ordered_json::array())) {
      info.members.push_back({one.at("source"), one.at("sequences"), one.at("train_tokens"),
                              one.at("validation_tokens"), one.at("folder"), one.at("hash")});
    }
    const auto& files = json.at("files");
    files.at("taken").get_to(info.files);
    for (const auto& one : files.at("left_out"))
      info.left_out.push_back(
          {one.at("reason"), one.at("files"), one.at("nbytes"), one.at("largest"), one.at("largest_nbytes")});
  } catch (const ordered_json::exception& error) {
    throw IoError(fmt::format("{}: damaged ({}); pack the corpus again", path.string(), error.what()));
  }
  for (const auto* parts : {&stored.parts.train, &stored.parts.validation})
    for (const Part& part : *parts) check_size(part);
  // What a mixture refers to may have been packed again since.
  for (const MixtureMember& one : info.members) {
    if (read_corpus_json(one.folder).info.hash != one.hash)
      throw IoError(fmt::format("{}: {} is another text by now; pack the mixture again", path.string(), one.source));
  }
  return stored;
}

double entropy_nats(std::span<const std::int64_t> histogram) {
  double total = 0;
  for (const std::int64_t count : histogram) total += static_cast<double>(count);
  double entropy = 0;
  for (const std::int64_t count : histogram) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / total;
    entropy -= p * std::log(p);
  }
  return entropy;
}

void write_corpus_json(const fs::path& folder, const CorpusInfo& info, const std::string& fingerprint,
                       const Parts& parts) {
  auto left_out = ordered_json::array();
  for (const LeftOutFiles& one : info.left_out) {
    left_out.push_back({{"reason", one.reason},
                        {"files", one.files},
                        {"nbytes", one.nbytes},
                        {"largest", one.largest},
                        {"largest_nbytes", one.largest_nbytes}});
  }
  ordered_json json = {
      {"source", info.source},
      {"hash", info.hash},
      {"listing", fingerprint},
      {"tokens",
       {{"nbytes", info.tokens.nbytes},
        {"largest", info.tokens.largest},
        {"text_nbytes", info.tokens.text_nbytes},
        {"pieces", info.tokens.pieces},
        {"tokenizer", info.tokens.tokenizer},
        {"has_context", info.tokens.has_context}}},
      {"train", split_json(kTrainFile, info.train_nbytes, info.train_targets, info.train_unigram_entropy_nats,
                           parts.train, parts.train_hash)},
      {"validation", split_json(kValidationFile, info.validation_nbytes, info.validation_targets,
                                info.validation_unigram_entropy_nats, parts.validation, parts.validation_hash)},
      {"files", {{"taken", info.files}, {"left_out", std::move(left_out)}}}};
  for (const MixtureMember& one : info.members) {
    json["mixture"].push_back({{"source", one.source},
                               {"sequences", one.sequences},
                               {"train_tokens", one.train_tokens},
                               {"validation_tokens", one.validation_tokens},
                               {"folder", one.folder},
                               {"hash", one.hash}});
  }
  FileWriter writer(folder / kCorpusFile);
  writer.append(json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
  writer.finish();
}

std::optional<CorpusInfo> find_packed(const fs::path& folder, const std::string& fingerprint) {
  try {
    StoredCorpus stored = read_corpus_json(folder);
    if (stored.fingerprint != fingerprint || !is_intact(stored)) return std::nullopt;
    stored.info.reused = true;
    return stored.info;
  } catch (const IoError&) {
    return std::nullopt;  // not there, or not complete: pack it
  }
}

}  // namespace zero::data
