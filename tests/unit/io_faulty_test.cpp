// FaultyFileSystem: every operation fails, or ends the process, once.
#include <cerrno>
#include <thread>

#include "unit/io_support.h"

namespace zero::io::io_faulty_test {
namespace {

constexpr std::uint64_t kMutations = 12;
constexpr std::uint64_t kReads = 7;

/// One of each kind of operation.
void scenario(FileSystem& files) {
  files.make_folders("/a");                     // 0
  const auto lock = files.try_lock("/a/lock");  // 1
  for (const char* name : {"/a/f", "/a/g"}) {
    const auto file = files.create(name);                // 2, 6
    file->wait(file->write(0, pattern(100, 1)));         // 3, 7
    if (std::string_view(name) == "/a/f") file->sync();  // 4
    file->close();                                       // 5, 8
  }
  files.exchange("/a/f", "/a/g");                                        // 9
  files.rename("/a/g", "/a/h");                                          // 10
  files.sync_folder("/a");                                               // 11
  if (files.kind("/a/h") != FileKind::kFile) throw IoError("no /a/h");   // read 0
  if (files.list("/a").size() != 3) throw IoError("wrong names in /a");  // read 1
  if (files.free_nbytes("/a") == 0) throw IoError("no space in /a");     // read 2
  const auto file = files.open("/a/h");                                  // read 3
  Bytes data(file->size());                                              // read 4
  file->read(0, data);                                                   // read 5
  file->read(50, std::span(data).subspan(50));                           // read 6
  file->close();
  if (data != pattern(100, 1)) throw IoError("wrong content in /a/h");
}

TEST(IoFaulty, CountsAndOtherwiseDoesNothing) {
  MemoryFileSystem memory;
  FaultyFileSystem files(memory);
  scenario(files);
  EXPECT_EQ(files.count(), kMutations);
  EXPECT_EQ(files.read_count(), kReads);
  EXPECT_FALSE(files.happened());
  EXPECT_EQ(memory.paths(), (std::vector<std::string>{"/a", "/a/f", "/a/h", "/a/lock"}));
  files.remove("/a/f");
  EXPECT_EQ(files.count(), kMutations + 1);
}

TEST(IoFaulty, EveryMutationFailsOnce) {
  const char* verbs[kMutations] = {"make the folder", "lock",  "create", "write",    "sync",   "close",
                                   "create",          "write", "close",  "exchange", "rename", "sync the folder"};
  struct Reason {
    int error;
    const char* text;
  };
  for (const Reason reason : {Reason{EIO, "Input/output error"}, Reason{ENOSPC, "No space left"},
                              Reason{EROFS, "Read-only file system"}, Reason{EACCES, "Permission denied"}}) {
    for (std::uint64_t k = 0; k < kMutations; ++k) {
      MemoryFileSystem memory;
      FaultyFileSystem files(memory);
      files.fail_mutation(k, reason.error);
      const std::string text = error_of([&] { scenario(files); });
      EXPECT_TRUE(mentions(text, std::string("cannot ") + verbs[k] + " '/a")) << k << ": " << text;
      EXPECT_TRUE(mentions(text, reason.text)) << k << ": " << text;
      EXPECT_TRUE(files.happened());
      remove_all(files, "/a");
      scenario(files);  // it was only once
    }
    MemoryFileSystem memory;
    FaultyFileSystem files(memory);
    files.fail_mutation(kMutations, reason.error);
    scenario(files);
    EXPECT_FALSE(files.happened());
  }
}

TEST(IoFaulty, EveryReadFailsOnce) {
  const char* verbs[kReads] = {"look up", "list", "ask for the free space of", "open", "look up", "read", "read"};
  for (std::uint64_t k = 0; k < kReads; ++k) {
    MemoryFileSystem memory;
    FaultyFileSystem files(memory);
    files.fail_read(k, EIO);
    const std::string text = error_of([&] { scenario(files); });
    EXPECT_TRUE(mentions(text, std::string("cannot ") + verbs[k] + " '/a")) << k << ": " << text;
    EXPECT_TRUE(mentions(text, "Input/output error")) << k << ": " << text;
    EXPECT_TRUE(files.happened());
    remove_all(files, "/a");
    scenario(files);
  }
}

TEST(IoFaulty, WhatFailsIsNotDone) {
  MemoryFileSystem memory;
  FaultyFileSystem files(memory);
  files.fail_mutation(1, EIO);
  const auto file = files.create("/f");
  const auto failed = file->write(0, pattern(10, 1));
  const auto good = file->write(10, pattern(10, 2));
  EXPECT_NE(error_of([&] { file->wait(good); }), "") << "any request that failed so far";
  EXPECT_TRUE(mentions(error_of([&] { file->wait(failed); }), "Input/output error"));
  files.fail_mutation(files.count(), ENOSPC);
  file->write(20, {});
  EXPECT_TRUE(mentions(error_of([&] { file->drain(); }), "Input/output error")) << "the first one";
  EXPECT_NE(error_of([&] { file->drain(); }), "");
  EXPECT_NE(error_of([&] { file->sync(); }), "");
  EXPECT_NE(error_of([&] { file->close(); }), "");
  EXPECT_EQ(error_of([&] { file->close(); }), "");
  Bytes expected(10);
  const Bytes second = pattern(10, 2);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(memory.bytes("/f"), expected);

  files.fail_mutation(files.count() + 1, EIO);
  const auto other = files.create("/g");
  EXPECT_TRUE(mentions(error_of([&] { other->sync(); }), "cannot sync '/g'"));
  EXPECT_TRUE(mentions(error_of([&] { other->sync(); }), "cannot sync '/g'")) << "stays failed";
}

TEST(IoFaulty, AfterTheStopThereIsNothing) {
  for (std::uint64_t k = 0; k < kMutations; ++k) {
    MemoryFileSystem memory;
    {
      FaultyFileSystem files(memory);
      files.stop_at_mutation(k);
      EXPECT_THROW(scenario(files), SimulatedCrash) << k;
      EXPECT_TRUE(files.happened());
      EXPECT_EQ(files.count(), k + 1);
    }
    // Exactly what came before has been done.
    const auto paths = memory.paths();
    EXPECT_EQ(paths.size(), k == 0 ? 0u : k == 1 ? 1u : k == 2 ? 2u : k <= 6 ? 3u : 4u) << k;
    EXPECT_EQ(memory.kind("/a/h"), k > 10 ? FileKind::kFile : FileKind::kNone);
    if (k > 1) {
      EXPECT_NE(memory.try_lock("/a/lock"), nullptr) << "dead processes hold no locks";
    }
  }
}

TEST(IoFaulty, OpenFilesStopToo) {
  MemoryFileSystem memory;
  FaultyFileSystem files(memory);
  write_file(files, "/old", pattern(10, 1));
  const auto reader = files.open("/old");
  const auto writer = files.create("/new");
  const auto request = writer->write(0, pattern(10, 1));
  files.stop_at_mutation(files.count());
  EXPECT_THROW(files.remove("/old"), SimulatedCrash);
  Bytes data(10);
  EXPECT_THROW(reader->read(0, data), SimulatedCrash);
  EXPECT_THROW(reader->size(), SimulatedCrash);
  EXPECT_THROW(reader->close(), SimulatedCrash);
  EXPECT_THROW(writer->write(0, data), SimulatedCrash);
  EXPECT_THROW(writer->wait(request), SimulatedCrash);
  EXPECT_THROW(writer->drain(), SimulatedCrash);
  EXPECT_THROW(writer->sync(), SimulatedCrash);
  EXPECT_THROW(writer->close(), SimulatedCrash);
  EXPECT_THROW(files.create("/f"), SimulatedCrash);
  EXPECT_THROW(files.open("/old"), SimulatedCrash);
  EXPECT_THROW(files.make_folders("/f"), SimulatedCrash);
  EXPECT_THROW(files.list("/"), SimulatedCrash);
  EXPECT_THROW(files.kind("/"), SimulatedCrash);
  EXPECT_THROW(files.rename("/old", "/f"), SimulatedCrash);
  EXPECT_THROW(files.exchange("/old", "/new"), SimulatedCrash);
  EXPECT_THROW(files.sync_folder("/"), SimulatedCrash);
  EXPECT_THROW(files.free_nbytes("/"), SimulatedCrash);
  EXPECT_THROW(files.try_lock("/lock"), SimulatedCrash);
  EXPECT_EQ(memory.paths(), (std::vector<std::string>{"/new", "/old"}));
}

TEST(IoFaulty, TheStopIsNoErrorOfOurs) {
  MemoryFileSystem memory;
  FaultyFileSystem files(memory);
  files.stop_at_mutation(0);
  try {
    files.make_folders("/a");
    FAIL();
  } catch (const Error&) {
    FAIL() << "would be handled";
  } catch (const SimulatedCrash&) {
  }
}

TEST(IoFaulty, RemoveAllTellsOfWhatItCannotRemove) {
  // 0: /a, which is not empty. 1: /a/b, 2: /a/f, 3: /a.
  for (std::uint64_t k = 0; k < 4; ++k) {
    MemoryFileSystem memory;
    memory.make_folders("/a/b");
    write_text(memory, "/a/f", "x");
    FaultyFileSystem files(memory);
    files.fail_mutation(k, EACCES);
    EXPECT_EQ(mentions(error_of([&] { remove_all(files, "/a"); }), "Permission denied"), k > 0) << k;
    remove_all(files, "/a");
    EXPECT_EQ(memory.paths(), std::vector<std::string>{});
  }
}

TEST(IoFaulty, CountsOverThreads) {
  MemoryFileSystem memory;
  FaultyFileSystem files(memory);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) write_file(files, "/" + std::to_string(t * 100 + i), {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(files.count(), 4u * 50 * 3);  // create, write, close
}

}  // namespace
}  // namespace zero::io::io_faulty_test
