// Sequences depend on seed and global index only: any number of ranks, any point of resumption.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "data/permutation.h"
#include "data/random.h"
#include "zero/errors.h"
#include "zero/lm/data.h"

namespace zero::data_sampler_test {
namespace {

/// Bytes that tell their position: any five in a row are unique for a while.
std::vector<std::int64_t> all_tokens(const Corpus& corpus) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(corpus.size()));
  corpus.copy(0, tokens);
  return tokens;
}

Corpus corpus_of(std::int64_t nbytes) {
  std::string text(static_cast<std::size_t>(nbytes), '\0');
  data::Random random(7);
  for (char& c : text) c = static_cast<char>(random.next());
  return Corpus(std::move(text));
}

TEST(DataPermutation, IsABijectionForEverySmallCount) {
  for (std::uint64_t count = 1; count <= 300; ++count) {
    const data::Permutation permutation(count, count * 17);
    std::vector<bool> hit(count, false);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t image = permutation(i);
      ASSERT_LT(image, count);
      ASSERT_FALSE(hit[image]);
      hit[image] = true;
    }
  }
}

TEST(DataPermutation, LooksRandom) {
  // Fixed points of a random permutation: one on average. Neighbours should not stay neighbours.
  const std::uint64_t count = 10'000;
  int fixed = 0, neighbours = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const data::Permutation permutation(count, seed);
    for (std::uint64_t i = 0; i < count; ++i) {
      fixed += permutation(i) == i;
      neighbours += i > 0 && permutation(i) == permutation(i - 1) + 1;
    }
  }
  EXPECT_LT(fixed, 60);
  EXPECT_LT(neighbours, 60);
  EXPECT_NE(data::Permutation(count, 1)(5), data::Permutation(count, 2)(5));
}

TEST(DataPermutation, LargeCountsStayInside) {
  for (const std::uint64_t count : {(std::uint64_t{1} << 40) + 3, std::uint64_t{1} << 62}) {
    const data::Permutation permutation(count, 9);
    std::set<std::uint64_t> images;
    for (std::uint64_t i = 0; i < 1000; ++i) images.insert(permutation(count - 1 - i));
    EXPECT_EQ(images.size(), 1000u);
    EXPECT_LT(*images.rbegin(), count);
  }
}

TEST(DataRandom, IsTheSameEverywhere) {
  // The published sequence of SplitMix64 for seed 1234567.
  data::Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317ull);
  EXPECT_EQ(random.next(), 3203168211198807973ull);
  EXPECT_EQ(random.next(), 9817491932198370423ull);
}

TEST(DataSampler, OneEpochVisitsEveryWindowOnce) {
  const Corpus corpus = corpus_of(1003);
  const SequenceSampler sampler(corpus, 10, 42);
  EXPECT_EQ(sampler.windows(), 100);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::int64_t> offsets;
    for (std::int64_t s = 0; s < 100; ++s) offsets.insert(sampler.offset_of(epoch * 100 + s));
    EXPECT_EQ(offsets.size(), 100u);
    EXPECT_EQ(*offsets.begin(), 0);
    EXPECT_EQ(*offsets.rbegin(), 990);
  }
}

TEST(DataSampler, EpochsAndSeedsDiffer) {
  const Corpus corpus = corpus_of(10'001);
  const SequenceSampler a(corpus, 10, 1), b(corpus, 10, 2);
  int same_epoch = 0, same_seed = 0;
  for (std::int64_t s = 0; s < 1000; ++s) {
    same_epoch += a.offset_of(s) == a.offset_of(s + 1000);
    same_seed += a.offset_of(s) == b.offset_of(s);
  }
  EXPECT_LT(same_epoch, 10);
  EXPECT_LT(same_seed, 10);
}

TEST(DataSampler, AnyNumberOfRanksSeesTheSameSequence) {
  const SequenceSampler sampler(corpus_of(5000), 16, 3);
  const std::int64_t micro = 2, length = 17, micro_batches = 24;
  std::vector<std::int64_t> expected(micro_batches * micro * length);
  for (std::int64_t i = 0; i < micro_batches; ++i) sampler.fill(i, micro, &expected[i * micro * length]);
  for (const std::int64_t ranks : {2, 3, 4}) {
    std::vector<std::int64_t> seen(expected.size());
    for (std::int64_t rank = ranks - 1; rank >= 0; --rank) {
      const SequenceSampler own(corpus_of(5000), 16, 3);
      for (std::int64_t j = 0; j < micro_batches / ranks; ++j) {
        own.fill(j * ranks + rank, micro, &seen[(j * ranks + rank) * micro * length]);
      }
    }
    EXPECT_EQ(seen, expected) << ranks;
  }
}

TEST(DataSampler, TheSplitIntoMicroBatchesDoesNotMatter) {
  const SequenceSampler sampler(corpus_of(5000), 16, 3);
  std::vector<std::int64_t> whole(12 * 17), parts(12 * 17);
  sampler.fill(1, 12, whole.data());
  for (std::int64_t i = 0; i < 6; ++i) sampler.fill(6 + i, 2, &parts[i * 2 * 17]);
  EXPECT_EQ(whole, parts);
}

TEST(DataSampler, TokensAreTheBytesAndTargetsAreShiftedByOne) {
  const Corpus corpus = corpus_of(500);
  const SequenceSampler sampler(corpus, 8, 0);
  std::vector<std::int64_t> tokens(3 * 9);
  sampler.fill(5, 3, tokens.data());
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t t = 0; t < 9; ++t) {
      EXPECT_EQ(tokens[b * 9 + t], all_tokens(corpus)[static_cast<std::size_t>(sampler.offset_of(15 + b) + t)]);
    }
  }
}

