// Whole saves on real files while system calls are interrupted, short or fail, in folders that cannot be
// written, and on disks that lose what they took: the save is right or an error, and the older checkpoint
// stays.
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <utility>

#include "checkpoint/tools.h"
#include "doubles/memory_files.h"
#include "support/checkpoint_room.h"
#include "support/injected_syscalls.h"
#include "unit/io_support.h"
#include "zero/errors.h"

namespace zero::testing::checkpoint_io_test {
namespace {

using io::Call;
using io::InjectedSyscalls;
using io::Sort;

constexpr int kRanks = 2;
constexpr std::int64_t kLarge = 1'100'003;  ///< several requests of each rank, and an odd end

/// The current folder, until it goes.
class CurrentFolder {
 public:
  explicit CurrentFolder(const std::string& path) { std::filesystem::current_path(path); }
  ~CurrentFolder() { std::filesystem::current_path(before_); }

 private:
  const std::filesystem::path before_ = std::filesystem::current_path();
};

/// A folder with step 1 in it, saved once for all tests.
const std::string& saved_step_1() {
  static const io::TestFolder folder;
  static const bool saved = [] {
    const CurrentFolder current(folder.path());
    io::PosixFileSystem files;
    for (const auto& error : save_step_together(files, kRanks, 1)) EXPECT_EQ(error, "");
    return true;
  }();
  EXPECT_TRUE(saved);
  return folder.path();
}

/// A new folder that is the current one, with step 1 in it.
class Place {
 public:
  Place() : current_(folder_.path()) {
    std::filesystem::copy(saved_step_1(), ".", std::filesystem::copy_options::recursive);
  }
  const std::string& path() const { return folder_.path(); }

 private:
  io::TestFolder folder_;
  CurrentFolder current_;
};

std::vector<std::string> save_step_2(io::FileSystem& files, bool async = false) {
  return save_step_together(files, kRanks, 2, {.async = async}, kLarge);
}

/// Every checkpoint there is has the right bits, nothing half made is left after the next save, which works.
void expect_sound() {
  io::PosixFileSystem files;
  const auto listing = checkpoint::list_checkpoints(files, "ckpt");
  EXPECT_TRUE(listing.incomplete.empty());
  for (const auto& found : listing.complete) EXPECT_EQ(read_step(files, found.tag), found.manifest.global_steps);
  EXPECT_EQ(read_step(files, "step1"), 1);
  for (const auto& error : save_step_together(files, kRanks, 3)) EXPECT_EQ(error, "");
  EXPECT_EQ(read_step(files, ""), 3);
  EXPECT_TRUE(checkpoint::leftovers(files, "ckpt").empty());
}

class CheckpointSyscalls : public ::testing::TestWithParam<Sort> {
 protected:
  void SetUp() override {
    if (GetParam() == Sort::kUring && !io::make_uring_files()) GTEST_SKIP() << "this machine has no io_uring";
  }

  /// Saves once for each call of that sort, with that call injected; `check` gets what the ranks threw.
  int for_each_call(Call call, int error, bool async,
                    const std::function<void(const std::vector<std::string>&)>& check) {
    InjectedSyscalls counting;
    {
      const Place place;
      for (const auto& text : save_step_2(*make_files(GetParam(), counting), async)) EXPECT_EQ(text, "");
    }
    EXPECT_GT(counting.count(call), 0);
    int injected = 0;
    for (int index = 0; index < counting.count(call); ++index) {
      SCOPED_TRACE("call " + std::to_string(index));
      const Place place;
      InjectedSyscalls syscalls;
      syscalls.inject(call, index, error);
      const auto errors = save_step_2(*make_files(GetParam(), syscalls), async);
      if (!syscalls.happened()) continue;
      ++injected;
      check(errors);
    }
    EXPECT_GE(injected, counting.count(call) - 1);
    return injected;
  }

  void expect_invisible(Call call, int error, bool async = false) {
    calls_ += for_each_call(call, error, async, [](const std::vector<std::string>& errors) {
      for (const auto& text : errors) EXPECT_EQ(text, "");
      io::PosixFileSystem files;
      EXPECT_EQ(read_step(files, ""), 2);
    });
  }

