// One suite for every file system: what io/file_system.h promises.
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <thread>

#include "io/aligned_buffer.h"
#include "io/io_error.h"
#include "unit/io_support.h"

// Asked by the thread sanitizer, if there is one. liburing maps its rings by raw system calls: a new ring
// where another thread's old one was looks like a race to it.
extern "C" const char* __tsan_default_suppressions() { return "race:io_uring_*\n"; }

namespace zero::io::io_conformance_test {
namespace {

/// A file system and a folder in it to work in.
struct Place {
  std::unique_ptr<TestFolder> folder;
  std::unique_ptr<MemoryFileSystem> memory;
  std::unique_ptr<FileSystem> files;
  std::string root;
};

PosixOptions with_threads(int threads) {
  PosixOptions options;
  options.threads = threads;
  return options;
}

Place make_place(const std::string& name) {
  Place place;
  if (name == "memory" || name == "faulty") {
    place.root = "/work/here";
    auto memory = std::make_unique<MemoryFileSystem>();
    memory->make_folders(place.root);
    if (name == "memory") {
      place.files = std::move(memory);
    } else {
      place.memory = std::move(memory);
      place.files = std::make_unique<FaultyFileSystem>(*place.memory);
    }
    return place;
  }
  const bool in_memory_disk = name.ends_with("_tmpfs");
  if (in_memory_disk && !std::filesystem::is_directory("/dev/shm")) return place;
  place.folder = std::make_unique<TestFolder>(in_memory_disk ? "/dev/shm" : ::testing::TempDir());
  place.root = place.folder->path();
  if (name.starts_with("uring")) {
    place.files = make_uring_files();
  } else {
    place.files = std::make_unique<PosixFileSystem>(with_threads(name == "posix_one_thread" ? 0 : 4));
  }
  return place;
}

class IoConformance : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    place_ = make_place(GetParam());
    if (!place_.files) GTEST_SKIP() << "this machine has no " << GetParam();
  }
  FileSystem& files() { return *place_.files; }
  std::string path(std::string_view name) { return join(place_.root, name); }

 private:
  Place place_;
};

