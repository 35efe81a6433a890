// Packing: what is taken, where it goes, when it is reused, and what failures leave behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "data/listing.h"
#include "support/temporary_folder.h"
#include "zero/errors.h"
#include "zero/lm/data.h"

namespace zero::data_pack_test {
namespace {

namespace fs = std::filesystem;

class DataPack : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.source = root_ / "source";
    options_.folder = root_ / "out" / "packed";
    fs::create_directories(options_.source);
  }

  void write(const std::string& name, const std::string& text) const {
    const fs::path path = options_.source / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  /// `count` files of about `nbytes` bytes each.
  void write_many(int count, int nbytes) const {
    for (int i = 0; i < count; ++i) {
      std::string text = "# file " + std::to_string(i) + "\n";
      while (static_cast<int>(text.size()) < nbytes) text += "x = " + std::to_string(text.size() * (i + 1)) + "\n";
      write("d" + std::to_string(i % 3) + "/f" + std::to_string(i) + ".py", text);
    }
  }
  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  std::string split(const char* name) const { return read(options_.folder / name); }
  std::string error() const {
    try {
      pack_corpus(options_);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }
  /// Nothing but the finished folder may be left beside it.
  std::size_t entries_in_out() const {
    const fs::path out = options_.folder.parent_path();
    if (!fs::exists(out)) return 0;
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(out), fs::directory_iterator()));
  }

  const testing::TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
  CorpusOptions options_;
};

TEST_F(DataPack, WhatIsEvaluatedAsAWholeCountsAsOftenAsItIsThere) {
  write("a.py", "x = 1\n");
  write("b.py", "x = 1\n");
  write("c.py", "y = 2\n");
  EXPECT_EQ(pack_corpus(options_).files, 2);
  options_.validation_fraction = 1;
  const CorpusInfo all = pack_corpus(options_);
  EXPECT_EQ(all.files, 3);
  EXPECT_EQ(all.validation_nbytes, 21);
  EXPECT_TRUE(pack_corpus(options_).reused);
}

TEST_F(DataPack, TakesTextOnceAndCountsTheRest) {
  write_many(20, 400);
  write("copy_of_0.py", read(options_.source / "d0/f0.py"));
  write("zero_byte.py", std::string("a\0b", 3));
  write("latin1.py", "caf\xE9\n");
  write("overlong.py", "\xC0\x80");
  write("surrogate.py", "\xED\xA0\x80");
  write("empty.py", "");
  write("large.py", std::string((1 << 20) + 1, 'a'));
  write("other.json", "{}");
  write(".hidden.py", "hidden = 1");
  write(".git/x.py", "hidden = 1");
  write("utf8.txt", "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80\n");
  fs::create_symlink(options_.source / "d0/f0.py", options_.source / "link.py");
  fs::create_directory_symlink(options_.source, options_.source / "loop");
  const CorpusInfo info = pack_corpus(options_);
  EXPECT_FALSE(info.reused);
  EXPECT_EQ(info.files, 21);
  const std::map<std::string, std::pair<int, std::string>> left_out = {{"duplicate", {2, "d0/f0.py"}},
                                                                       {"binary (a zero byte)", {1, "zero_byte.py"}},
                                                                       {"not UTF-8 (Latin-1? iconv)", {3, "latin1.py"}},
                                                                       {"empty", {1, "empty.py"}},
                                                                       {"too large", {1, "large.py"}},
                                                                       {"another suffix", {1, "other.json"}},
                                                                       {"hidden", {1, ".hidden.py"}},
                                                                       {"hidden folder", {1, ".git"}},
                                                                       {"link to a folder", {1, "loop"}}};
  EXPECT_EQ(info.left_out.size(), left_out.size());
  for (const LeftOutFiles& one : info.left_out) {
    ASSERT_TRUE(left_out.contains(one.reason)) << one.reason;
    EXPECT_EQ(one.files, left_out.at(one.reason).first) << one.reason;
    EXPECT_EQ(one.largest, left_out.at(one.reason).second) << one.reason;
  }
  const auto again = pack_corpus(options_).left_out;
  EXPECT_EQ(again.size(), left_out.size());  // of a corpus that is found, too
  EXPECT_EQ(info.train_nbytes, static_cast<std::int64_t>(split("train.bin").size()));
  EXPECT_EQ(info.validation_nbytes, static_cast<std::int64_t>(split("val.bin").size()));
  const std::string all = split("val.bin") + split("train.bin");
  EXPECT_EQ(std::count(all.begin(), all.end(), '\0'), 21);
  EXPECT_EQ(all.find("hidden"), std::string::npos);
  EXPECT_NE(all.find("na\xC3\xAFve"), std::string::npos);
  EXPECT_EQ(entries_in_out(), 1u);
}

