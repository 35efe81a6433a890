// A save, or a pruning, that ends at any of its operations; power that goes at any of them; operations that
// fail. Afterwards a load finds a complete checkpoint with the right bits, and the next save works.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>

#include "checkpoint/tools.h"
#include "doubles/faulty_files.h"
#include "doubles/memory_files.h"
#include "support/checkpoint_room.h"
#include "zero/errors.h"

namespace zero::testing::checkpoint_crash_test {
namespace {

constexpr int kRanks = 2;

std::unique_ptr<io::MemoryFileSystem> with_step_1() {
  auto files = std::make_unique<io::MemoryFileSystem>();
  for (const auto& error : save_step_together(*files, kRanks, 1)) EXPECT_EQ(error, "");
  return files;
}

/// Mutations of an undisturbed save of step 2.
std::uint64_t mutations(const SaveOptions& options) {
  auto files = with_step_1();
  io::FaultyFileSystem counting(*files);
  for (const auto& error : save_step_together(counting, kRanks, 2, options)) EXPECT_EQ(error, "");
  EXPECT_EQ(read_step(*files, ""), 2);
  return counting.count();
}

/// What anybody finds must be step 1 or step 2 as a whole; and saving goes on.
void expect_sound(io::FileSystem& files, const std::string& where) {
  const int step = read_step(files, "");
  EXPECT_TRUE(step == 1 || step == 2) << where << ": found " << step;
  for (const auto& found : checkpoint::list_checkpoints(files, "ckpt").complete) {
    EXPECT_EQ(read_step(files, found.tag), found.manifest.global_steps) << where << ", " << found.tag;
  }
  EXPECT_TRUE(checkpoint::list_checkpoints(files, "ckpt").incomplete.empty()) << where;
  for (const auto& error : save_step_together(files, kRanks, 3)) EXPECT_EQ(error, "") << where;
  EXPECT_EQ(read_step(files, ""), 3) << where;
  EXPECT_TRUE(checkpoint::leftovers(files, "ckpt").empty()) << where;
}

void crash_everywhere(const SaveOptions& options, const char* what) {
  const std::uint64_t operations = mutations(options);
  ASSERT_GT(operations, 10u);
  int states = 0;
  for (std::uint64_t k = 0; k < operations; ++k) {
    auto files = with_step_1();
    io::FaultyFileSystem stopping(*files);
    stopping.stop_at_mutation(k);
    const auto errors = save_step_together(stopping, kRanks, 2, options);
    ASSERT_TRUE(stopping.happened()) << k;
    EXPECT_TRUE(!errors[0].empty() || options.keep_last > 0) << "operation " << k;
    std::vector<io::CrashPolicy> policies = {io::CrashPolicy::nothing_unsynced(), io::CrashPolicy::everything()};
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      policies.push_back(io::CrashPolicy::random(k * 100 + seed));
      policies.push_back(io::CrashPolicy::random(k * 100 + seed, io::CrashPolicy::Names::kAny));
    }
    for (const auto& policy : policies) {
      auto after = files->after_crash(policy);
      expect_sound(*after, std::string(what) + ", operation " + std::to_string(k));
      ++states;
    }
  }
  std::printf("%s: %llu of %llu operations, %d states after them: a complete checkpoint in each\n", what,
              static_cast<unsigned long long>(operations), static_cast<unsigned long long>(operations), states);
}

TEST(CheckpointCrash, AtEveryOperationOfASave) { crash_everywhere({}, "save"); }
TEST(CheckpointCrash, AtEveryOperationOfAnAsynchronousSave) { crash_everywhere({.async = true}, "asynchronous save"); }
TEST(CheckpointCrash, AtEveryOperationOfASaveThatPrunes) { crash_everywhere({.keep_last = 1}, "save and prune"); }

/// Step 3 stays, whatever ends the removal of 1 and 2; what is left of these is whole or hidden.
TEST(CheckpointCrash, AtEveryOperationOfAPruning) {
  const auto with_three = [] {
    auto files = with_step_1();
    for (const int step : {2, 3}) {
      for (const auto& error : save_step_together(*files, kRanks, step)) EXPECT_EQ(error, "");
    }
    files->make_folders("ckpt/.saving-0123");
    return files;
  };
  const auto base = with_three();
  const auto copy = [&] { return base->after_crash(io::CrashPolicy::everything()); };
  std::uint64_t operations = 0;
  {
    auto files = copy();
    io::FaultyFileSystem counting(*files);
    EXPECT_EQ(checkpoint::prune(counting, "ckpt", 1, false).removed.size(), 2u);
    operations = counting.count();
  }
  ASSERT_GT(operations, 10u);
  const auto expect_step_3 = [](io::FileSystem& files, const std::string& where) {
    EXPECT_EQ(read_step(files, ""), 3) << where;
    const auto listing = checkpoint::list_checkpoints(files, "ckpt");
    EXPECT_TRUE(listing.incomplete.empty()) << where;
    for (const auto& found : listing.complete) {
      EXPECT_EQ(read_step(files, found.tag), found.manifest.global_steps) << where;
    }
    checkpoint::prune(files, "ckpt", 1, false);
    EXPECT_EQ(checkpoint::list_checkpoints(files, "ckpt").complete.size(), 1u) << where;
    EXPECT_TRUE(checkpoint::leftovers(files, "ckpt").empty()) << where;
    EXPECT_EQ(read_step(files, ""), 3) << where;
  };
  int states = 0, reported = 0;
  for (std::uint64_t k = 0; k < operations; ++k) {
    const std::string where = "operation " + std::to_string(k);
    auto files = copy();
    io::FaultyFileSystem stopping(*files);
    stopping.stop_at_mutation(k);
    EXPECT_THROW(checkpoint::prune(stopping, "ckpt", 1, false), io::SimulatedCrash) << where;
    std::vector<io::CrashPolicy> policies = {io::CrashPolicy::nothing_unsynced(), io::CrashPolicy::everything()};
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      policies.push_back(io::CrashPolicy::random(k * 100 + seed));
      policies.push_back(io::CrashPolicy::random(k * 100 + seed, io::CrashPolicy::Names::kAny));
    }
    for (const auto& policy : policies) {
      expect_step_3(*files->after_crash(policy), where);
      ++states;
    }
    // The same operation fails: an error, unless it is the first try to remove a folder that is not empty.
    auto other = copy();
    io::FaultyFileSystem failing(*other);
    failing.fail_mutation(k, EIO);
    try {
      checkpoint::prune(failing, "ckpt", 1, false);
    } catch (const Error&) {
      ++reported;
    }
    EXPECT_TRUE(failing.happened());
    expect_step_3(failing, where + " failed");
  }
  EXPECT_GE(reported, static_cast<int>(operations) - 2);
  std::printf("prune: %llu of %llu operations, %d states after them: the kept checkpoint in each\n",
              static_cast<unsigned long long>(operations), static_cast<unsigned long long>(operations), states);
}

