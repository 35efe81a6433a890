// Promise: token files of others are read where they are, and what is wrong with them is said before training.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "support/errors.h"
#include "support/temporary_folder.h"
#include "zero/errors.h"
#include "zero/lm/data.h"

namespace zero::data_tokens_test {
namespace {

using testing::expect_said;
using testing::TemporaryFolder;
using Tokens = std::vector<std::int64_t>;

template <class T>
void write(const std::string& path, const Tokens& tokens, const std::string& header = "") {
  std::ofstream out(path, std::ios::binary);
  out << header;
  for (const std::int64_t token : tokens) {
    const T value = static_cast<T>(token);
    out.write(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

std::string header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::int32_t fields[256] = {magic, version, count};
  return {reinterpret_cast<const char*>(fields), sizeof fields};
}

Tokens count_from(std::int64_t first, std::int64_t count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens all_of(const Corpus& corpus) {
  Tokens tokens(static_cast<std::size_t>(corpus.size()));
  corpus.copy(0, tokens);
  return tokens;
}

class DataTokens : public ::testing::Test {
 protected:
  CorpusInfo pack() { return pack_corpus({.source = folder_.file("in"), .folder = folder_.file("out")}); }
  std::string in(const std::string& name) { return folder_.file("in/" + name); }
  void SetUp() override { std::filesystem::create_directories(folder_.file("in")); }

  TemporaryFolder folder_;
};

TEST_F(DataTokens, NanoGpt) {
  write<std::uint16_t>(in("train.bin"), count_from(65'000, 500));
  write<std::uint16_t>(in("val.bin"), {1, 1, 2, 2});
  const CorpusInfo info = pack();
  EXPECT_EQ(info.tokens, (TokenInfo{.nbytes = 2, .largest = 65'499, .text_nbytes = 0}));
  EXPECT_EQ(info.train_tokens(), 500);
  EXPECT_EQ(info.validation_tokens(), 4);
  EXPECT_DOUBLE_EQ(info.validation_unigram_entropy_nats, std::log(2.0));
  EXPECT_EQ(all_of(Corpus(info.folder, Split::kTrain)), count_from(65'000, 500));
  EXPECT_EQ(all_of(Corpus(info.folder, Split::kValidation)), (Tokens{1, 1, 2, 2}));
  EXPECT_TRUE(pack().reused);
  write<std::uint16_t>(in("train.bin"), count_from(64'000, 501));
  const CorpusInfo changed = pack();
  EXPECT_FALSE(changed.reused);
  EXPECT_NE(changed.hash, info.hash);
  EXPECT_FALSE(std::filesystem::exists(folder_.file("out/train.bin")));  // it is where it was
}

/// Tokens that are context have bit 31 set: they are read as tokens, and are no targets.
TEST_F(DataTokens, ContextIsReadAndNotLearnt) {
  constexpr std::int64_t kBit = std::int64_t{1} << 31;
  Tokens stored;
  for (std::int64_t i = 0; i < 400; ++i) stored.push_back(i % 50 | (i % 7 < 3 ? kBit : 0));
  write<std::uint32_t>(in("train.bin"), stored);
  write<std::uint32_t>(in("val.bin"), {1 | kBit, 1, 2 | kBit, 2, 2, 1, 9 | kBit});
  const auto describe = [&](int nbytes) {
    std::ofstream(in("tokens.json")) << R"({"token_nbytes": )" << nbytes
                                     << R"(, "validation_text_nbytes_per_token": 3, "has_context": true})";
  };
  describe(4);
  const CorpusInfo info = pack();
  EXPECT_TRUE(info.tokens.has_context);
  EXPECT_EQ(info.tokens.largest, 49);
  EXPECT_EQ(info.validation_targets, 4);
  EXPECT_EQ(info.train_targets, 400 - std::ranges::count_if(stored, [](std::int64_t token) { return token & kBit; }));
  EXPECT_DOUBLE_EQ(info.validation_unigram_entropy_nats, std::log(2.0));
  EXPECT_TRUE(pack().reused);
  EXPECT_EQ(pack().train_targets, info.train_targets);
  const Corpus train(info.folder, Split::kTrain);
  EXPECT_TRUE(train.has_context());
  const Tokens tokens = all_of(train);
  Tokens targets(400);
  train.copy_targets(0, targets);
  for (std::size_t i = 0; i < 400; ++i) {
    EXPECT_EQ(tokens[i], stored[i] & ~kBit);
    EXPECT_EQ(targets[i], stored[i] & kBit ? kNoTarget : stored[i]);
  }
  const SequenceSampler sampler(train, 10, 5);
  for (const std::int64_t batch : {0, 3, 31}) {
    Tokens in_batch(3 * 11), of_batch(3 * 10);
    sampler.fill(batch, 3, in_batch.data(), of_batch.data());
    std::int64_t counted = 0;
    for (std::size_t b = 0; b < 3; ++b) {
      const auto offset = static_cast<std::size_t>(sampler.offset_of(3 * batch + static_cast<std::int64_t>(b)));
      for (std::size_t t = 0; t < 10; ++t) {
        EXPECT_EQ(in_batch[b * 11 + t], tokens[offset + t]);
        EXPECT_EQ(of_batch[b * 10 + t], targets[offset + t + 1]);
        counted += of_batch[b * 10 + t] != kNoTarget;
      }
    }
    EXPECT_EQ(sampler.count_targets(batch, 3), counted);
  }
  const ValidationBatches validation(Corpus(info.folder, Split::kValidation), 3, 2);
  Tokens in_batch(2 * 4), of_batch(2 * 3);
  EXPECT_EQ(validation.fill(0, in_batch.data(), of_batch.data()), 4);
  EXPECT_EQ(of_batch, (Tokens{1, kNoTarget, 2, 2, 1, kNoTarget}));
  describe(2);
  expect_said([&] { pack(); }, "want 4, with context");
}

TEST_F(DataTokens, ShardsOfLlmC) {
  for (int shard = 0; shard < 3; ++shard) {
    write<std::uint16_t>(in("edu_train_00000" + std::to_string(shard) + ".bin"), count_from(100 * shard, 100),
                         header(20240520, 1, 100));
  }
  write<std::uint16_t>(in("edu_val_000000.bin"), count_from(7, 50), header(20240520, 1, 50));
  const CorpusInfo info = pack();
  EXPECT_EQ(info.files, 4);
  const Corpus train(info.folder, Split::kTrain);
  EXPECT_EQ(all_of(train), count_from(0, 300));
  for (const std::int64_t first : {0, 95, 99, 100, 199, 250}) {  // across shards
    Tokens some(50);
    train.copy(first, std::span(some).first(std::min<std::size_t>(50, static_cast<std::size_t>(300 - first))));
    EXPECT_EQ(some[0], first);
    EXPECT_EQ(some[49], first <= 250 ? first + 49 : 0);
  }
  // The same numbers in one file are the same corpus to a sampler.
  const SequenceSampler sampler(train, 13, 5);
  Tokens batch(14 * 4);
  sampler.fill(3, 4, batch.data());
  for (int b = 0; b < 4; ++b) EXPECT_EQ(batch[static_cast<std::size_t>(14 * b)], sampler.offset_of(12 + b));
}

TEST_F(DataTokens, FourBytes) {
  write<std::uint32_t>(in("a_train.bin"), {128'000, 5, 127'999}, header(20240801, 7, 3));
  write<std::uint32_t>(in("a_val.bin"), {70'000, 70'001}, header(20240801, 7, 2));
  const CorpusInfo info = pack();
  EXPECT_EQ(info.tokens.nbytes, 4);
  EXPECT_EQ(info.tokens.largest, 128'000);
  EXPECT_EQ(all_of(Corpus(info.folder, Split::kTrain)), (Tokens{128'000, 5, 127'999}));
}

TEST_F(DataTokens, OwnFilesSayMore) {
  write<std::uint16_t>(in("train.bin"), count_from(0, 30));
  write<std::uint16_t>(in("val.bin"), count_from(0, 30));
  std::ofstream(in("tokens.json"))
      << R"({"token_nbytes": 2, "validation_text_nbytes_per_token": 3.5, "tokenizer": "/x"})";
  std::ofstream(in("pieces.json")) << R"(["61", "c3a4", ""])";
  const CorpusInfo info = pack();
  EXPECT_EQ(info.tokens.text_nbytes, 3.5);
  EXPECT_EQ(info.tokens.tokenizer, "/x");
  EXPECT_EQ(token_pieces(info.tokens.pieces), (std::vector<std::string>{"a", "\xc3\xa4", ""}));
  EXPECT_EQ(pack().tokens, info.tokens);
  std::ofstream(in("pieces.json")) << "[1";
  expect_said([&] { token_pieces(info.tokens.pieces); }, "pieces.json: damaged");
  std::ofstream(in("tokens.json")) << "{}";
  expect_said([&] { pack(); }, "tokens.json: damaged");
}

TEST_F(DataTokens, DamagedFilesAreNamed) {
  write<std::uint16_t>(in("x_train_0.bin"), count_from(0, 100), header(20240520, 1, 100));
  expect_said([&] { pack(); }, "has token files to train on only");
  write<std::uint16_t>(in("x_val_0.bin"), count_from(0, 99), header(20240520, 1, 100));
  expect_said([&] { pack(); }, "x_val_0.bin: got 1222 bytes, want 1224 for the 100 tokens of its header");
  write<std::uint16_t>(in("x_val_0.bin"), count_from(0, 100), header(20240520, 2, 100));
  expect_said([&] { pack(); }, "version 2 of token files; want 1");
  std::filesystem::remove(in("x_val_0.bin"));
  write<std::uint16_t>(in("x.bin"), count_from(0, 100), header(20240520, 1, 100));
  expect_said([&] { pack(); }, "x.bin: is it to train on or to validate on?");
}

TEST_F(DataTokens, CutOffFilesAreNamed) {
  write<std::uint8_t>(in("train.bin"), count_from(0, 33));
  write<std::uint16_t>(in("val.bin"), count_from(0, 10));
  expect_said([&] { pack(); }, "train.bin: 33 bytes are no whole number of tokens of 2 bytes");
  write<std::uint16_t>(in("train.bin"), count_from(0, 33));
  const CorpusInfo info = pack();
  std::filesystem::resize_file(in("train.bin"), 64);
  expect_said([&] { Corpus(info.folder, Split::kTrain); }, "train.bin: got 64 bytes, want 66");
  write<std::uint32_t>(in("train.bin"), {1, 1 << 30});
  write<std::uint32_t>(in("val.bin"), {1, 2});
  std::ofstream(in("tokens.json")) << R"({"token_nbytes": 4, "validation_text_nbytes_per_token": 0})";
  expect_said([&] { pack(); }, "train.bin: a token is 1073741824");
}

TEST_F(DataTokens, OtherFoldersAreFoldersOfText) {
  std::ofstream(in("a.txt")) << std::string(300, 'x') + "\n" + std::string(300, 'y') + "\n";
  write<std::uint16_t>(in("weights.bin"), count_from(0, 10));
  EXPECT_EQ(pack().tokens, TokenInfo());
}

}  // namespace
}  // namespace zero::data_tokens_test