TEST_F(DataPack, SplitsWholeFilesByBytes) {
  write_many(60, 1000);
  const CorpusInfo info = pack_corpus(options_);
  const double part =
      static_cast<double>(info.validation_nbytes) / static_cast<double>(info.train_nbytes + info.validation_nbytes);
  EXPECT_NEAR(part, 0.05, 0.01);
  for (const char* name : {"train.bin", "val.bin"}) {
    const std::string text = split(name);
    EXPECT_EQ(text.back(), '\0');
    EXPECT_TRUE(text.starts_with("# file "));
  }
}

TEST_F(DataPack, OneFileIsCutAtALineEnd) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "line " + std::to_string(i) + "\n";
  write("one.dat", text);
  options_.source = options_.source / "one.dat";
  const CorpusInfo info = pack_corpus(options_);
  EXPECT_EQ(info.files, 1);
  EXPECT_EQ(split("train.bin") + split("val.bin"), text + std::string(1, '\0'));
  EXPECT_TRUE(split("val.bin").starts_with("line "));
  EXPECT_NEAR(static_cast<double>(info.validation_nbytes), 0.05 * static_cast<double>(text.size()), 20);
}

TEST_F(DataPack, ACutNeverSplitsACharacter) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "\xE2\x82\xAC";
  write("euro.txt", text);
  for (const double part : {0.1, 0.101, 0.103, 0.5}) {
    options_.validation_fraction = part;
    pack_corpus(options_);
    std::string train = split("train.bin");
    EXPECT_EQ(train.size() % 3, 0u) << part;
    EXPECT_GT(split("val.bin").size(), 1u);
  }
}

TEST_F(DataPack, LargeFilesAreTakenInPieces) {
  options_.max_file_nbytes = std::int64_t{1} << 40;
  std::string text;
  for (int i = 0; text.size() < (3u << 20); ++i) text += "line " + std::to_string(i) + " \xE2\x82\xAC\n";
  write("book.txt", text);
  write("copy.txt", text);
  write("one_line.txt", [] {
    std::string line;
    while (line.size() < (2u << 20)) line += "\xF0\x9F\x98\x80";
    return line;
  }());
  write("utf16.txt", std::string("\xFF\xFE"
                                 "a\0",
                                 4));
  const CorpusInfo info = pack_corpus(options_);
  EXPECT_EQ(info.files, 2);
  ASSERT_EQ(info.left_out.size(), 2u);
  EXPECT_EQ(info.left_out[0].reason, "duplicate");
  EXPECT_EQ(info.left_out[1].reason, "UTF-16 (want UTF-8: iconv)");
  // Every byte is there once, every piece is whole lines or whole characters, and none is a small rest.
  // The validation split is the end of the last one, as each is too large for it.
  std::string all = split("train.bin") + split("val.bin");
  std::size_t lines_nbytes = 0, one_line_nbytes = 0;
  while (!all.empty()) {
    const std::size_t end = all.find('\0');
    ASSERT_NE(end, std::string::npos);
    const std::string piece = all.substr(0, end);
    all.erase(0, end + 1);
    if (piece.find("line") != std::string::npos) {
      lines_nbytes += piece.size();
      EXPECT_NE(text.find(piece), std::string::npos);
      EXPECT_EQ(piece.back(), '\n');
    } else {
      one_line_nbytes += piece.size();
      EXPECT_TRUE(data::problem_with_text(piece).empty());
    }
  }
  EXPECT_EQ(lines_nbytes, text.size());
  EXPECT_EQ(one_line_nbytes, 2u << 20);
  EXPECT_NEAR(static_cast<double>(info.validation_nbytes), 0.05 * (5 << 20), 0.05 * (5 << 20));
}

TEST_F(DataPack, TheSeedDecidesTheOrder) {
  write_many(30, 300);
  const CorpusInfo first = pack_corpus(options_);
  const std::string train = split("train.bin");
  fs::remove_all(options_.folder);
  EXPECT_EQ(pack_corpus(options_).hash, first.hash);
  EXPECT_EQ(split("train.bin"), train);
  options_.seed = 99;
  const CorpusInfo other = pack_corpus(options_);
  EXPECT_FALSE(other.reused);
  EXPECT_NE(other.hash, first.hash);
  EXPECT_EQ(other.train_nbytes + other.validation_nbytes, first.train_nbytes + first.validation_nbytes);
  EXPECT_EQ(entries_in_out(), 1u) << "the old corpus was replaced";
}