/// Somebody else fills it once a save has looked how much is free.
class FillingFiles final : public io::FaultyFileSystem {
 public:
  FillingFiles(io::MemoryFileSystem& files, std::uint64_t room) : FaultyFileSystem(files), files_(files), room_(room) {}
  std::uint64_t free_nbytes(const std::string&) override {
    if (!is_filled_.exchange(true)) files_.set_free_nbytes(room_);
    return std::uint64_t{1} << 40;
  }

 private:
  io::MemoryFileSystem& files_;
  const std::uint64_t room_;
  std::atomic<bool> is_filled_{false};
};

/// Room for any part of it: both ranks hear of it at once, also where there is none for the words.
TEST(CheckpointCrash, ADiskThatIsFullInTheMiddleOfASave) {
  constexpr std::uint64_t kEnough = 1 << 24;
  std::uint64_t needed = kEnough;
  {
    auto files = with_step_1();
    files->set_free_nbytes(kEnough);
    for (const auto& error : save_step_together(*files, kRanks, 2, {.async = true})) EXPECT_EQ(error, "");
    needed -= files->free_nbytes("ckpt");
  }
  ASSERT_GT(needed, 4000u);
  int reported = 0;
  for (const bool async : {false, true}) {
    for (std::uint64_t room = 0; room < needed; room += 97) {
      auto files = with_step_1();
      FillingFiles filling(*files, room);
      const auto begin = std::chrono::steady_clock::now();
      const auto errors = save_step_together(filling, kRanks, 2, {.async = async});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << room;
      EXPECT_EQ(errors[0].empty(), errors[1].empty()) << room;
      reported += errors[0].empty() ? 0 : 1;
      files->set_free_nbytes(kEnough);
      expect_sound(*files, "room for " + std::to_string(room));
    }
  }
  EXPECT_GT(reported, 40);
}

