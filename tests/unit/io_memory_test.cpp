// What a power cut leaves: MemoryFileSystem::after_crash, and replace_text() in thousands of such states.
#include <algorithm>
#include <cerrno>
#include <set>

#include "unit/io_support.h"

namespace zero::io::io_memory_test {
namespace {

using Names = CrashPolicy::Names;

constexpr std::uint64_t kSeeds = 2000;

/// The text of a file, or "-" when there is none.
std::string text_of(MemoryFileSystem& files, const std::string& path) {
  return files.kind(path) == FileKind::kFile ? read_text(files, path, 1 << 30) : "-";
}

/// What `look` finds in many crash states.
std::set<std::string> found_in_crashes(const MemoryFileSystem& files, Names names,
                                       const std::function<std::string(MemoryFileSystem&)>& look) {
  std::set<std::string> found;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    found.insert(look(*files.after_crash(CrashPolicy::random(seed, names))));
  }
  return found;
}

void write_unsynced(FileSystem& files, const std::string& path, std::string_view text) {
  write_file(files, path, std::as_bytes(std::span(text.data(), text.size())));
}

class IoCrash : public ::testing::TestWithParam<Names> {
 protected:
  MemoryFileSystem files_;
  std::set<std::string> found(const std::function<std::string(MemoryFileSystem&)>& look) {
    return found_in_crashes(files_, GetParam(), look);
  }
  std::set<std::string> texts(const std::string& path) {
    return found([&](MemoryFileSystem& after) { return text_of(after, path); });
  }
};

INSTANTIATE_TEST_SUITE_P(Names, IoCrash, ::testing::Values(Names::kInOrder, Names::kAny), [](const auto& info) {
  return std::string(info.param == Names::kInOrder ? "in_order" : "any");
});

TEST_P(IoCrash, ANameThatWasNotSyncedMayVanish) {
  write_text(files_, "/f", "hello");  // content is synced, the name is not
  EXPECT_EQ(texts("/f"), (std::set<std::string>{"-", "hello"}));
  files_.sync_folder("/");
  EXPECT_EQ(texts("/f"), std::set<std::string>{"hello"});
  files_.remove("/f");
  EXPECT_EQ(texts("/f"), (std::set<std::string>{"-", "hello"}));
  files_.sync_folder("/");
  EXPECT_EQ(texts("/f"), std::set<std::string>{"-"});
}

TEST_P(IoCrash, ContentThatWasNotSyncedMayBeMissingUnderANameThatWas) {
  write_unsynced(files_, "/f", "hello");
  files_.sync_folder("/");
  const auto states = texts("/f");
  EXPECT_TRUE(states.contains(""));
  EXPECT_TRUE(states.contains("hello"));
  EXPECT_TRUE(states.contains(std::string(5, '\0'))) << "the size came first";
  EXPECT_EQ(states.size(), 3u) << "five bytes are in one sector";
}

TEST_P(IoCrash, RenamingWithoutSyncingShowsAPartialFile) {
  write_text(files_, "/f", "old");
  files_.sync_folder("/");
  write_unsynced(files_, "/f.tmp", "the new text");
  files_.rename("/f.tmp", "/f");
  files_.sync_folder("/");
  const auto states = texts("/f");
  EXPECT_TRUE(states.contains("")) << "the classic";
  EXPECT_TRUE(states.contains("the new text"));
  EXPECT_FALSE(states.contains("old"));
}

TEST_P(IoCrash, RenamingAfterSyncingNeverDoes) {
  write_text(files_, "/f", "old");
  files_.sync_folder("/");
  write_text(files_, "/f.tmp", "the new text");
  files_.rename("/f.tmp", "/f");
  EXPECT_EQ(texts("/f"), (std::set<std::string>{"old", "the new text"}));
  files_.sync_folder("/");
  EXPECT_EQ(texts("/f"), std::set<std::string>{"the new text"});
}

TEST_P(IoCrash, ReplaceTextIsAtomicAtEveryOperation) {
  const std::string before(3000, 'a'), after(5000, 'b');
  const auto prepare = [&](MemoryFileSystem& files) {
    files.make_folders("/c");
    files.sync_folder("/");
    write_text(files, "/c/latest", before);
    files.sync_folder("/c");
  };
  std::uint64_t operations = 0;
  {
    prepare(files_);
    FaultyFileSystem counting(files_);
    replace_text(counting, "/c/latest", after);
    operations = counting.count();
    EXPECT_EQ(texts("/c/latest"), std::set<std::string>{after}) << "done is done";
  }
  EXPECT_EQ(operations, 6u) << "create, write, sync, close, rename, sync of the folder";
  std::set<std::string> all;
  for (std::uint64_t k = 0; k < operations; ++k) {
    MemoryFileSystem files;
    prepare(files);
    FaultyFileSystem faulty(files);
    faulty.stop_at_mutation(k);
    EXPECT_THROW(replace_text(faulty, "/c/latest", after), SimulatedCrash);
    const auto states =
        found_in_crashes(files, GetParam(), [](MemoryFileSystem& left) { return text_of(left, "/c/latest"); });
    all.insert(states.begin(), states.end());
    // And it can be done again on what is left.
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      const auto left = files.after_crash(CrashPolicy::random(seed, GetParam()));
      replace_text(*left, "/c/latest", "third");
      EXPECT_EQ(text_of(*left, "/c/latest"), "third");
      EXPECT_EQ(left->list("/c"), std::vector<std::string>{"latest"});
    }
  }
  EXPECT_EQ(all, (std::set<std::string>{before, after}));
}

