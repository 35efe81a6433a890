// Mixtures of corpora: shares, order, what does not fit together.
#include <gtest/gtest.h>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "support/temporary_folder.h"
#include "zero/errors.h"
#include "zero/lm/data.h"

namespace zero::data_mixture_test {
namespace {

namespace fs = std::filesystem;

class DataMixture : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.source = root_ / "mix.json";
    options_.folder = root_ / "packed";
    options_.validation_fraction = 0.2;
  }

  /// A corpus of `nbytes` letters, and its weight.
  void add(char letter, std::int64_t nbytes, double weight) {
    const std::string name(1, letter);
    std::ofstream(root_ / (name + ".txt"), std::ios::binary) << std::string(static_cast<std::size_t>(nbytes), letter);
    options_.mixture.push_back({root_ / (name + ".txt"), root_ / ("packed-" + name), weight});
  }
  /// A folder of tokens as zerotorch.tokenize writes it.
  void add_tokens(const std::string& name, int nbytes, std::int64_t token, std::int64_t count, double weight,
                  const std::string& more = "") {
    const fs::path folder = root_ / name;
    fs::create_directories(folder);
    for (const char* split : {"train.bin", "val.bin"}) {
      std::ofstream file(folder / split, std::ios::binary);
      for (std::int64_t i = 0; i < count; ++i) file.write(reinterpret_cast<const char*>(&token), nbytes);
    }
    std::ofstream(folder / "tokens.json")
        << R"({"format": "zerotorch tokens 1", "token_nbytes": )" << nbytes
        << R"(, "validation_text_nbytes_per_token": 0, "tokenizer": "tok")" << more << "}";
    options_.mixture.push_back({folder, root_ / ("packed-" + name), weight});
  }
  std::string error() const {
    try {
      pack_corpus(options_);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  const testing::TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
  CorpusOptions options_;
};

/// The letter of a sequence, which has only one: a sequence is of one corpus.
char letter_of(const SequenceSampler& sampler, std::int64_t sample) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(sampler.sequence_length() + 1));
  sampler.fill(sample, 1, tokens.data());
  std::set<std::int64_t> seen(tokens.begin(), tokens.end());
  seen.erase(0);  // ends a text
  EXPECT_EQ(seen.size(), 1u);
  return static_cast<char>(*seen.begin());
}

TEST_F(DataMixture, EveryThousandSequencesHaveTheirShares) {
  add('a', 4000, 5);
  add('b', 9000, 3);
  add('c', 300, 0.01);
  const CorpusInfo info = pack_corpus(options_);
  ASSERT_EQ(info.members.size(), 3u);
  EXPECT_EQ(info.members[0].sequences, 624);  // 624.2
  EXPECT_EQ(info.members[1].sequences, 375);  // 374.5
  EXPECT_EQ(info.members[2].sequences, 1);    // 1.2
  const SequenceSampler sampler(Corpus(info.folder, Split::kTrain), 10, 7);
  for (const std::int64_t block : {0, 1, 5, 1'000'000}) {
    std::map<char, int> count;
    for (std::int64_t s = 0; s < 1000; ++s) ++count[letter_of(sampler, block * 1000 + s)];
    EXPECT_EQ(count, (std::map<char, int>{{'a', 624}, {'b', 375}, {'c', 1}})) << block;
  }
  // Not one after the other.
  int changes = 0;
  for (std::int64_t s = 1; s < 1000; ++s) changes += letter_of(sampler, s) != letter_of(sampler, s - 1);
  EXPECT_GT(changes, 300);
}

