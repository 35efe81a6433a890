// Interrupted, short and failed system calls, at every one of a small scenario.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>

#include "io/aligned_buffer.h"
#include "io/system_file.h"
#include "support/injected_syscalls.h"
#include "unit/io_support.h"

namespace zero::io::io_syscalls_test {
namespace {

constexpr std::size_t kNbytes = 60'000;

/// Writes a file in pieces and reads it back; what is found in it.
Bytes scenario(FileSystem& files, const std::string& root) {
  const std::string folder = join(root, "a/b");
  files.make_folders(folder);
  const auto lock = files.try_lock(join(folder, "lock"));
  AlignedBuffer data(kNbytes);
  fill(data.span(), 1);
  const auto file = files.create(join(folder, "new"));
  for (const auto& [begin, end] : {std::pair{0ul, 8192ul}, {8192ul, 9000ul}, {9000ul, 40'000ul}, {40'000ul, kNbytes}}) {
    file->write(begin, data.span().subspan(begin, end - begin));
  }
  file->sync();
  file->close();
  files.rename(join(folder, "new"), join(folder, "done"));
  files.sync_folder(folder);
  if (files.list(folder) != std::vector<std::string>{"done", "lock"}) throw IoError("wrong names");
  AlignedBuffer back(kNbytes);
  const auto again = files.open(join(folder, "done"));
  again->read(0, back.span().first(20'000));
  again->read(20'000, back.span().subspan(20'000));
  again->close();
  return {back.span().begin(), back.span().end()};
}

class IoSyscalls : public ::testing::TestWithParam<Sort> {
 protected:
  void SetUp() override {
    if (GetParam() == Sort::kUring && !make_uring_files()) GTEST_SKIP() << "this machine has no io_uring";
  }

  /// Runs the scenario with each call of that sort injected; `check` gets the error's text and what was read.
  void for_each_call(Call call, int error, const std::function<void(const std::string&, const Bytes&)>& check) {
    InjectedSyscalls counting;
    {
      const TestFolder folder;
      ASSERT_EQ(scenario(*make_files(GetParam(), counting), folder.path()), pattern(kNbytes, 1));
    }
    ASSERT_GT(counting.count(call), 0);
    for (int index = 0; index < counting.count(call); ++index) {
      SCOPED_TRACE("call " + std::to_string(index));
      const TestFolder folder;
      InjectedSyscalls syscalls;
      syscalls.inject(call, index, error);
      Bytes found;
      const std::string text = error_of([&] { found = scenario(*make_files(GetParam(), syscalls), folder.path()); });
      // The pool may need fewer calls the second time; which piece is which call is by chance then.
      if (GetParam() == Sort::kPosix) {
        ASSERT_TRUE(syscalls.happened());
      }
      if (!syscalls.happened()) continue;
      EXPECT_TRUE(text.empty() || mentions(text, folder.path())) << "no path: " << text;
      check(text, found);
    }
  }

  void expect_invisible(Call call, int error) {
    for_each_call(call, error, [](const std::string& text, const Bytes& found) {
      EXPECT_EQ(text, "");
      EXPECT_EQ(found, pattern(kNbytes, 1));
    });
  }
  void expect_error(Call call, int error, std::initializer_list<std::string_view> wanted) {
    for_each_call(call, error, [&](const std::string& text, const Bytes&) {
      for (const std::string_view part : wanted) EXPECT_TRUE(mentions(text, part)) << "'" << text << "'";
    });
  }
  Call transfer() const { return GetParam() == Sort::kUring ? Call::kCompletion : Call::kTransfer; }
};

INSTANTIATE_TEST_SUITE_P(All, IoSyscalls, ::testing::Values(Sort::kPosix, Sort::kPosixThreads, Sort::kUring),
                         [](const auto& info) { return name_of(info.param); });

/// Writes a scratch file in blocks and reads it back.
Bytes scratch_scenario(FileSystem& files, const std::string& folder) {
  AlignedBuffer data(kNbytes), back(kNbytes);
  fill(data.span(), 1);
  const auto file = files.create_scratch(folder, {.block_nbytes = 8192, .queue_depth = 2});
  file->use_memory(back.span());
  file->reserve(kNbytes);
  file->write(0, data.span().first(40'960));
  file->write(40'960, data.span().subspan(40'960));
  file->drain();
  const auto first = file->read(0, back.span().first(40'960));
  file->wait(file->read(40'960, back.span().subspan(40'960)));
  file->wait(first);
  return {back.span().begin(), back.span().end()};
}

TEST_P(IoSyscalls, ScratchFilesGoOnAfterInterruptionsAndFailWithTheirFolder) {
  struct Injected {
    Call call;
    int error;
    const char* wanted;  ///< of the message; empty: nobody notices
  };
  for (const Injected& injected :
       std::initializer_list<Injected>{{transfer(), EINTR, ""},
                                       {transfer(), InjectedSyscalls::kShort, ""},
                                       {transfer(), EIO, "Input/output error"},
                                       {Call::kOpen, EACCES, "Permission denied"},
                                       {Call::kOpen, EOPNOTSUPP, ""},
                                       {Call::kOpenDirect, EINVAL, ""},
                                       {Call::kSync, ENOSPC, "cannot reserve 60.0 kB on the disk of"},
                                       {Call::kSync, EOPNOTSUPP, ""}}) {
    InjectedSyscalls counting;
    const TestFolder folder;
    ASSERT_EQ(scratch_scenario(*make_files(GetParam(), counting), folder.path()), pattern(kNbytes, 1));
    ASSERT_GT(counting.count(injected.call), 0);
    for (int index = 0; index < counting.count(injected.call); ++index) {
      SCOPED_TRACE(fmt::format("call {} of sort {}", index, static_cast<int>(injected.call)));
      InjectedSyscalls syscalls;
      syscalls.inject(injected.call, index, injected.error);
      Bytes found;
      const std::string text =
          error_of([&] { found = scratch_scenario(*make_files(GetParam(), syscalls), folder.path()); });
      EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
      if (!syscalls.happened()) continue;
      if (*injected.wanted) {
        EXPECT_TRUE(mentions(text, injected.wanted) && mentions(text, folder.path())) << text;
      } else {
        EXPECT_EQ(text, "");
        EXPECT_EQ(found, pattern(kNbytes, 1));
      }
    }
  }
}

TEST_P(IoSyscalls, InterruptionsAreInvisible) {
  expect_invisible(transfer(), EINTR);
  if (GetParam() == Sort::kUring) expect_invisible(transfer(), EAGAIN);
  expect_invisible(Call::kOpen, EINTR);
  expect_invisible(Call::kSync, EINTR);
  expect_invisible(Call::kLock, EINTR);
  expect_invisible(Call::kClose, EINTR);
}

TEST_P(IoSyscalls, ShortTransfersAreInvisible) { expect_invisible(transfer(), InjectedSyscalls::kShort); }

TEST_P(IoSyscalls, DirectIsGivenUpInSilence) {
  expect_invisible(Call::kOpenDirect, EINVAL);
  expect_invisible(Call::kOpenDirect, EMFILE);
}

TEST_P(IoSyscalls, FailedTransfersAreErrors) {
  expect_error(transfer(), EIO, {"cannot ", "Input/output error"});
  expect_error(transfer(), ENOSPC, {"cannot ", "No space left on device", "ree some space"});
}

TEST_P(IoSyscalls, OtherFailedCallsAreErrors) {
  expect_error(Call::kOpen, EACCES, {"cannot ", "Permission denied", "who owns it"});
  expect_error(Call::kSync, EIO, {"cannot sync", "Input/output error"});
  expect_error(Call::kName, EROFS, {"cannot ", "Read-only file system"});
  expect_error(Call::kLock, ENOLCK, {"cannot lock", "No locks available"});
}

TEST_P(IoSyscalls, AFailedSyncIsNotForgotten) {
  const TestFolder folder;
  InjectedSyscalls syscalls;
  syscalls.inject(Call::kSync, 0, EIO);
  const auto files = make_files(GetParam(), syscalls);
  const auto file = files->create(join(folder.path(), "f"));
  const Bytes data = pattern(10, 1);
  file->write(0, data);
  EXPECT_TRUE(mentions(error_of([&] { file->sync(); }), "cannot sync '" + join(folder.path(), "f")));
  EXPECT_TRUE(mentions(error_of([&] { file->sync(); }), "cannot sync")) << "the second would succeed";
  EXPECT_TRUE(mentions(error_of([&] { file->close(); }), "cannot sync"));
}

TEST_P(IoSyscalls, AFailedCloseIsAnError) {
  const TestFolder folder;
  const std::string path = join(folder.path(), "f");
  for (int index = 0; index < 2; ++index) {
    InjectedSyscalls syscalls;
    syscalls.inject(Call::kClose, index, EIO);
    const auto files = make_files(GetParam(), syscalls);
    const auto file = files->create(path);
    if (syscalls.count(Call::kOpenDirect) == 0) break;
    EXPECT_TRUE(mentions(error_of([&] { file->close(); }), "cannot close '" + path + "': Input/output error"));
    EXPECT_EQ(error_of([&] { file->close(); }), "");
    EXPECT_EQ(syscalls.count(Call::kClose), 2) << "each descriptor once";
    files->remove(path);
  }
}

TEST_P(IoSyscalls, ErrorsOfQueuedRequestsSurfaceWherePromised) {
  const TestFolder folder;
  const std::string path = join(folder.path(), "f");
  const std::function<void(File&)> heard_at[] = {[](File& file) { file.wait(0); }, [](File& file) { file.drain(); },
                                                 [](File& file) { file.sync(); }, [](File& file) { file.size(); },
                                                 [](File& file) { file.close(); }};
  const Bytes data = pattern(10, 1);
  for (const auto& action : heard_at) {
    InjectedSyscalls syscalls;
    syscalls.inject(transfer(), 0, ENOSPC);
    const auto files = make_files(GetParam(), syscalls);
    {
      const auto file = files->create(path);
      EXPECT_EQ(file->write(0, data), 0u);
      const std::string text = error_of([&] { action(*file); });
      EXPECT_TRUE(mentions(text, "cannot write '" + path + "': No space left on device")) << text;
      EXPECT_NE(error_of([&] { file->close(); }).empty(), text.empty() || syscalls.count(Call::kClose) == 0);
    }
    EXPECT_EQ(syscalls.count(Call::kClose), 2);
    files->remove(path);
  }
}

/// Whether O_DIRECT works there, found out without our help.
bool has_direct(const std::string& folder) {
  const std::string path = join(folder, "probe");
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const AlignedBuffer data(4096);
  const bool works = ::pwrite(fd, data.data(), data.nbytes(), 0) == 4096;
  ::close(fd);
  return works;
}

TEST(IoDirect, WholePagesGoPastThePageCacheAndNothingElse) {
  const TestFolder folder;
  if (!has_direct(folder.path())) GTEST_SKIP() << "no O_DIRECT in " << folder.path();
  InjectedSyscalls syscalls;
  const auto files = make_files(Sort::kPosix, syscalls);
  AlignedBuffer data(1 << 20);
  fill(data.span(), 1);
  const auto file = files->create(join(folder.path(), "f"));
  EXPECT_EQ(file->alignment(), 4096u);
  file->wait(file->write(0, data.span()));
  EXPECT_EQ(syscalls.direct_nbytes, 1u << 20);
  EXPECT_EQ(syscalls.cached_nbytes, 0u);
  // [100, 10'000): the page in the middle.
  file->wait(file->write(100, data.span().subspan(100, 9'900)));
  EXPECT_EQ(syscalls.direct_nbytes, (1u << 20) + 4096);
  EXPECT_EQ(syscalls.cached_nbytes, 9'900u - 4096);
  // Memory that lies otherwise than the file.
  file->wait(file->write(0, data.span().subspan(1, 8192)));
  EXPECT_EQ(syscalls.direct_nbytes, (1u << 20) + 4096);
  EXPECT_FALSE(syscalls.misaligned_direct);
}

TEST(IoDirect, NotWhenToldSo) {
  const TestFolder folder;
  InjectedSyscalls syscalls;
  scenario(*make_files(Sort::kPosix, syscalls, false), folder.path());
  EXPECT_EQ(syscalls.count(Call::kOpenDirect), 0);
  EXPECT_EQ(syscalls.direct_nbytes, 0u);
}

TEST(IoDirect, ADiskThatWantsMoreAlignmentIsServedThroughThePageCache) {
  for (const Sort sort : {Sort::kPosix, Sort::kUring}) {
    const TestFolder folder;
    if (!has_direct(folder.path())) GTEST_SKIP() << "no O_DIRECT in " << folder.path();
    InjectedSyscalls syscalls;
    syscalls.inject(sort == Sort::kUring ? Call::kCompletion : Call::kTransfer, 0, EINVAL);
    const auto files = make_files(sort, syscalls);
    if (!files) continue;
    AlignedBuffer data(1 << 16), back(1 << 16);
    fill(data.span(), 1);
    const auto file = files->create(join(folder.path(), "f"));
    file->write(0, data.span());
    const std::string text = error_of([&] { file->drain(); });
    EXPECT_EQ(text, "");
    file->wait(file->read(0, back.span()));
    EXPECT_EQ(std::memcmp(data.data(), back.data(), data.nbytes()), 0);
    if (sort == Sort::kPosix) {
      EXPECT_EQ(syscalls.cached_nbytes, 2u << 16) << "once is enough";
    }
  }
}

TEST(IoPieces, CoverTheRequestAndNoPageTwice) {
  std::byte* const page = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 20);
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t offset = random() % 20'000;
    const bool alike = random() % 2 == 0;
    Transfer left{Direction::kWrite, offset, page + offset + (alike ? 0 : 1 + random() % 4095), 1 + random() % 50'000};
    const std::uint64_t end = offset + left.nbytes;
    const std::uint64_t inner = end / 4096 * 4096, first = (offset + 4095) / 4096 * 4096;
    std::uint64_t direct = 0;
    int pieces = 0;
    while (left.nbytes > 0) {
      const Piece piece = next_piece(left, true);
      ASSERT_GT(piece.nbytes, 0u);
      ASSERT_LE(piece.nbytes, left.nbytes);
      if (piece.direct) direct += piece.nbytes;
      left.offset += piece.nbytes;
      left.data += piece.nbytes;
      left.nbytes -= piece.nbytes;
      ++pieces;
    }
    EXPECT_EQ(left.offset, end);
    EXPECT_EQ(direct, alike && inner > first ? inner - first : 0);
    EXPECT_LE(pieces, alike ? 3 : 1);
  }
  EXPECT_FALSE(next_piece({Direction::kRead, 0, page, 8192}, false).direct);
  EXPECT_EQ(next_piece({Direction::kRead, 0, page, std::size_t{5} << 30}, true).nbytes, 1u << 30);
}

TEST(IoFolders, ParentsThatWereMadeAreSynced) {
  const TestFolder folder;
  InjectedSyscalls syscalls;
  const auto files = make_files(Sort::kPosix, syscalls);
  files->make_folders(join(folder.path(), "a/b/c"));  // a and b have others below them
  EXPECT_EQ(syscalls.count(Call::kSync), 2);
  files->make_folders(join(folder.path(), "a/b/c"));
  files->make_folders(join(folder.path(), "a/d"));
  EXPECT_EQ(syscalls.count(Call::kSync), 2);
}

TEST(IoFolders, LinksAreFollowedButNotRemovedThrough) {
  const TestFolder folder;
  PosixFileSystem files;
  const auto path = [&](std::string_view name) { return join(folder.path(), name); };
  files.make_folders(path("elsewhere"));
  write_text(files, path("elsewhere/precious"), "x");
  files.make_folders(path("tree/inner"));
  ASSERT_EQ(::symlink(path("elsewhere").c_str(), path("tree/link").c_str()), 0);
  ASSERT_EQ(::symlink(path("nowhere").c_str(), path("tree/dangling").c_str()), 0);
  EXPECT_EQ(files.kind(path("tree/link")), FileKind::kFolder);
  EXPECT_EQ(files.kind(path("tree/dangling")), FileKind::kOther);
  remove_all(files, path("tree"));
  EXPECT_EQ(files.kind(path("tree")), FileKind::kNone);
  EXPECT_EQ(read_text(files, path("elsewhere/precious"), 10), "x");
}

int wait_for(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(IoProcesses, LocksHoldAcrossProcessesAndGoWithThem) {
  const TestFolder folder;
  const std::string path = join(folder.path(), "lock");
  PosixFileSystem files;
  auto lock = files.try_lock(path);
  ASSERT_NE(lock, nullptr);
  pid_t child = ::fork();
  if (child == 0) {
    const bool held = files.try_lock(path) == nullptr;
    lock.reset();  // the child's copy: not its to give back
    ::_exit(held && files.try_lock(path) == nullptr ? 0 : 1);
  }
  EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(files.try_lock(path), nullptr);
  lock.reset();

  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  child = ::fork();
  if (child == 0) {
    const auto mine = files.try_lock(path);
    const char said = mine != nullptr ? 'y' : 'n';
    if (::write(ready[1], &said, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');
  EXPECT_EQ(files.try_lock(path), nullptr);
  ::kill(child, SIGKILL);
  wait_for(child);
  EXPECT_NE(files.try_lock(path), nullptr);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(IoProcesses, ARemovedLockFileIsNotALock) {
  const TestFolder folder;
  const std::string path = join(folder.path(), "lock");
  PosixFileSystem files;
  const auto old = files.try_lock(path);
  files.remove(path);
  const auto lock = files.try_lock(path);  // of a new file of that name
  ASSERT_NE(lock, nullptr);
  EXPECT_EQ(files.try_lock(path), nullptr);
}

/// Somebody removes the file between our opening and locking it.
class RemovingSyscalls : public Syscalls {
 public:
  explicit RemovingSyscalls(std::string path) : path_(std::move(path)) {}
  int flock(int fd, int operation) override {
    if (!std::exchange(removed_, true)) ::unlink(path_.c_str());
    return Syscalls::flock(fd, operation);
  }

 private:
  const std::string path_;
  bool removed_ = false;
};

TEST(IoProcesses, ALockIsThatOfTheNameItsFileHasNow) {
  const TestFolder folder;
  const std::string path = join(folder.path(), "lock");
  RemovingSyscalls syscalls(path);
  const auto files = make_files(Sort::kPosix, syscalls);
  const auto lock = files->try_lock(path);
  ASSERT_NE(lock, nullptr);
  EXPECT_EQ(PosixFileSystem().try_lock(path), nullptr);
}

TEST(IoProcesses, AForkedChildHasItsOwnThreads) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer does not allow threads in a forked child";
#endif
  const TestFolder folder;
  for (const bool uring : {false, true}) {
    const auto files = uring ? make_uring_files() : std::make_unique<PosixFileSystem>();
    if (!files) continue;
    const std::string path = join(folder.path(), uring ? "uring" : "posix");
    write_file(*files, path, pattern(100'000, 1));
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      const bool same = read_file(*files, path) == pattern(100'000, 1);
      write_file(*files, path + "2", pattern(100'000, 2));
      ::_exit(same ? 0 : 1);
    }
    EXPECT_EQ(wait_for(child), 0);
    EXPECT_EQ(read_file(*files, path + "2"), pattern(100'000, 2));
  }
}

TEST(IoSystemFiles, Work) {
  const TestFolder folder;
  const std::string path = join(folder.path(), "f");
  write_text(system_files(), path, "hello");
  EXPECT_EQ(read_text(system_files(), path, 100), "hello");
  EXPECT_EQ(&system_files(), &system_files());
}

}  // namespace
}  // namespace zero::io::io_syscalls_test