TEST(CheckpointCrash, EveryOperationFailsOnce) {
  const std::uint64_t operations = mutations({});
  int failed = 0;
  for (const int error : {EIO, ENOSPC, EROFS, EACCES}) {
    for (std::uint64_t k = 0; k < operations; ++k) {
      auto files = with_step_1();
      io::FaultyFileSystem failing(*files);
      failing.fail_mutation(k, error);
      const auto errors = save_step_together(failing, kRanks, 2);
      // A failed removal of what is no longer needed is no failed save; all else is, on both ranks alike.
      EXPECT_EQ(errors[0].empty(), errors[1].empty()) << k;
      if (!errors[0].empty()) {
        ++failed;
        EXPECT_EQ(errors[0], errors[1]);
        EXPECT_NE(errors[0].find("saving the checkpoint 'step2'"), std::string::npos) << errors[0];
      }
      // Training can go on, and so can saving: nothing is left locked or half there.
      expect_sound(failing, "failing operation " + std::to_string(k));
    }
  }
  EXPECT_GT(failed, static_cast<int>(operations) * 3);
  std::printf("%d of %d failures reported on both ranks, a complete checkpoint after each\n", failed,
              static_cast<int>(operations) * 4);
}

TEST(CheckpointCrash, AFullDiskIsNoticedBeforeTheFirstByte) {
  auto files = with_step_1();
  files->set_free_nbytes(100);
  const auto errors = save_step_together(*files, kRanks, 2);
  EXPECT_NE(errors[1].find("free, the checkpoint needs"), std::string::npos) << errors[1];
  EXPECT_EQ(read_step(*files, ""), 1);
  EXPECT_EQ(checkpoint::leftovers(*files, "ckpt").size(), 0u);
}

TEST(CheckpointCrash, OverwritingATagIsAtomicToo) {
  auto files = with_step_1();
  for (const auto& error : save_step_together(*files, kRanks, 1)) EXPECT_EQ(error, "");
  EXPECT_EQ(read_step(*files, "step1"), 1);
  EXPECT_TRUE(checkpoint::leftovers(*files, "ckpt").empty());
}

// ---- damage
// ------------------------------------------------------------------------------------------------

/// True when the reader refuses with an error of ours.
bool refused(io::FileSystem& files, const std::string& where) {
  try {
    const int step = read_step(files, "step1");
    EXPECT_NE(step, -1) << where << ": wrong values were handed out";
    return false;
  } catch (const Error&) {
    return true;
  }
}

TEST(CheckpointDamage, EveryByteFlippedIsNoticed) {
  auto files = with_step_1();
  std::size_t flips = 0;
  for (const auto& name : {"manifest.json", "rank_00000.safetensors", "rank_00001.safetensors"}) {
    const std::string path = std::string("/ckpt/step1/") + name;
    const auto good = files->bytes(path);
    for (std::size_t i = 0; i < good.size(); ++i) {
      auto bad = good;
      bad[i] ^= static_cast<std::byte>(1u << (i % 8));
      files->set_bytes(path, bad);
      EXPECT_TRUE(refused(*files, path)) << path << ", byte " << i;
      ++flips;
    }
    files->set_bytes(path, good);
  }
  EXPECT_FALSE(refused(*files, "undamaged"));
  std::printf("%zu of %zu flipped bytes noticed\n", flips, flips);
}