TEST_P(IoCrash, AFolderThatWasRenamedMayHaveUnsyncedContent) {
  files_.make_folders("/tmp");
  write_unsynced(files_, "/tmp/f", "hello");
  files_.rename("/tmp", "/step");
  files_.sync_folder("/");
  const auto look = [](MemoryFileSystem& after) { return text_of(after, "/step/f"); };
  auto states = found(look);
  EXPECT_TRUE(states.contains("-")) << "the name in the folder was not synced";
  EXPECT_TRUE(states.contains("")) << "its content was not synced";
  EXPECT_TRUE(states.contains("hello"));
  files_.sync_folder("/step");
  states = found(look);
  EXPECT_FALSE(states.contains("-"));
  EXPECT_TRUE(states.contains(""));
}

TEST_P(IoCrash, ExchangeIsBothOrNothing) {
  write_text(files_, "/a", "A");
  write_text(files_, "/b", "B");
  files_.sync_folder("/");
  files_.exchange("/a", "/b");
  const auto look = [](MemoryFileSystem& after) { return text_of(after, "/a") + text_of(after, "/b"); };
  EXPECT_EQ(found(look), (std::set<std::string>{"AB", "BA"}));
  files_.sync_folder("/");
  EXPECT_EQ(found(look), std::set<std::string>{"BA"});
}

TEST_P(IoCrash, RenamesAcrossFolders) {
  files_.make_folders("/x");
  files_.make_folders("/y");
  write_text(files_, "/x/f", "F");
  files_.sync_folder("/x");
  files_.sync_folder("/");
  files_.rename("/x/f", "/y/f");
  const auto look = [](MemoryFileSystem& after) { return text_of(after, "/x/f") + text_of(after, "/y/f"); };
  const auto states = found(look);
  if (GetParam() == Names::kInOrder) {
    EXPECT_EQ(states, (std::set<std::string>{"F-", "-F"}));
  } else {
    EXPECT_EQ(states, (std::set<std::string>{"F-", "-F", "FF", "--"})) << "all that POSIX allows";
  }
  files_.sync_folder("/y");
  EXPECT_EQ(found(look), std::set<std::string>{"-F"});
}

TEST_P(IoCrash, FoldersMovedIntoEachOtherStayATree) {
  files_.make_folders("/a");
  files_.make_folders("/b");
  files_.sync_folder("/");
  files_.rename("/a", "/b/a");
  files_.rename("/b/a", "/c");
  files_.rename("/b", "/c/b");
  found([](MemoryFileSystem& after) {
    const auto paths = after.paths();
    EXPECT_LE(paths.size(), 2u);
    return std::to_string(paths.size());
  });
}