TEST_F(DataPack, ReusesOnlyWhatIsUnchangedAndComplete) {
  write_many(10, 300);
  const CorpusInfo first = pack_corpus(options_);
  const CorpusInfo again = pack_corpus(options_);
  EXPECT_TRUE(again.reused);
  EXPECT_EQ(again.hash, first.hash);
  EXPECT_EQ(again.files, first.files);
  EXPECT_EQ(again.train_nbytes, first.train_nbytes);
  EXPECT_EQ(again.train_unigram_entropy_nats, first.train_unigram_entropy_nats);
  const auto repacked = [&] { return !pack_corpus(options_).reused; };
  EXPECT_FALSE(repacked());
  write("new.py", "new = 1\n");
  EXPECT_TRUE(repacked()) << "a new file";
  fs::last_write_time(options_.source / "new.py", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_TRUE(repacked()) << "a touched file";
  options_.validation_fraction = 0.2;
  EXPECT_TRUE(repacked()) << "other options";
  fs::resize_file(options_.folder / "val.bin", 1);
  EXPECT_TRUE(repacked()) << "a cut split";
  std::ofstream(options_.folder / "corpus.json") << "{";
  EXPECT_TRUE(repacked()) << "a damaged corpus.json";
  fs::remove(options_.folder / "train.bin");
  EXPECT_TRUE(repacked()) << "a missing split";
  EXPECT_TRUE(is_packed_well(options_.folder));
  std::fstream(options_.folder / "train.bin", std::ios::in | std::ios::out | std::ios::binary).put('~');
  EXPECT_FALSE(is_packed_well(options_.folder));
  EXPECT_TRUE(repacked()) << "a byte that is another one";
  EXPECT_FALSE(is_packed_well(options_.folder / "nowhere"));
  EXPECT_FALSE(repacked());
}

TEST_F(DataPack, FewFilesOfAnySizeGiveValidationItsPart) {
  const auto lines_of = [](const std::string& word, std::size_t nbytes) {
    std::string lines;
    for (int i = 0; lines.size() < nbytes; ++i) lines += word + " " + std::to_string(i) + "\n";
    return lines;
  };
  const std::vector<std::vector<std::size_t>> all_sizes = {
      {90'000, 2}, {20'000, 20'000, 300}, {300'000, 100, 2'000}, {300, 2'000, 300'000, 2'000}, {20'000, 1, 300}};
  for (const auto& sizes : all_sizes) {
    fs::remove_all(options_.source);
    fs::create_directories(options_.source);
    double total = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      const std::string lines = lines_of(name, sizes[i]);
      write(name + ".py", lines);
      total += static_cast<double>(lines.size() + 1);
    }
    for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
      options_.seed = seed;
      const CorpusInfo info = pack_corpus(options_);
      const auto validation = static_cast<double>(info.validation_nbytes);
      EXPECT_GT(validation, 0.024 * total) << sizes[0] << " " << sizes[1] << " " << seed;
      EXPECT_LT(validation, 0.105 * total) << sizes[0] << " " << sizes[1] << " " << seed;
    }
  }
}

TEST_F(DataPack, AllOfIt) {
  write("a.py", "x = 1\n");
  write("b.py", "y = 22\n");
  options_.validation_fraction = 1;
  const CorpusInfo info = pack_corpus(options_);
  EXPECT_EQ(info.train_nbytes, 0);
  EXPECT_EQ(info.validation_nbytes, 15);
  EXPECT_EQ(Corpus(options_.folder, Split::kTrain).size(), 0);
  EXPECT_EQ(Corpus(options_.folder, Split::kValidation).size(), 15);
  EXPECT_TRUE(pack_corpus(options_).reused);
}

TEST_F(DataPack, KeepsUpToABound) {
  write_many(40, 1000);
  options_.max_nbytes = 10'000;
  const CorpusInfo info = pack_corpus(options_);
  EXPECT_GE(info.train_nbytes + info.validation_nbytes, 10'000);
  EXPECT_LE(info.train_nbytes + info.validation_nbytes, 11'100);
}

TEST_F(DataPack, CorpusMapsWhatWasPacked) {
  write_many(20, 500);
  const CorpusInfo info = pack_corpus(options_);
  const Corpus train(options_.folder, Split::kTrain), validation(options_.folder, Split::kValidation);
  const std::string text = split("train.bin");
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(train.size()));
  train.copy(0, tokens);
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), bytes.begin(), bytes.end()));
  EXPECT_EQ(validation.size(), info.validation_nbytes);
  EXPECT_EQ(train.hash(), info.hash);
  EXPECT_NEAR(train.unigram_entropy_nats(), unigram_entropy_nats(bytes), 1e-12);
  EXPECT_GT(train.unigram_entropy_nats(), 1.0);
  const Corpus copy = train;
  fs::remove_all(options_.folder);
  copy.copy(0, std::span(tokens).first(1));
  EXPECT_EQ(tokens[0], bytes[0]) << "the mapping outlives the file";
  EXPECT_THROW(Corpus(options_.folder, Split::kTrain), IoError);
}

