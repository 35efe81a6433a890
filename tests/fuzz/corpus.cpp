#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "checkpoint/rank_file.h"
#include "checkpoint/safetensors.h"
#include "doubles/memory_files.h"
#include "fuzz/fuzz.h"
#include "support/checkpoint_room.h"
#include "zero/config.h"

namespace zero::fuzz {
namespace {

using namespace checkpoint;
using nlohmann::json;

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<TensorInfo> tensors() {
  auto tensors = testing::room_tensors(300);
  TensorInfo turned{"turned", kinds::kWeight, ElementType::kBF16, {3, 5}, {{}, {1, 0}}, ElementType::kBF16};
  TensorInfo scalar{"scale", kinds::kWeight, ElementType::kF32, {}, {}, ElementType::kF32, true};
  TensorInfo random{"rank_00000.cpu", kinds::kRandomState, ElementType::kU8, {40}, {}, ElementType::kU8};
  tensors.insert(tensors.end(), {turned, scalar, random});
  return tensors;
}

struct Checkpoint {
  Manifest manifest;
  std::vector<std::string> files;
  std::vector<std::string> notes;
};

Checkpoint make_checkpoint(const std::vector<TensorInfo>& tensors, int ranks) {
  Checkpoint made;
  Manifest& manifest = made.manifest;
  manifest.id = "0123456789abcdef0123456789abcdef";
  manifest.tag = "step2";
  manifest.created_unix_ns = 1'700'000'000'000'000'000;
  manifest.global_steps = 2;
  manifest.world_size = ranks;
  manifest.state = R"({"global_steps":2,"micro_batches":4,"seed":"7","learning_rate_override":null})";
  manifest.client_state = R"({"epoch":[1,2.5,"three"]})";
  for (const auto& info : tensors) manifest.tensors.push_back({info, {}});
  io::MemoryFileSystem files;
  io::AlignedBuffer ring(RankFile::ring_nbytes());
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::vector<std::byte>> values;
    std::vector<Piece> pieces;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::int64_t numel = tensors[t].numel(), begin = numel * rank / ranks, end = numel * (rank + 1) / ranks;
      values.push_back(testing::room_values(tensors[t], 2));
      pieces.push_back({t, begin, end - begin,
                        values.back().data() + static_cast<std::size_t>(begin) * element_nbytes(tensors[t].dtype)});
    }
    const RankFile file(rank, manifest.id, tensors, pieces);
    const RankPart part = file.write(files, "/", ring.data());
    manifest.files.push_back(part.file);
    for (const auto& [tensor, place] : part.places) {
      manifest.tensors[tensor].pieces.push_back(place);
      manifest.tensors[tensor].pieces.back().file = rank;
    }
    made.files.push_back(text_of(files.bytes("/" + part.file.name)));
    made.notes.push_back(to_text(part));
  }
  return made;
}

Corpus manifest_corpus() {
  const Checkpoint two = make_checkpoint(tensors(), 2);
  Corpus corpus;
  corpus.inputs = {to_text(two.manifest), to_text(make_checkpoint(tensors(), 1).manifest), to_text(Manifest()),
                   two.notes[0]};
  corpus.words = {"\"pieces\":",
                  "\"checksums\":",
                  "\"dim_order\":",
                  "\"boxes\":[[[0,1],[1,2]],",
                  "\"aliases\":",
                  "\"shape\":",
                  "\"BF16\"",
                  "\"F64\"",
                  "\"kind\":\"buffer\"",
                  "\"files\":",
                  "\"tensors\":",
                  "\"state\":",
                  "\"trainable\":true",
                  "\"../x\"",
                  "\"\\u0000\"",
                  "[]",
                  "{}",
                  "null",
                  "[[[[[[[[",
                  "\"name\":\"\"",
                  "\"version\":2",
                  "\"world_size\":"};
  return corpus;
}

Corpus safetensors_corpus() {
  const Checkpoint two = make_checkpoint(tensors(), 2);
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  header.entries = {{"a", ElementType::kF32, {2, 3}}, {"b", ElementType::kBool, {}}, {"c", ElementType::kI64, {0}}};
  const std::string small = make_safetensors_header(header, 8) + std::string(header.data_nbytes(), 'x');
  Corpus corpus;
  // Those that begin with the JSON: the fuzzer puts a length before it.
  corpus.inputs = {small, small.substr(8), two.files[0], two.files[1], R"({"__metadata__":{}})"};
  corpus.words = {"\"dtype\":",
                  "\"shape\":",
                  "\"data_offsets\":",
                  "\"__metadata__\":",
                  "\"F32\"",
                  "\"BF16\"",
                  "\"BOOL\"",
                  "[0,0]",
                  "[]",
                  "{}",
                  "null",
                  "[[[[[[[["};
  return corpus;
}