  /// Reported on both ranks alike, with what failed; returns how often.
  int expect_reported(Call call, int error, std::string_view wanted) {
    int reported = 0;
    calls_ += for_each_call(call, error, false, [&](const std::vector<std::string>& errors) {
      EXPECT_EQ(errors[0], errors[1]);
      if (!errors[0].empty()) {
        ++reported;
        EXPECT_TRUE(io::mentions(errors[0], "saving the checkpoint 'step2' in 'ckpt' failed: ")) << errors[0];
        EXPECT_TRUE(io::mentions(errors[0], wanted)) << errors[0];
      }
      expect_sound();
    });
    return reported;
  }

  Call transfer() const { return GetParam() == Sort::kUring ? Call::kCompletion : Call::kTransfer; }
  int calls_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, CheckpointSyscalls, ::testing::Values(Sort::kPosix, Sort::kPosixThreads, Sort::kUring),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(CheckpointSyscalls, InterruptionsAreInvisible) {
  for (const Call call : {transfer(), Call::kOpen, Call::kOpenDirect, Call::kSync, Call::kClose, Call::kLock})
    expect_invisible(call, EINTR);
  std::printf("%d calls of a save interrupted: each save right\n", calls_);
}

TEST_P(CheckpointSyscalls, ShortTransfersAreInvisible) {
  expect_invisible(transfer(), InjectedSyscalls::kShort);
  expect_invisible(transfer(), InjectedSyscalls::kShort, /*async=*/true);
  std::printf("%d transfers of a save short: each save right\n", calls_);
}

TEST_P(CheckpointSyscalls, FailedTransfersAreReported) {
  EXPECT_EQ(expect_reported(transfer(), ENOSPC, "No space left on device"), calls_);
  EXPECT_GT(calls_, 4);
}

TEST_P(CheckpointSyscalls, FailedSyncsAreReported) {
  // All but that of the folder above, which was durable before.
  EXPECT_GE(expect_reported(Call::kSync, EIO, "cannot sync"), calls_ - 1);
  EXPECT_GT(calls_, 5);
  std::printf("%d syncs of a save failed: each reported on both ranks, the older checkpoint intact\n", calls_);
}

TEST_P(CheckpointSyscalls, FailedClosesAreReported) {
  EXPECT_GT(expect_reported(Call::kClose, EIO, "Input/output error"), 0);
}

// ---- folders that cannot be written ----------------------------------------------------------------------

/// Refuses to change anything, as a file system that went read-only does.
class ReadOnlySyscalls : public io::Syscalls {
 public:
  int open(const char* path, int flags, mode_t mode) override {
    return (flags & O_ACCMODE) == O_RDONLY ? Syscalls::open(path, flags, mode) : refuse();
  }
  int mkdir(const char* path, mode_t) override {
    struct stat status {};
    if (::stat(path, &status) != 0) return refuse();
    errno = EEXIST;
    return -1;
  }
  int rename(const char*, const char*) override { return refuse(); }
  int exchange(const char*, const char*) override { return refuse(); }
  int remove(const char*) override { return refuse(); }