TEST_F(DataPack, CorpusJsonHasWhatPeopleLookFor) {
  write_many(20, 500);
  const CorpusInfo info = pack_corpus(options_);
  const auto json = nlohmann::json::parse(split("corpus.json"));
  EXPECT_EQ(json["source"], options_.source.string());
  EXPECT_EQ(json["hash"], info.hash);
  EXPECT_EQ(json["files"]["taken"], 20);
  EXPECT_EQ(json["train"]["nbytes"], info.train_nbytes);
  EXPECT_NEAR(json["train"]["unigram_entropy_bits"].get<double>(), info.train_unigram_entropy_nats / std::log(2.0),
              1e-12);
}

TEST_F(DataPack, Errors) {
  EXPECT_NE(error().find("no usable text: there is no file"), std::string::npos) << error();
  write("a.bin", "x");
  EXPECT_NE(error().find("1 file: another suffix (the largest: a.bin, 1 bytes)"), std::string::npos) << error();
  EXPECT_NE(error().find("that end in .py .txt .md .rst"), std::string::npos) << error();
  options_.suffixes = {""};
  EXPECT_EQ(error(), "") << "all suffixes";
  options_ = CorpusOptions{.source = root_ / "source", .folder = options_.folder};
  options_.source = root_ / "missing";
  EXPECT_NE(error().find("cannot find the corpus source: No such file"), std::string::npos);
  options_.source = root_ / "source";
  write("a.py", "x = 1\n");
  options_.validation_fraction = 1.5;
  EXPECT_NE(error().find("validation_fraction: got 1.5"), std::string::npos);
  options_.validation_fraction = 0.05;
  options_.min_file_nbytes = 10, options_.max_file_nbytes = 9;
  EXPECT_THROW(pack_corpus(options_), ConfigError);
  options_ = CorpusOptions{.source = root_ / "source", .folder = {}};
  EXPECT_THROW(pack_corpus(options_), ConfigError);
  EXPECT_THROW(pack_corpus({}), ConfigError);
}

TEST_F(DataPack, AFolderWithOtherThingsIsLeftAlone) {
  write_many(3, 100);
  fs::create_directories(options_.folder);
  EXPECT_EQ(error(), "") << "an empty folder is fine";
  fs::remove_all(options_.folder);
  fs::create_directories(options_.folder);
  std::ofstream(options_.folder / "thesis.tex") << "important";
  EXPECT_NE(error().find("exists and holds no packed corpus"), std::string::npos);
  EXPECT_EQ(read(options_.folder / "thesis.tex"), "important");
  options_.folder = root_ / "source" / "d0" / "f0.py" / "below_a_file";
  EXPECT_NE(error().find("f0.py"), std::string::npos);
  EXPECT_THROW(pack_corpus(options_), IoError);
}

TEST_F(DataPack, AFailedWriteLeavesTheOldCorpusAndNothingElse) {
  write_many(50, 1000);
  pack_corpus(options_);
  const std::string before = split("train.bin");
  options_.seed = 5;
  // In a child: a limit on the size of files stands for a full disk.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20'000, 20'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = error();
    ::_exit(message.find("train.bin: cannot write: File too large") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(split("train.bin"), before);
  EXPECT_EQ(entries_in_out(), 1u);
}

TEST_F(DataPack, ManyProcessesAtOnceAgree) {
  write_many(30, 800);
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    int wrong = 1;
    try {
      const CorpusInfo info = pack_corpus(options_);
      const Corpus train(options_.folder, Split::kTrain);
      wrong = train.size() == info.train_nbytes && train.hash() == info.hash ? 0 : 2;
    } catch (const std::exception&) {
    }
    ::_exit(wrong);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_TRUE(pack_corpus(options_).reused);
  EXPECT_EQ(entries_in_out(), 1u);
}

TEST(DataText, Utf8) {
  for (const char* good : {"a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(data::problem_with_text(good).empty());
  }
  for (const char* bad : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                          "\xF5\x80\x80\x80", "\xC2", "\xE2\x82", "a\xFFz"}) {
    EXPECT_FALSE(data::problem_with_text(bad).empty());
  }
}

}  // namespace
}  // namespace zero::data_pack_test