TEST(IoCrashOrder, NamesComeInOrderOrNot) {
  MemoryFileSystem files;
  for (const char* name : {"/1", "/2", "/3"}) write_text(files, name, "x");
  const auto look = [](MemoryFileSystem& after) {
    std::string all;
    for (const std::string& name : after.list("/")) all += name;
    return all;
  };
  EXPECT_EQ(found_in_crashes(files, Names::kInOrder, look), (std::set<std::string>{"", "1", "12", "123"}));
  EXPECT_EQ(found_in_crashes(files, Names::kAny, look).size(), 8u);
}

TEST(IoCrashContent, WritesAreTornBetweenSectorsOnly) {
  MemoryFileSystem files;
  const std::string before(4000, 'a');
  const auto file = files.create("/f");
  files.sync_folder("/");
  file->write(0, std::as_bytes(std::span(before.data(), before.size())));
  file->sync();
  const std::string after(3000, 'b');
  file->write(700, std::as_bytes(std::span(after.data(), after.size())));
  bool holes = false, cut_off = false, whole = false, none = false;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::string text = text_of(*files.after_crash(CrashPolicy::random(seed)), "/f");
    ASSERT_EQ(text.size(), 4000u);
    std::string sectors;
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t end =
          i < 700 ? 700 : std::min<std::size_t>({(i / 512 + 1) * 512, i < 3700 ? 3700ul : 4000ul, 4000});
      ASSERT_EQ(text.substr(i, end - i), std::string(end - i, text[i])) << "torn in a sector at " << i;
      sectors += text[i];
      i = end;
    }
    ASSERT_EQ(sectors.front(), 'a');
    ASSERT_EQ(sectors.back(), 'a');
    sectors = sectors.substr(1, sectors.find_last_of('b') == std::string::npos ? 0 : sectors.find_last_of('b'));
    none |= sectors.empty();
    holes |= mentions(sectors, "a");
    whole |= sectors == "bbbbbbb";
    cut_off |= sectors == "bbb";
  }
  EXPECT_TRUE(holes && cut_off && whole && none) << holes << cut_off << whole << none;
}

TEST(IoCrashContent, AnySubsetOfTheWritesSurvives) {
  MemoryFileSystem files;
  const auto file = files.create("/f");
  files.sync_folder("/");
  for (const char c : {'x', 'y', 'z'}) {
    const std::byte byte{static_cast<unsigned char>(c)};
    file->write(static_cast<std::uint64_t>(c - 'x') * 512, std::span(&byte, 1));
  }
  std::set<std::string> found;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::string text = text_of(*files.after_crash(CrashPolicy::random(seed)), "/f");
    text.erase(std::remove(text.begin(), text.end(), '\0'), text.end());
    found.insert(text);
  }
  EXPECT_EQ(found, (std::set<std::string>{"", "x", "y", "z", "xy", "xz", "yz", "xyz"}));
  file->sync();
  EXPECT_EQ(text_of(*files.after_crash(CrashPolicy::random(1)), "/f").size(), 1025u);
}

TEST(IoCrashContent, WhatWasSyncedDoesNotComeBackOverWhatWasSyncedLater) {
  MemoryFileSystem files;
  const auto file = files.create("/f");
  files.sync_folder("/");
  for (const std::string_view text : {"one", "two"}) {
    file->wait(file->write(0, std::as_bytes(std::span(text.data(), text.size()))));
    file->sync();
  }
  const auto look = [](MemoryFileSystem& after) { return text_of(after, "/f"); };
  EXPECT_EQ(found_in_crashes(files, Names::kInOrder, look), std::set<std::string>{"two"});
}

TEST(IoCrashPolicies, NothingEverythingAndTheSameSeed) {
  MemoryFileSystem files;
  files.make_folders("/a/b");
  write_text(files, "/kept", "1");
  files.sync_folder("/");
  write_unsynced(files, "/lost", "2");
  files.rename("/kept", "/a/moved");
  EXPECT_EQ(files.after_crash(CrashPolicy::nothing_unsynced())->paths(), (std::vector<std::string>{"/a", "/kept"}));
  EXPECT_EQ(files.after_crash(CrashPolicy::everything())->paths(), files.paths());
  EXPECT_EQ(files.paths(), (std::vector<std::string>{"/a", "/a/b", "/a/moved", "/lost"}));
  EXPECT_EQ(text_of(*files.after_crash(CrashPolicy::everything()), "/lost"), "2");
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto one = files.after_crash(CrashPolicy::random(seed));
    const auto same = files.after_crash(CrashPolicy::random(seed));
    EXPECT_EQ(one->paths(), same->paths());
    EXPECT_EQ(text_of(*one, "/lost"), text_of(*same, "/lost"));
    // What was found after a power cut is durable.
    EXPECT_EQ(one->after_crash(CrashPolicy::nothing_unsynced())->paths(), one->paths());
  }
}

