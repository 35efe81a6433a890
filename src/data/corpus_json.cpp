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

struct Stored {
  CorpusInfo info;
  std::string fingerprint;
};

void check_size(const fs::path& path, std::int64_t wanted) {
  std::error_code error;
  const auto got = fs::file_size(path, error);
  if (error) throw IoError(fmt::format("{}: {}; pack the corpus again", path.string(), error.message()));
  if (static_cast<std::int64_t>(got) != wanted) {
    throw IoError(fmt::format("{}: got {} bytes, want {} as corpus.json says; pack the corpus again", path.string(),
                              got, wanted));
  }
}

Stored read_stored(const fs::path& folder) {
  const fs::path path = folder / kCorpusFile;
  std::string text;
  if (!read_file(path, text)) {
    throw IoError(fmt::format("{}: cannot be read; pack a corpus there first", path.string()));
  }
  Stored stored;
  CorpusInfo& info = stored.info;
  try {
    const auto json = ordered_json::parse(text);
    info.folder = folder;
    json.at("source").get_to(info.source);
    json.at("hash").get_to(info.hash);
    json.at("listing").get_to(stored.fingerprint);
    const auto& train = json.at("train");
    train.at("nbytes").get_to(info.train_nbytes);
    train.at("unigram_entropy_nats").get_to(info.train_unigram_entropy_nats);
    const auto& validation = json.at("validation");
    validation.at("nbytes").get_to(info.validation_nbytes);
    validation.at("unigram_entropy_nats").get_to(info.validation_unigram_entropy_nats);
    const auto& files = json.at("files");
    files.at("taken").get_to(info.files);
    for (const auto& one : files.at("left_out"))
      info.left_out.push_back(
          {one.at("reason"), one.at("files"), one.at("nbytes"), one.at("largest"), one.at("largest_nbytes")});
  } catch (const ordered_json::exception& error) {
    throw IoError(fmt::format("{}: damaged ({}); pack the corpus again", path.string(), error.what()));
  }
  check_size(folder / kTrainFile, info.train_nbytes);
  check_size(folder / kValidationFile, info.validation_nbytes);
  return stored;
}

ordered_json split_json(const char* file, std::int64_t nbytes, double entropy_nats) {
  return {{"file", file},
          {"nbytes", nbytes},
          {"unigram_entropy_nats", entropy_nats},
          {"unigram_entropy_bits", entropy_nats / std::numbers::ln2}};
}

}  // namespace

double entropy_nats(const Histogram& histogram) {
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

void write_corpus_json(const fs::path& folder, const CorpusInfo& info, const std::string& fingerprint) {
  auto left_out = ordered_json::array();
  for (const LeftOutFiles& one : info.left_out) {
    left_out.push_back({{"reason", one.reason},
                        {"files", one.files},
                        {"nbytes", one.nbytes},
                        {"largest", one.largest},
                        {"largest_nbytes", one.largest_nbytes}});
  }
  const ordered_json json = {
      {"source", info.source},
      {"hash", info.hash},
      {"listing", fingerprint},
      {"train", split_json(kTrainFile, info.train_nbytes, info.train_unigram_entropy_nats)},
      {"validation", split_json(kValidationFile, info.validation_nbytes, info.validation_unigram_entropy_nats)},
      {"files", {{"taken", info.files}, {"left_out", std::move(left_out)}}}};
  FileWriter writer(folder / kCorpusFile);
  writer.append(json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
  writer.finish();
}

CorpusInfo read_corpus_json(const fs::path& folder) { return read_stored(folder).info; }

std::optional<CorpusInfo> find_packed(const fs::path& folder, const std::string& fingerprint) {
  try {
    Stored stored = read_stored(folder);
    if (stored.fingerprint != fingerprint) return std::nullopt;
    stored.info.reused = true;
    return stored.info;
  } catch (const IoError&) {
    return std::nullopt;  // not there, or not complete: pack it
  }
}

}  // namespace zero::data