 private:
  int refuse() {
    errno = EROFS;
    return -1;
  }
};

TEST_P(CheckpointSyscalls, AReadOnlyFileSystemIsAnError) {
  const Place place;
  ReadOnlySyscalls syscalls;
  const auto files = make_files(GetParam(), syscalls);
  for (const bool async : {false, true}) {
    for (const auto& text : save_step_2(*files, async)) {
      EXPECT_TRUE(io::mentions(text, "Read-only file system")) << text;
    }
  }
  EXPECT_EQ(read_step(*files, ""), 1);
  expect_sound();
}

/// Runs `work` in a process without root's rights. True when it returned true.
bool run_unprivileged(const std::function<bool()>& work) {
  constexpr uid_t kNobody = 65534;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const bool dropped =
        ::getuid() != 0 || (::setgroups(0, nullptr) == 0 && ::setgid(kNobody) == 0 && ::setuid(kNobody) == 0);
    ::_exit(dropped && work() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(CheckpointFolders, AFolderWithoutTheRightToWriteIsAnError) {
  const Place place;
  ASSERT_EQ(::chmod(place.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod("ckpt", 0555), 0);
  EXPECT_TRUE(run_unprivileged([] {
    io::PosixFileSystem files;
    const auto errors = save_step_2(files);
    for (const auto& text : errors) std::fprintf(stderr, "%s\n", text.c_str());
    return errors[0] == errors[1] && io::mentions(errors[0], "saving the checkpoint 'step2' in 'ckpt' failed") &&
           io::mentions(errors[0], "Permission denied") && read_step(files, "") == 1;
  }));
  // A folder of the same kind in which the first checkpoint would be made.
  EXPECT_TRUE(run_unprivileged([] {
    if (::chdir("ckpt") != 0) return false;
    io::PosixFileSystem files;
    return io::mentions(save_step_2(files)[1], "Permission denied");
  }));
  ASSERT_EQ(::chmod("ckpt", 0755), 0);
  expect_sound();
}

// ---- pruning beside what is damaged
// ------------------------------------------------------------------------

/// Files in memory; what is renamed to a tag is damaged on the way, as on a disk that lost what it took.
class LosingFileSystem : public io::MemoryFileSystem {
 public:
  std::function<void(const std::string& folder)> damage;
  void rename(const std::string& from, const std::string& to) override {
    MemoryFileSystem::rename(from, to);
    if (damage && kind(io::join(to, "manifest.json")) == io::FileKind::kFile) damage(to);
  }
  void cut(const std::string& path) {
    auto bytes = this->bytes(path);
    bytes.pop_back();
    set_bytes(path, bytes);
  }
};

std::vector<std::string> complete_tags(io::FileSystem& files) {
  std::vector<std::string> tags;
  for (const auto& found : checkpoint::list_checkpoints(files, "ckpt").complete) tags.push_back(found.tag);
  return tags;
}

using Tags = std::vector<std::string>;

void expect_saved(io::FileSystem& files, int step, int keep_last) {
  for (const auto& error : save_step_together(files, kRanks, step, {.keep_last = keep_last})) {
    EXPECT_EQ(error, "");
  }
}

TEST(CheckpointPruning, ADamagedNewOneDoesNotCostTheOldOne) {
  const auto damages = [](LosingFileSystem& files) {
    return std::vector<std::function<void(const std::string&)>>{
        [&](const std::string& folder) { files.cut(folder + "/rank_00001.safetensors"); },
        [&](const std::string& folder) { files.remove(folder + "/rank_00000.safetensors"); },
        [&](const std::string& folder) { files.cut(folder + "/manifest.json"); },
        [&](const std::string& folder) { files.remove(folder + "/manifest.json"); },
        [&](const std::string& folder) {
          auto bytes = files.bytes(folder + "/manifest.json");
          bytes[100] ^= std::byte{1};
          files.set_bytes(folder + "/manifest.json", bytes);
        }};
  };
  LosingFileSystem any;
  for (std::size_t i = 0; i < damages(any).size(); ++i) {
    SCOPED_TRACE("damage " + std::to_string(i));
    LosingFileSystem files;
    expect_saved(files, 1, 1);
    files.damage = damages(files)[i];
    save_step_together(files, kRanks, 2, {.keep_last = 1});
    files.damage = {};
    EXPECT_EQ(complete_tags(files), Tags{"step1"});
    EXPECT_EQ(read_step(files, "step1"), 1);
    EXPECT_EQ(checkpoint::prune(files, "ckpt", 1, false).removed, Tags{});
    // The next one is whole, and only now may the old one go.
    expect_saved(files, 3, 1);
    EXPECT_EQ(complete_tags(files), Tags{"step3"});
    EXPECT_EQ(read_step(files, ""), 3);
  }
}

TEST(CheckpointPruning, DamagedOnesDoNotCount) {
  LosingFileSystem files;
  for (int step = 1; step <= 3; ++step) expect_saved(files, step, 0);
  files.cut("/ckpt/step3/rank_00000.safetensors");
  expect_saved(files, 4, 2);
  EXPECT_EQ(complete_tags(files), (Tags{"step2", "step4"}));
  EXPECT_EQ(read_step(files, "step2"), 2);
  EXPECT_EQ(read_step(files, ""), 4);
  files.cut("/ckpt/step4/manifest.json");
  EXPECT_EQ(checkpoint::prune(files, "ckpt", 1, false).removed, Tags{});
  EXPECT_EQ(complete_tags(files), Tags{"step2"});
}

}  // namespace
}  // namespace zero::testing::checkpoint_io_test