Corpus load_corpus() {
  Corpus corpus = manifest_corpus();
  corpus.inputs.clear();
  for (const int ranks : {1, 2}) {
    const Checkpoint made = make_checkpoint(tensors(), ranks);
    std::string input = to_text(made.manifest);
    for (const auto& file : made.files) input.append(kCut).append(file);
    if (ranks == 1) input.append(kCut);
    corpus.inputs.push_back(input.append(kCut).append("step2\n"));
  }
  corpus.words.emplace_back(kCut);
  corpus.words.emplace_back("rank_00001.safetensors");
  return corpus;
}

/// Two files with their index, as an export in parts makes them.
Corpus weights_corpus() {
  json index;
  std::string files;
  for (const char* name : {"one", "two"}) {
    SafetensorsHeader header;
    header.metadata = {{"format", "pt"}};
    header.entries = {{std::string(name) + ".weight", ElementType::kF32, {2, 3}},
                      {std::string(name) + ".bias", ElementType::kBF16, {3}}};
    files.append(kCut).append(make_safetensors_header(header, 8)).append(header.data_nbytes(), 'x');
    for (const auto& entry : header.entries) index["weight_map"][entry.name] = std::string(name) + ".safetensors";
  }
  index["metadata"]["total_size"] = 60;
  Corpus corpus = safetensors_corpus();
  corpus.inputs = {index.dump(1) + files, std::string(kCut) + corpus.inputs[0]};
  corpus.words.insert(corpus.words.end(), {"\"weight_map\":", "\"one.safetensors\"", "\"two.safetensors\"",
                                           "\"one.weight\"", std::string(kCut)});
  return corpus;
}

/// Every key of the schema at once, with its default.
std::string every_key() {
  json all = json::object();
  for (const KeyInfo& key : schema()) {
    if (key.default_value.empty()) continue;
    std::string pointer = "/" + std::string(key.path);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    const json value = json::parse(key.default_value, nullptr, /*allow_exceptions=*/false);
    try {
      if (!value.is_discarded() && !value.is_null()) all[json::json_pointer(pointer)] = value;
    } catch (const json::exception&) {  // below a key that is a plain value by default
    }
  }
  return all.dump(1);
}

Corpus config_corpus() {
  Corpus corpus;
  corpus.inputs = {"{}", every_key(), Config().to_json(),
                   R"(// comment
{
  "train_batch_size": 32, "gradient_accumulation_steps": 4, /* and another */
  "optimizer": {"type": "adam", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "torch_adam": true}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 10}},
  "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},},
  "fp16": {"enabled": false, "loss_scale": 0}, "zerotorch": {"store": "copying", "seed": 18446744073709551615},
})"};
  for (const KeyInfo& key : schema()) {
    const auto dot = key.path.rfind('.');
    corpus.words.push_back('"' + std::string(key.path.substr(dot == std::string_view::npos ? 0 : dot + 1)) + "\":");
  }
  std::sort(corpus.words.begin(), corpus.words.end());
  corpus.words.erase(std::unique(corpus.words.begin(), corpus.words.end()), corpus.words.end());
  for (const char* word : {"true", "false", "null", "\"auto\"", "{}", "[]", "//", "/*", "*/", "[[[[[[[["}) {
    corpus.words.emplace_back(word);
  }
  return corpus;
}

/// The pickles of the archives that make_pt_files.py wrote.
Corpus pickle_corpus() {
  Corpus corpus;
  for (const auto& entry : std::filesystem::directory_iterator(ZERO_SOURCE_DIR "/tests/data")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string archive{std::istreambuf_iterator<char>(file), {}};
    // Stored as it is, between the zip's own records.
    const auto begin = archive.find("\x80\x02"), end = archive.find("PK\x07\x08", begin);
    if (begin != std::string::npos && end != std::string::npos) {
      corpus.inputs.push_back(archive.substr(begin, end - begin));
    }
  }
  require(corpus.inputs.size() >= 4, "there are archives to begin with");
  std::sort(corpus.inputs.begin(), corpus.inputs.end());
  corpus.words = {"ctorch._utils\n_rebuild_tensor_v2\n",
                  "ccollections\nOrderedDict\n",
                  "ctorch\nBFloat16Storage\n",
                  "X\x07\0\0\0storage",
                  ")R",
                  "Q",
                  "t.",
                  "u.",
                  "\x8a\x08"};
  return corpus;
}

}  // namespace

Corpus corpus_of(std::string_view target) {
  if (target == "manifest") return manifest_corpus();
  if (target == "safetensors") return safetensors_corpus();
  if (target == "load") return load_corpus();
  if (target == "weights") return weights_corpus();
  if (target == "pickle") return pickle_corpus();
  return config_corpus();
}

}  // namespace zero::fuzz