TEST(CheckpointDamage, EveryLengthIsNoticed) {
  auto files = with_step_1();
  for (const auto& name : {"manifest.json", "rank_00000.safetensors", "rank_00001.safetensors"}) {
    const std::string path = std::string("/ckpt/step1/") + name;
    const auto good = files->bytes(path);
    for (std::size_t length = 0; length < good.size(); ++length) {
      files->set_bytes(path, {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)});
      EXPECT_TRUE(refused(*files, path)) << path << " cut to " << length;
    }
    auto longer = good;
    longer.push_back(std::byte{0});
    files->set_bytes(path, longer);
    EXPECT_TRUE(refused(*files, path)) << path << " longer by one";
    files->set_bytes(path, good);
  }
}

TEST(CheckpointDamage, MissingAndSwappedFilesAreNamed) {
  const auto error_of = [](io::FileSystem& files) -> std::string {
    try {
      read_step(files, "step1");
      return "";
    } catch (const CheckpointError& error) {
      return error.what();
    }
  };
  {
    auto files = with_step_1();
    files->remove("/ckpt/step1/rank_00001.safetensors");
    EXPECT_NE(error_of(*files).find("lacks its file 'rank_00001.safetensors'"), std::string::npos);
  }
  {
    auto files = with_step_1();
    files->exchange("/ckpt/step1/rank_00000.safetensors", "/ckpt/step1/rank_00001.safetensors");
    EXPECT_NE(error_of(*files), "");
  }
  {
    auto files = with_step_1();
    save_step_together(*files, kRanks, 2);
    files->exchange("/ckpt/step1/rank_00000.safetensors", "/ckpt/step2/rank_00000.safetensors");
    EXPECT_NE(error_of(*files).find("belongs to another checkpoint"), std::string::npos) << error_of(*files);
  }
  {
    auto files = with_step_1();
    files->remove("/ckpt/step1/manifest.json");
    EXPECT_NE(error_of(*files).find("no manifest.json"), std::string::npos) << error_of(*files);
  }
}

TEST(CheckpointTools, VerifyDiffExportAndPrune) {
  io::MemoryFileSystem files;
  constexpr std::int64_t kLarge = 700'001;  // several blocks
  for (int step = 1; step <= 3; ++step) {
    for (const auto& error : save_step_together(files, 3, step, {}, kLarge)) ASSERT_EQ(error, "");
  }
  EXPECT_TRUE(checkpoint::verify(files, "ckpt/step2").problems.empty());
  const auto same = checkpoint::diff(files, "ckpt/step2", "ckpt/step2");
  EXPECT_EQ(same.identical, 5);
  const auto other = checkpoint::diff(files, "ckpt/step1", "ckpt/step2");
  EXPECT_EQ(other.different.size(), 4u);
  EXPECT_GT(other.different[0].differing, kLarge / 2);

  const auto report = checkpoint::export_weights(files, "ckpt", "out", {.max_file_nbytes = 1'000'000});
  EXPECT_EQ(report.tensors, 5);  // weight, its other name, the buffer, the empty one, the one in boxes
  EXPECT_EQ(files.kind("out/model.safetensors.index.json"), io::FileKind::kFile);

  auto bad = files.bytes("/ckpt/step2/rank_00002.safetensors");
  bad[bad.size() - 5] ^= std::byte{4};
  files.set_bytes("/ckpt/step2/rank_00002.safetensors", bad);
  const auto problems = checkpoint::verify(files, "ckpt/step2").problems;
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].text.find("rank_00002.safetensors"), std::string::npos);

  const auto pruned = checkpoint::prune(files, "ckpt", 1, false);
  EXPECT_EQ(pruned.removed, (std::vector<std::string>{"step1", "step2"}));
  EXPECT_EQ(checkpoint::list(files, "ckpt").size(), 1u);
}

}  // namespace
}  // namespace zero::testing::checkpoint_crash_test