TEST_F(DataMixture, EachCorpusIsGoneThroughEvenly) {
  add('a', 2501, 0.5);  // some 200 windows of 10 to train on
  add('b', 50'000, 0.5);
  const CorpusInfo info = pack_corpus(options_);
  const Corpus corpus(info.folder, Split::kTrain);
  const SequenceSampler sampler(corpus, 10, 1);
  const std::int64_t windows = (corpus.sections()[0].size - 1) / 10;
  std::map<std::int64_t, int> visits;
  for (std::int64_t s = 0; s < 4000; ++s) {
    const std::int64_t offset = sampler.offset_of(s);
    if (offset < corpus.sections()[0].size) ++visits[offset];
  }
  // 2,000 of them, each window as often as any other, but for the last time.
  EXPECT_EQ(static_cast<std::int64_t>(visits.size()), windows);
  for (const auto& [offset, count] : visits) {
    EXPECT_GE(count, 2000 / windows) << offset;
    EXPECT_LE(count, 2000 / windows + 1) << offset;
  }
}

TEST_F(DataMixture, OrderDependsOnSeedAndIndexOnly) {
  add('a', 9000, 1);
  add('b', 9000, 2);
  const CorpusInfo info = pack_corpus(options_);
  const SequenceSampler sampler(Corpus(info.folder, Split::kTrain), 10, 3), other(sampler.corpus(), 10, 4);
  std::vector<std::int64_t> whole(12 * 11), parts(12 * 11);
  sampler.fill(1, 12, whole.data());
  for (std::int64_t i = 0; i < 6; ++i) sampler.fill(6 + i, 2, &parts[static_cast<std::size_t>(i * 2 * 11)]);
  EXPECT_EQ(whole, parts);
  int same = 0;
  for (std::int64_t s = 0; s < 1000; ++s) same += sampler.offset_of(s) == other.offset_of(s);
  EXPECT_LT(same, 10);
}

TEST_F(DataMixture, PositionsArePinned) {
  add('a', 4000, 1);
  add('b', 4000, 3);
  const SequenceSampler sampler(Corpus(pack_corpus(options_).folder, Split::kTrain), 10, 1234);
  std::string letters;
  for (std::int64_t s = 0; s < 24; ++s) letters += letter_of(sampler, s);
  // From an independent implementation in Python. A change of these changes every training run on a mixture.
  EXPECT_EQ(letters, "bbabbbbababbabbbabbabbbb");
}

TEST_F(DataMixture, ValidationHasTheShares) {
  add('a', 50'000, 3);
  add('b', 5'000, 1);
  const Corpus corpus(pack_corpus(options_).folder, Split::kValidation);
  const auto count = [&](const ValidationBatches& batches, std::int64_t size) {
    std::map<char, int> found;
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(size * 11));
    std::set<std::int64_t> offsets;
    for (std::int64_t i = 0; i < batches.batches(); ++i) {
      batches.fill(i, tokens.data());
      for (std::int64_t b = 0; b < size; ++b) ++found[static_cast<char>(tokens[static_cast<std::size_t>(b * 11)])];
    }
    return found;
  };
  EXPECT_EQ(count(ValidationBatches(corpus, 10, 8, 5), 8), (std::map<char, int>{{'a', 30}, {'b', 10}}));
  // All there are, with these shares: b's windows, and three times as many of a.
  const std::int64_t windows = (corpus.sections()[1].size - 1) / 10;
  EXPECT_EQ(ValidationBatches::sequences_of(corpus, 10), 4 * windows);
  const ValidationBatches all(corpus, 10, 4);
  EXPECT_EQ(all.batches(), windows);
  EXPECT_EQ(count(all, 4),
            (std::map<char, int>{{'a', static_cast<int>(3 * windows)}, {'b', static_cast<int>(windows)}}));
}

TEST_F(DataMixture, IsFoundAgainAndKnowsItsTexts) {
  add('a', 4000, 1);
  add('b', 4000, 1);
  const CorpusInfo first = pack_corpus(options_);
  EXPECT_FALSE(first.reused);
  const CorpusInfo again = pack_corpus(options_);
  EXPECT_TRUE(again.reused);
  EXPECT_EQ(again.hash, first.hash);
  EXPECT_EQ(again.train_nbytes, first.train_nbytes);
  ASSERT_EQ(again.members.size(), 2u);
  EXPECT_EQ(again.members[1].source, first.members[1].source);
  options_.mixture[0].weight = 2;
  EXPECT_NE(pack_corpus(options_).hash, first.hash);
  options_.mixture[0].weight = 1;
  EXPECT_EQ(pack_corpus(options_).hash, first.hash);
  std::ofstream(root_ / "b.txt") << std::string(4000, 'x');
  // Somebody else has packed the other text meanwhile, of the same size.
  CorpusOptions one = options_;
  one.mixture.clear();
  one.source = options_.mixture[1].source;
  one.folder = options_.mixture[1].folder;
  pack_corpus(one);
  EXPECT_THROW(Corpus(options_.folder, Split::kTrain), IoError);
  EXPECT_NE(pack_corpus(options_).hash, first.hash);
  // What it refers to is looked at when it is opened.
  std::ofstream(root_ / "packed-a" / "train.bin") << "short";
  EXPECT_THROW(Corpus(options_.folder, Split::kTrain), IoError);
}

TEST_F(DataMixture, TokensOfTwoWidthsWithAndWithoutContext) {
  add_tokens("text", 2, 60'000, 2000, 1);
  add_tokens("talks", 4, (std::int64_t{1} << 31) | 69'999, 2000, 1, R"(, "has_context": true)");
  const CorpusInfo info = pack_corpus(options_);
  EXPECT_EQ(info.tokens.nbytes, 4);
  EXPECT_TRUE(info.tokens.has_context);
  EXPECT_EQ(info.tokens.largest, 69'999);
  EXPECT_EQ(info.train_tokens(), 4000);
  EXPECT_EQ(info.train_targets, 2000);
  const SequenceSampler sampler(Corpus(info.folder, Split::kTrain), 10, 1);
  std::vector<std::int64_t> tokens(11), targets(10);
  std::map<std::int64_t, int> learnt;
  for (std::int64_t s = 0; s < 1000; ++s) {
    sampler.fill(s, 1, tokens.data(), targets.data());
    ASSERT_EQ(std::set<std::int64_t>(tokens.begin(), tokens.end()).size(), 1u);
    ASSERT_EQ(std::set<std::int64_t>(targets.begin(), targets.end()).size(), 1u);
    EXPECT_EQ(targets[0], tokens[0] == 60'000 ? 60'000 : kNoTarget);
    EXPECT_EQ(sampler.count_targets(s, 1), tokens[0] == 60'000 ? 10 : 0);
    ++learnt[targets[0]];
  }
  EXPECT_EQ(learnt[60'000], 500);
}

TEST_F(DataMixture, Errors) {
  add('a', 4000, 1);
  add('b', 4000, 0);
  EXPECT_NE(error().find("b.txt: got the weight 0, want one above 0"), std::string::npos) << error();
  options_.mixture[1].weight = 1e-6;
  EXPECT_NE(error().find("less than one sequence in 1000"), std::string::npos) << error();
  options_.mixture[0].weight = options_.mixture[1].weight = 1e308;
  EXPECT_EQ(error(), "");
  EXPECT_EQ(Corpus(options_.folder, Split::kTrain).sections()[0].sequences, 500);
  options_.mixture[0].weight = options_.mixture[1].weight = 1;
  EXPECT_EQ(error(), "");
  add_tokens("tokens", 2, 7, 200, 1);
  EXPECT_NE(error().find("a mixture has tokens of one kind"), std::string::npos) << error();
  options_.mixture.pop_back();
  options_.mixture.push_back({root_ / "nowhere", root_ / "packed-n", 1});
  EXPECT_NE(error().find("nowhere"), std::string::npos) << error();
  options_.mixture.pop_back();
  add('c', 30, 1);
  EXPECT_EQ(error(), "");
  try {
    SequenceSampler(Corpus(options_.folder, Split::kTrain), 100, 0);
    FAIL();
  } catch (const ConfigError& failed) {
    EXPECT_NE(std::string(failed.what()).find("of the mixture: got 2"), std::string::npos) << failed.what();
  }
}

}  // namespace
}  // namespace zero::data_mixture_test