TEST(DataSampler, PositionsArePinned) {
  // From an independent implementation in Python. A change of these numbers changes every training run.
  const SequenceSampler sampler(corpus_of(1001), 10, 1234);
  std::vector<std::int64_t> first;
  for (std::int64_t s = 0; s < 6; ++s) first.push_back(sampler.offset_of(s) / 10);
  EXPECT_EQ(first, (std::vector<std::int64_t>{7, 77, 92, 46, 29, 21}));
}

TEST(DataSampler, Errors) {
  EXPECT_EQ(SequenceSampler(corpus_of(11), 10, 0).windows(), 1);
  try {
    SequenceSampler(corpus_of(10), 10, 0);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "memory: got 10 bytes, want at least 11 for 1 sequence(s) of 10 + 1 bytes; use more text or a "
              "smaller "
              "sequence length or batch");
  }
  EXPECT_THROW(SequenceSampler(Corpus(""), 1, 0), ConfigError);
  EXPECT_THROW(SequenceSampler(corpus_of(10), 0, 0), ConfigError);
  const SequenceSampler sampler(corpus_of(100), 10, 0);
  std::vector<std::int64_t> tokens(11);
  EXPECT_THROW(sampler.fill(-1, 1, tokens.data()), ConfigError);
  EXPECT_THROW(sampler.fill(0, 0, tokens.data()), ConfigError);
  EXPECT_THROW(sampler.fill(INT64_MAX, 2, tokens.data()), ConfigError);
  EXPECT_THROW(sampler.offset_of(-1), ConfigError);
  EXPECT_NO_THROW(sampler.offset_of(INT64_MAX));
}

TEST(DataValidation, FixedWindowsSpreadOverTheSplit) {
  const Corpus corpus = corpus_of(1001);
  const std::vector<std::int64_t> bytes = all_tokens(corpus);
  const ValidationBatches all(corpus, 10, 3);
  EXPECT_EQ(all.batches(), 33);
  const ValidationBatches some(corpus, 10, 2, 5);
  EXPECT_EQ(some.batches(), 5);
  std::vector<std::int64_t> tokens(2 * 11);
  for (std::int64_t i = 0; i < 5; ++i) {
    some.fill(i, tokens.data());
    for (std::int64_t b = 0; b < 2; ++b) {
      const std::int64_t offset = (i * 2 + b) * 100;  // every tenth window of a hundred
      EXPECT_TRUE(std::equal(tokens.begin() + b * 11, tokens.begin() + (b + 1) * 11, bytes.begin() + offset));
    }
  }
  EXPECT_THROW(some.fill(5, tokens.data()), ConfigError);
  EXPECT_THROW(some.fill(-1, tokens.data()), ConfigError);
  EXPECT_THROW(ValidationBatches(corpus, 10, 101), ConfigError);
  EXPECT_THROW(ValidationBatches(corpus, 10, 0), ConfigError);
  EXPECT_EQ(ValidationBatches(corpus, 10, 100).batches(), 1);
}

TEST(DataCorpus, UnigramEntropy) {
  EXPECT_EQ(Corpus("").unigram_entropy_nats(), 0);
  EXPECT_EQ(Corpus("aaaa").unigram_entropy_nats(), 0);
  EXPECT_DOUBLE_EQ(Corpus("abab").unigram_entropy_nats(), std::log(2.0));
  std::string every;
  for (int i = 0; i < 256; ++i) every += static_cast<char>(i);
  EXPECT_NEAR(Corpus(every).unigram_entropy_nats(), std::log(256.0), 1e-12);
}

}  // namespace
}  // namespace zero::data_sampler_test