TEST(IoCrashPolicies, ParentsOfMadeFoldersAreDurable) {
  MemoryFileSystem files;
  files.make_folders("/a/b/c");
  auto after = files.after_crash(CrashPolicy::nothing_unsynced());
  EXPECT_EQ(after->paths(), (std::vector<std::string>{"/a", "/a/b"}));
  files.sync_folder("/a/b");
  after = files.after_crash(CrashPolicy::nothing_unsynced());
  EXPECT_EQ(after->paths(), (std::vector<std::string>{"/a", "/a/b", "/a/b/c"}));
}

TEST(IoCrashPolicies, LocksAreGoneAndTheOldFilesGoOn) {
  MemoryFileSystem files;
  const auto lock = files.try_lock("/lock");
  files.sync_folder("/");
  const auto file = files.create("/f");
  const auto after = files.after_crash(CrashPolicy::everything());
  EXPECT_NE(after->try_lock("/lock"), nullptr);
  EXPECT_EQ(files.try_lock("/lock"), nullptr);
  file->write(0, pattern(10, 1));
  file->close();
  EXPECT_EQ(files.bytes("/f"), pattern(10, 1));
  EXPECT_EQ(after->bytes("/f"), Bytes{});
}

TEST(IoMemory, BytesCanBeChanged) {
  MemoryFileSystem files;
  write_file(files, "/f", pattern(10, 1));
  files.sync_folder("/");
  Bytes bytes = files.bytes("/f");
  EXPECT_EQ(bytes, pattern(10, 1));
  bytes[3] ^= std::byte{1};
  files.set_bytes("/f", bytes);
  EXPECT_EQ(read_file(files, "/f"), bytes);
  EXPECT_EQ(files.after_crash(CrashPolicy::nothing_unsynced())->bytes("/f"), bytes);
  EXPECT_TRUE(mentions(error_of([&] { files.bytes("/no"); }), "/no"));
  EXPECT_TRUE(mentions(error_of([&] { files.set_bytes("/no", {}); }), "/no"));
}

TEST(IoMemory, AFullDisk) {
  MemoryFileSystem files;
  files.set_free_nbytes(1000);
  write_file(files, "/f", pattern(600, 1));
  EXPECT_EQ(files.free_nbytes("/"), 400u);
  {
    const auto file = files.create("/g");
    const auto request = file->write(0, pattern(401, 2));
    const std::string text = error_of([&] { file->wait(request); });
    EXPECT_TRUE(mentions(text, "cannot write '/g': No space left on device")) << text;
    EXPECT_EQ(error_of([&] { file->sync(); }), text);
    EXPECT_EQ(error_of([&] { file->close(); }), text);
  }
  EXPECT_EQ(files.free_nbytes("/"), 0u) << "what fits was written";
  {
    const auto reader = files.open("/f");
    files.remove("/f");
    EXPECT_EQ(files.free_nbytes("/"), 0u) << "somebody is still reading it";
  }
  EXPECT_EQ(files.free_nbytes("/"), 600u);
  const auto file = files.create("/h");
  file->write(0, pattern(600, 3));
  file->write(100, pattern(500, 4));  // takes no room
  file->close();
  EXPECT_EQ(files.free_nbytes("/"), 0u);
  files.make_folders("/folder");
  files.rename("/g", "/h");  // /h goes
  EXPECT_EQ(files.free_nbytes("/"), 600u);
  write_file(files, "/folder/i", pattern(600, 5));
  files.exchange("/h", "/folder/i");
  EXPECT_EQ(files.free_nbytes("/"), 0u);
  remove_all(files, "/folder");
  EXPECT_EQ(files.free_nbytes("/"), 400u);
}

}  // namespace
}  // namespace zero::io::io_memory_test