INSTANTIATE_TEST_SUITE_P(All, IoConformance,
                         ::testing::Values("posix", "posix_one_thread", "posix_tmpfs", "uring", "uring_tmpfs", "memory",
                                           "faulty"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(IoConformance, EverySizeAtEveryOffset) {
  AlignedBuffer out(4 << 20), in(4 << 20);
  int number = 0;
  for (const std::size_t nbytes :
       {0ul, 1ul, 511ul, 512ul, 4095ul, 4096ul, 4097ul, 12'288ul, 65'537ul, (1ul << 20) + 3, 3ul << 20}) {
    for (const std::uint64_t offset : {0ul, 1ul, 512ul, 4095ul, 4096ul, 8292ul}) {
      for (const std::size_t shift : {0ul, 1ul, 100ul}) {  // of the memory; 100 is how 8292 lies in its page
        const auto data = out.span().subspan(shift, nbytes);
        fill(data, ++number);
        const std::string name = path("f" + std::to_string(number));
        const auto file = files().create(name);
        const auto request = file->write(offset, data);
        file->wait(request);
        EXPECT_EQ(file->size(), nbytes == 0 ? 0 : offset + nbytes);
        file->close();

        const auto again = files().open(name);
        const std::size_t total = again->size();
        const auto back = in.span().subspan((shift * 7) % 200, total);
        again->wait(again->read(0, back));
        ASSERT_TRUE(std::all_of(back.begin(), back.begin() + static_cast<long>(std::min<std::size_t>(offset, total)),
                                [](std::byte b) { return b == std::byte{0}; }))
            << nbytes << " at " << offset;
        if (nbytes > 0) {
          ASSERT_EQ(std::memcmp(back.data() + offset, data.data(), nbytes), 0) << nbytes << " at " << offset;
          const std::size_t part = nbytes / 2;
          std::memset(in.data(), 0, nbytes);
          again->wait(again->read(offset + nbytes - part, in.span().first(part)));
          ASSERT_EQ(std::memcmp(in.data(), data.data() + nbytes - part, part), 0) << nbytes << " at " << offset;
        }
        files().remove(name);
      }
    }
  }
}

TEST_P(IoConformance, ScratchFilesHaveNoNameAndKeepWhatIsWritten) {
  constexpr std::size_t kPages = 40, kPage = 4096;
  AlignedBuffer out(kPages * kPage), in(kPages * kPage);
  fill(out.span(), 1);
  for (const auto& [block_nbytes, depth] : {std::pair{kPage, 1u}, {3 * kPage, 4u}, {std::size_t{1} << 20, 32u}}) {
    const auto file = files().create_scratch(path(""), {block_nbytes, depth});
    EXPECT_EQ(files().list(path("")), std::vector<std::string>{});
    file->use_memory(in.span());
    file->reserve(kPages * kPage + 100);
    std::vector<File::Request> requests;
    for (std::size_t page = 0; page < kPages; page += 10)
      requests.push_back(file->write(page * kPage, out.span().subspan(page * kPage, 10 * kPage)));
    for (const auto request : requests) {
      file->wait(request);
      EXPECT_TRUE(file->done(request));
    }
    const auto all = file->read(0, in.span());
    const auto part = file->read(5 * kPage, out.span().first(0));
    while (!file->done(all) || !file->done(part)) std::this_thread::yield();
    file->drain();
    EXPECT_EQ(std::memcmp(in.data(), out.data(), in.nbytes()), 0);
    std::array<std::byte, 100> never{std::byte{1}};
    file->wait(file->read(kPages * kPage, never));
    EXPECT_EQ(never, (std::array<std::byte, 100>{}));
    EXPECT_NE(file->description(), "");
    file->close();
  }
  EXPECT_EQ(files().list(path("")), std::vector<std::string>{});
}

TEST_P(IoConformance, ScratchInAFolderThatIsNotThere) {
  EXPECT_TRUE(mentions(error_of([&] { files().create_scratch(path("missing"), {}); }), "missing"));
}

TEST_P(IoConformance, ManyQueuedRequestsInAnyOrder) {
  constexpr std::size_t kCount = 300;
  std::mt19937_64 random(7);
  std::vector<std::size_t> begin = {0};
  for (std::size_t i = 0; i < kCount; ++i) {
    begin.push_back(begin.back() + (i % 3 == 0 ? 4096 * (1 + random() % 8) : 1 + random() % 9000));
  }
  AlignedBuffer out(begin.back()), in(begin.back());
  fill(out.span(), 1);
  std::vector<std::size_t> order(kCount);
  std::iota(order.begin(), order.end(), 0);

  const auto file = files().create(path("f"));
  std::vector<File::Request> requests(kCount);
  std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t i : order) {
    requests[i] = file->write(begin[i], out.span().subspan(begin[i], begin[i + 1] - begin[i]));
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t i : order) file->wait(requests[i]);
  EXPECT_EQ(file->size(), begin.back());

  for (const std::size_t i : order) {
    requests[i] = file->read(begin[i], in.span().subspan(begin[i], begin[i + 1] - begin[i]));
  }
  // What was waited for is there, whatever the others are doing.
  for (std::size_t i = 0; i < 50; ++i) {
    file->wait(requests[i]);
    ASSERT_EQ(std::memcmp(in.data() + begin[i], out.data() + begin[i], begin[i + 1] - begin[i]), 0) << i;
  }
  file->drain();
  EXPECT_EQ(std::memcmp(in.data(), out.data(), begin.back()), 0);
  file->sync();
  file->close();
}

TEST_P(IoConformance, LargeFileInMixedPieces) {
  constexpr std::size_t kTotal = (72ul << 20) + 12'345;
  AlignedBuffer out(kTotal, AlignedBuffer::Pages::kHuge);
  std::mt19937_64 random(3);
  for (std::size_t i = 0; i + 8 <= kTotal; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(out.data() + i, &word, 8);
  }
  const auto piece = [&](std::size_t done) {
    const std::size_t wanted = random() % 3 == 0 ? 1 + random() % (5 << 20) : 4096 * (1 + random() % 1000);
    return std::min(wanted, kTotal - done);
  };
  {
    const auto file = files().create(path("large"));
    for (std::size_t done = 0; done < kTotal;) {
      const std::size_t nbytes = piece(done);
      file->write(done, out.span().subspan(done, nbytes));
      done += nbytes;
    }
    file->sync();
    file->close();
  }
  const auto file = files().open(path("large"));
  ASSERT_EQ(file->size(), kTotal);
  AlignedBuffer in(kTotal + 1);
  const std::size_t shift = 1;  // first half aligned with the file, second not
  for (std::size_t done = 0; done < kTotal;) {
    const std::size_t nbytes = piece(done);
    file->read(done, in.span().subspan(done + (done < kTotal / 2 ? 0 : shift), nbytes));
    // A piece across the change would be overwritten by the next one's first byte.
    if (done < kTotal / 2 && done + nbytes >= kTotal / 2) {
      file->drain();
      ASSERT_EQ(std::memcmp(in.data(), out.data(), done + nbytes), 0);
      file->read(done, in.span().subspan(done + shift, nbytes));
    }
    done += nbytes;
  }
  file->close();
  EXPECT_EQ(std::memcmp(in.data() + kTotal / 2 + shift, out.data() + kTotal / 2, kTotal - kTotal / 2), 0);
}

TEST_P(IoConformance, OverwritingKeepsTheRest) {
  Bytes expected = pattern(50'000, 1);
  const auto file = files().create(path("f"));
  file->wait(file->write(0, expected));
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    const std::size_t nbytes = random() % 2 == 0 ? 4096 : 1 + random() % 9000;
    const std::size_t offset = random() % 2 == 0 ? 4096 * (random() % 10) : random() % 41'000;
    AlignedBuffer data(nbytes);
    fill(data.span(), 100 + i);
    std::memcpy(expected.data() + offset, data.data(), nbytes);
    file->wait(file->write(offset, data.span()));
    Bytes back(expected.size());
    file->wait(file->read(0, back));
    ASSERT_EQ(back, expected) << i;
  }
  file->close();
  EXPECT_EQ(read_file(files(), path("f")), expected);
}

TEST_P(IoConformance, ReadingPastTheEndIsAnErrorThatNamesTheFile) {
  write_file(files(), path("short"), pattern(5000, 1));
  struct Range {
    std::uint64_t offset;
    std::size_t nbytes;
  };
  for (const Range range :
       {Range{0, 5001}, Range{4999, 2}, Range{5000, 1}, Range{0, 8192}, Range{8192, 4096}, Range{1ul << 40, 1}}) {
    const auto file = files().open(path("short"));
    AlignedBuffer data(range.nbytes);
    const auto request = file->read(range.offset, data.span());
    const std::string text = error_of([&] { file->wait(request); });
    EXPECT_TRUE(mentions(text, "cannot read '" + path("short") + "': it ends at byte 5000")) << text;
    EXPECT_EQ(error_of([&] { file->drain(); }), text);
    EXPECT_EQ(error_of([&] { file->size(); }), text);
    EXPECT_EQ(error_of([&] { file->close(); }), text);
  }
  const auto file = files().open(path("short"));
  Bytes data(5000);
  file->wait(file->read(0, data));
  file->wait(file->read(5000, {}));
  EXPECT_EQ(data, pattern(5000, 1));
}

TEST_P(IoConformance, AFailedFileStaysFailed) {
  const auto file = files().create(path("f"));
  Bytes data(100);
  const Bytes ten = pattern(10, 1);
  const auto good = file->write(0, ten);
  file->wait(good);
  file->read(0, data);  // past the end
  EXPECT_NE(error_of([&] { file->drain(); }), "");
  EXPECT_NE(error_of([&] { file->wait(good); }), "");
  EXPECT_NE(error_of([&] { file->sync(); }), "");
  EXPECT_NE(error_of([&] { file->close(); }), "");
  EXPECT_EQ(error_of([&] { file->close(); }), "") << "it is closed";
}

TEST_P(IoConformance, DestructorFinishesWhatIsQueued) {
  const Bytes data = pattern(3 << 20, 1);
  {
    const auto file = files().create(path("f"));
    for (std::size_t i = 0; i < 3 << 20; i += 1 << 16) file->write(i, std::span(data).subspan(i, 1 << 16));
  }
  EXPECT_EQ(read_file(files(), path("f")), data);
  Bytes back(1 << 20);
  {
    const auto file = files().open(path("f"));
    for (int i = 0; i < 100; ++i) {  // all fail
      file->read((3 << 20) - 100, std::span(back).subspan(i * 10'000, 10'000));
    }
  }
  EXPECT_EQ(read_file(files(), path("f")), data);
}

TEST_P(IoConformance, ClosedFilesAreNotUsed) {
  const auto file = files().create(path("f"));
  file->close();
  file->close();
  Bytes data(10);
  EXPECT_THROW(file->write(0, data), InternalError);
  EXPECT_THROW(file->read(0, data), InternalError);
  EXPECT_THROW(file->sync(), InternalError);
}

TEST_P(IoConformance, OpeningWhatIsNotThereOrMakingWhatIs) {
  write_file(files(), path("f"), pattern(10, 1));
  files().make_folders(path("folder"));
  const auto expect = [&](const std::string& text, std::string_view verb, std::string_view name,
                          std::string_view reason) {
    EXPECT_TRUE(mentions(text, verb) && mentions(text, path(name)) && mentions(text, reason)) << text;
  };
  expect(error_of([&] { files().create(path("f")); }), "cannot create", "f", "File exists");
  expect(error_of([&] { files().create(path("folder")); }), "cannot create", "folder", "File exists");
  expect(error_of([&] { files().create(path("no/f")); }), "cannot create", "no/f", "No such file");
  expect(error_of([&] { files().create(path("f/g")); }), "cannot create", "f/g", "Not a directory");
  expect(error_of([&] { files().open(path("no")); }), "cannot open", "no", "No such file");
  expect(error_of([&] { files().open(path("f/g")); }), "cannot open", "f/g", "Not a directory");
  expect(error_of([&] { files().open(path("folder")); }), "cannot open", "folder", "Is a directory");
  const auto file = files().open(path("f"));
  expect(error_of([&] { file->write(0, pattern(1, 1)); }), "cannot write", "f", "Bad file descriptor");
  EXPECT_EQ(read_file(files(), path("f")), pattern(10, 1)) << "untouched";
}

TEST(PosixFiles, OnlyRegularFilesAreOpened) {
  const TestFolder folder(::testing::TempDir());
  const std::string fifo = join(folder.path(), "fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  PosixFileSystem posix;
  // Without a writer a FIFO would be waited for.
  const std::string want = "cannot open '" + fifo + "': it is a FIFO, wanted a regular file";
  EXPECT_EQ(error_of([&] { posix.open(fifo); }), want);
  EXPECT_EQ(error_of([&] { system_files().open(fifo); }), want);
  EXPECT_EQ(error_of([&] { read_text(posix, "/dev/null", 10); }),
            "cannot open '/dev/null': it is a device, wanted a regular file");
}

TEST_P(IoConformance, Folders) {
  EXPECT_EQ(files().kind(path("a")), FileKind::kNone);
  EXPECT_EQ(files().kind(path("a/b")), FileKind::kNone);
  files().make_folders(path("a/b/c"));
  files().make_folders(path("a/b/c"));
  files().make_folders(path("a/b/c/"));
  files().make_folders(path("a//b/./d/"));
  EXPECT_EQ(files().kind(path("a/b")), FileKind::kFolder);
  EXPECT_EQ(files().kind(path("a/b/c")), FileKind::kFolder);
  for (const char* name : {"z", "10", "9", "b"}) write_file(files(), path(std::string("a/b/") + name), {});
  EXPECT_EQ(files().kind(path("a/b/z")), FileKind::kFile);
  EXPECT_EQ(files().kind(path("a/b/z/y")), FileKind::kNone);
  EXPECT_EQ(files().list(path("a/b")), (std::vector<std::string>{"10", "9", "b", "c", "d", "z"}));
  EXPECT_EQ(files().list(path("a/b/c")), std::vector<std::string>{});
  files().sync_folder(path("a/b"));
  EXPECT_GT(files().free_nbytes(path("a")), 0u);
  EXPECT_TRUE(mentions(error_of([&] { files().make_folders(path("a/b/z")); }), path("a/b/z")));
  EXPECT_TRUE(mentions(error_of([&] { files().make_folders(path("a/b/z/y")); }), path("a/b/z")));
  EXPECT_TRUE(mentions(error_of([&] { files().list(path("no")); }), path("no")));
  EXPECT_TRUE(mentions(error_of([&] { files().list(path("a/b/z")); }), "Not a directory"));
  EXPECT_TRUE(mentions(error_of([&] { files().sync_folder(path("no")); }), path("no")));
  EXPECT_TRUE(mentions(error_of([&] { files().free_nbytes(path("no")); }), path("no")));
}

TEST_P(IoConformance, Rename) {
  write_file(files(), path("one"), pattern(10, 1));
  write_file(files(), path("two"), pattern(20, 2));
  files().make_folders(path("empty"));
  files().make_folders(path("full/inner"));
  files().rename(path("one"), path("two"));  // takes its place
  EXPECT_EQ(files().kind(path("one")), FileKind::kNone);
  EXPECT_EQ(read_file(files(), path("two")), pattern(10, 1));
  files().rename(path("two"), path("full/three"));
  EXPECT_EQ(files().kind(path("two")), FileKind::kNone);
  EXPECT_EQ(read_file(files(), path("full/three")), pattern(10, 1));
  files().rename(path("full/three"), path("full/three"));
  EXPECT_EQ(files().kind(path("full/three")), FileKind::kFile);

  EXPECT_TRUE(mentions(error_of([&] { files().rename(path("empty"), path("full")); }), "not empty"));
  EXPECT_TRUE(mentions(error_of([&] { files().rename(path("full/three"), path("empty")); }), "Is a directory"));
  EXPECT_TRUE(mentions(error_of([&] { files().rename(path("empty"), path("full/three")); }), "Not a directory"));
  EXPECT_TRUE(mentions(error_of([&] { files().rename(path("full"), path("full/inner/x")); }), "Invalid"));
  const std::string text = error_of([&] { files().rename(path("no"), path("other")); });
  EXPECT_TRUE(mentions(text, "cannot rename '" + path("no") + "' to '" + path("other") + "': No such file")) << text;

  files().rename(path("full"), path("empty"));  // of a folder: an empty one makes room
  EXPECT_EQ(files().list(path("empty")), (std::vector<std::string>{"inner", "three"}));
  EXPECT_EQ(files().kind(path("full")), FileKind::kNone);
  files().rename(path("empty"), path("free"));
  EXPECT_EQ(read_file(files(), path("free/three")), pattern(10, 1));
}

TEST_P(IoConformance, Exchange) {
  write_file(files(), path("f"), pattern(10, 1));
  write_file(files(), path("g"), pattern(20, 2));
  files().make_folders(path("a/inner"));
  write_file(files(), path("a/h"), pattern(30, 3));
  try {
    files().exchange(path("f"), path("g"));
  } catch (const IoError& error) {
    GTEST_SKIP() << "not on this file system: " << error.what();
  }
  EXPECT_EQ(read_file(files(), path("f")), pattern(20, 2));
  EXPECT_EQ(read_file(files(), path("g")), pattern(10, 1));
  files().exchange(path("f"), path("a/h"));
  EXPECT_EQ(read_file(files(), path("f")), pattern(30, 3));
  EXPECT_EQ(read_file(files(), path("a/h")), pattern(20, 2));
  files().exchange(path("g"), path("a"));  // a file and a folder
  EXPECT_EQ(files().kind(path("a")), FileKind::kFile);
  EXPECT_EQ(read_file(files(), path("g/h")), pattern(20, 2));
  EXPECT_TRUE(mentions(error_of([&] { files().exchange(path("a"), path("no")); }), path("no")));
  EXPECT_TRUE(mentions(error_of([&] { files().exchange(path("g"), path("g/inner")); }), "cannot exchange"));
  EXPECT_EQ(read_file(files(), path("a")), pattern(10, 1));
}

TEST_P(IoConformance, Remove) {
  files().make_folders(path("a/b"));
  write_file(files(), path("f"), pattern(10, 1));
  files().remove(path("f"));
  EXPECT_EQ(files().kind(path("f")), FileKind::kNone);
  EXPECT_TRUE(mentions(error_of([&] { files().remove(path("f")); }), "No such file"));
  EXPECT_TRUE(mentions(error_of([&] { files().remove(path("a")); }), "not empty"));
  files().remove(path("a/b"));
  files().remove(path("a"));
  EXPECT_EQ(files().list(path("")), std::vector<std::string>{});
}

TEST_P(IoConformance, OpenFilesOutliveTheirNames) {
  write_file(files(), path("f"), pattern(5000, 1));
  const auto file = files().open(path("f"));
  files().rename(path("f"), path("g"));
  write_file(files(), path("f"), pattern(10, 2));
  Bytes data(5000);
  file->wait(file->read(0, data));
  EXPECT_EQ(data, pattern(5000, 1));
  files().remove(path("g"));
  file->wait(file->read(0, data));
  EXPECT_EQ(data, pattern(5000, 1));
}

TEST_P(IoConformance, Locks) {
  auto lock = files().try_lock(path("lock"));
  ASSERT_NE(lock, nullptr);
  EXPECT_EQ(files().kind(path("lock")), FileKind::kFile);
  EXPECT_EQ(files().try_lock(path("lock")), nullptr);
  const auto other = files().try_lock(path("other"));
  EXPECT_NE(other, nullptr);
  lock.reset();
  lock = files().try_lock(path("lock"));
  EXPECT_NE(lock, nullptr);
  EXPECT_EQ(files().try_lock(path("lock")), nullptr);
  EXPECT_TRUE(mentions(error_of([&] { files().try_lock(path("no/lock")); }), path("no/lock")));
}

TEST_P(IoConformance, ManyThreads) {
  std::vector<std::thread> threads;
  std::vector<std::string> problems(4);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      problems[t] = error_of<std::exception>([&] {
        for (int round = 0; round < 10; ++round) {
          const std::string name = path("t" + std::to_string(t) + "_" + std::to_string(round));
          const Bytes data = pattern(100'000, t * 100 + round);
          files().make_folders(path("common/folder"));
          write_file(files(), name, data);
          if (read_file(files(), name) != data) throw IoError("wrong content");
          files().rename(name, name + "x");
          files().remove(name + "x");
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  EXPECT_EQ(files().list(path("")), std::vector<std::string>{"common"});
}

TEST_P(IoConformance, RequestsOutliveTheThreadThatQueuedThem) {
  AlignedBuffer data(32 << 20);
  fill(data.span().first(1 << 20), 1);
  std::unique_ptr<File> file;
  std::thread([&] {
    file = files().create(path("f"));
    for (std::size_t i = 0; i < data.nbytes(); i += 1 << 20) file->write(i, data.span().subspan(i, 1 << 20));
  }).join();
  file->close();
  const Bytes back = read_file(files(), path("f"));
  ASSERT_EQ(back.size(), data.nbytes());
  EXPECT_EQ(std::memcmp(back.data(), data.data(), back.size()), 0);
}

TEST_P(IoConformance, Texts) {
  write_text(files(), path("f"), "hello");
  EXPECT_EQ(read_text(files(), path("f"), 5), "hello");
  const std::string text = error_of([&] { read_text(files(), path("f"), 4); });
  EXPECT_TRUE(mentions(text, path("f")) && mentions(text, "5 bytes, at most 4")) << text;
  EXPECT_TRUE(mentions(error_of([&] { write_text(files(), path("f"), "x"); }), "File exists"));
  replace_text(files(), path("f"), "");
  EXPECT_EQ(read_text(files(), path("f"), 100), "");
  write_text(files(), path("g.tmp"), "left by a crash");
  replace_text(files(), path("g"), "new");
  EXPECT_EQ(read_text(files(), path("g"), 100), "new");
  EXPECT_EQ(files().list(path("")), (std::vector<std::string>{"f", "g"}));
  files().make_folders(path("folder"));
  EXPECT_NE(error_of([&] { replace_text(files(), path("folder"), "x"); }), "");
  EXPECT_EQ(files().list(path("")), (std::vector<std::string>{"f", "folder", "g"})) << "nothing is left behind";
}

TEST_P(IoConformance, RemoveAll) {
  files().make_folders(path("a/b/c"));
  files().make_folders(path("a/d"));
  for (const char* name : {"a/f", "a/b/f", "a/b/c/f", "keep"}) write_text(files(), path(name), name);
  remove_all(files(), path("a"));
  EXPECT_EQ(files().list(path("")), std::vector<std::string>{"keep"});
  remove_all(files(), path("a"));
  remove_all(files(), path("keep"));
  EXPECT_EQ(files().list(path("")), std::vector<std::string>{});
}

TEST(IoPaths, JoinAndParent) {
  EXPECT_EQ(join("a", "b"), "a/b");
  EXPECT_EQ(join("a/", "b"), "a/b");
  EXPECT_EQ(join("/", "b"), "/b");
  EXPECT_EQ(join("", "b"), "b");
  EXPECT_EQ(parent_of("a/b"), "a");
  EXPECT_EQ(parent_of("a//b//"), "a");
  EXPECT_EQ(parent_of("/a/b/c"), "/a/b");
  EXPECT_EQ(parent_of("a"), ".");
  EXPECT_EQ(parent_of("/a"), "/");
  EXPECT_EQ(parent_of("/"), "/");
}

TEST(IoAlignedBuffer, IsAlignedZeroedAndMovable) {
  AlignedBuffer empty(0);
  EXPECT_EQ(empty.data(), nullptr);
  AlignedBuffer a(10'000, AlignedBuffer::Pages::kHuge);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(a.span().begin(), a.span().end(), [](std::byte b) { return b == std::byte{0}; }));
  a.data()[9'999] = std::byte{7};
  AlignedBuffer b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(b.nbytes(), 10'000u);
  empty = std::move(b);
  EXPECT_EQ(empty.data()[9'999], std::byte{7});
  const std::string text = error_of([] { AlignedBuffer(std::size_t{1} << 60); });
  EXPECT_TRUE(mentions(text, "1152921504606846976 bytes")) << text;
}

}  // namespace
}  // namespace zero::io::io_conformance_test
