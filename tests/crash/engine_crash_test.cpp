// A whole engine on files that stop, lose power, fail and are damaged: after each, a load finds the newest
// complete checkpoint, and training continues with the bits of the run that was never disturbed.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>

#include "doubles/faulty_files.h"
#include "doubles/memory_files.h"
#include "persistence/checkpoints.h"
#include "support/engine_hash.h"
#include "support/errors.h"
#include "support/odd_model.h"
#include "support/resume.h"
#include "zero/zero.h"

namespace zero::testing::engine_crash_test {
namespace {

using DeepEngine = ModuleEngine<DeepModel>;

DeepEngine deep_engine(std::uint64_t seed) {
  at::set_num_threads(1);
  at::manual_seed(seed);
  return initialize(DeepModel(2, 6), R"({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})",
                    {.group = Group()});
}

void train(DeepEngine& engine) {
  const auto index = static_cast<double>(engine.micro_steps());
  const at::Tensor x = at::sin(at::arange(12, at::kFloat).view({2, 6}).mul(0.3).add(index)).to(at::kBFloat16);
  engine.backward(engine(x).to(at::kFloat).square().mean());
  engine.step();
}

std::unique_ptr<io::MemoryFileSystem> copy_of(const io::MemoryFileSystem& files) {
  return files.after_crash(io::CrashPolicy::everything());
}

/// An engine after its second step, a folder with a checkpoint of the first, and another engine that loads.
class EngineCrash : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int step = 1; step <= 4; ++step) {
      train(other_);
      hashes_[step] = hash_of(other_);
    }
    persistence::use_files(saving_.impl(), with_step_1_);
    train(saving_);
    saving_.save_checkpoint("ckpt", "step1");
    train(saving_);
  }
  /// Before the files that they use go.
  void leave_files() {
    persistence::use_files(saving_.impl(), with_step_1_);
    persistence::use_files(other_.impl(), with_step_1_);
  }

  /// Loads from those files and goes on for a step; returns the step that was loaded.
  int expect_sound(io::FileSystem& files, const std::string& where, const LoadOptions& options = {}) {
    persistence::use_files(other_.impl(), files);
    const auto step = static_cast<int>(other_.load_checkpoint("ckpt", "", options).global_steps);
    EXPECT_EQ(hash_of(other_), hashes_[step]) << where;
    train(other_);
    EXPECT_EQ(hash_of(other_), hashes_[step + 1]) << where;
    return step;
  }

  std::uint64_t operations_of_a_save(const std::string& tag, const SaveOptions& options) {
    const auto files = copy_of(with_step_1_);
    io::FaultyFileSystem counting(*files);
    persistence::use_files(saving_.impl(), counting);
    saving_.save_checkpoint("ckpt", tag, "{}", options);
    saving_.wait_checkpoint();
    EXPECT_EQ(expect_sound(*files, "undisturbed"), 2);
    leave_files();
    return counting.count();
  }

  std::map<int, std::uint64_t> hashes_;
  io::MemoryFileSystem with_step_1_;
  DeepEngine saving_ = deep_engine(1);
  DeepEngine other_ = deep_engine(1);
};

TEST_F(EngineCrash, AtEveryOperationOfASave) {
  struct Case {
    const char* what;
    const char* tag;
    SaveOptions options;
  };
  for (const auto& [what, tag, options] :
       {Case{"save", "step2", {}}, Case{"asynchronous save", "step2", {.async = true}},
        Case{"save and prune", "step2", {.keep_last = 1}}, Case{"save over the same tag", "step1", {}}}) {
    const auto operations = operations_of_a_save(tag, options);
    int states = 0;
    std::map<int, int> found;
    for (std::uint64_t k = 0; k < operations; ++k) {
      const auto files = copy_of(with_step_1_);
      io::FaultyFileSystem stopping(*files);
      stopping.stop_at_mutation(k);
      persistence::use_files(saving_.impl(), stopping);
      error_of([&] {
        saving_.save_checkpoint("ckpt", tag, "{}", options);
        saving_.wait_checkpoint();
      });
      EXPECT_TRUE(stopping.happened());
      std::vector<io::CrashPolicy> policies = {io::CrashPolicy::nothing_unsynced(), io::CrashPolicy::everything()};
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        policies.push_back(io::CrashPolicy::random(k * 10 + seed));
        policies.push_back(io::CrashPolicy::random(k * 10 + seed, io::CrashPolicy::Names::kAny));
      }
      for (const auto& policy : policies) {
        const auto after = files->after_crash(policy);
        const std::string where = "operation " + std::to_string(k);
        ++found[expect_sound(*after, where)];
        // The run saves again where it crashed, one step later.
        const auto step = other_.global_steps();
        EXPECT_EQ(error_of([&] { other_.save_checkpoint("ckpt", "again"); }), "") << where;
        EXPECT_EQ(expect_sound(*after, where), step) << where;
        ++states;
        leave_files();
      }
    }
    EXPECT_GT(found[1], 0);
    EXPECT_GT(found[2], 0);
    std::printf("%s: %llu of %llu operations, %d states: %d went on from step 1, %d from step 2\n", what,
                static_cast<unsigned long long>(operations), static_cast<unsigned long long>(operations), states,
                found[1], found[2]);
  }
}

TEST_F(EngineCrash, EveryReadOfALoadFailsOnce) {
  persistence::use_files(saving_.impl(), with_step_1_);
  saving_.save_checkpoint("ckpt", "step2");
  io::FaultyFileSystem counting(with_step_1_);
  expect_sound(counting, "undisturbed");
  const auto reads = counting.read_count();
  int reported = 0;
  for (std::uint64_t k = 0; k < reads; ++k) {
    io::FaultyFileSystem failing(with_step_1_);
    failing.fail_read(k, EIO);
    persistence::use_files(other_.impl(), failing);
    const std::string error = error_of([&] { other_.load_checkpoint("ckpt"); });
    EXPECT_TRUE(failing.happened());
    EXPECT_NE(error.find("Input/output error"), std::string::npos) << k << ": " << error;
    reported += !error.empty();
    EXPECT_EQ(expect_sound(failing, "after read " + std::to_string(k)), 2);
    leave_files();
  }
  std::printf("%d of %d failing reads of a load reported\n", reported, static_cast<int>(reads));
}

TEST_F(EngineCrash, DamageIsAnErrorOrAFallBackNeverAWrongLoad) {
  persistence::use_files(saving_.impl(), with_step_1_);
  saving_.save_checkpoint("ckpt", "step2");
  int damages = 0;
  const auto expect_noticed = [&](const std::string& what) {
    persistence::use_files(other_.impl(), with_step_1_);
    // Step 2 by its name is an error; the newest that is intact, when asked for, is step 1.
    EXPECT_NE(error_of([&] { other_.load_checkpoint("ckpt", "step2"); }), "") << what;
    EXPECT_EQ(expect_sound(with_step_1_, what, {.fall_back = true}), 1) << what;
    ++damages;
  };
  for (const std::string name : {"manifest.json", "rank_00000.safetensors"}) {
    const std::string path = "/ckpt/step2/" + name;
    const auto good = with_step_1_.bytes(path);
    for (std::size_t i = 0; i < good.size(); i += 13) {
      auto bad = good;
      bad[i] ^= static_cast<std::byte>(1u << (i % 8));
      with_step_1_.set_bytes(path, bad);
      expect_noticed(name + ", byte " + std::to_string(i));
    }
    for (std::size_t length = 0; length < good.size(); length += 101) {
      with_step_1_.set_bytes(path, {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)});
      expect_noticed(name + " cut to " + std::to_string(length));
    }
    with_step_1_.set_bytes(path, with_step_1_.bytes("/ckpt/step1/" + name));
    expect_noticed(name + " of the other step");
    with_step_1_.remove(path);
    expect_noticed(name + " gone");
    with_step_1_.create(path)->close();
    with_step_1_.set_bytes(path, good);
    EXPECT_EQ(expect_sound(with_step_1_, "whole again"), 2);
  }
  std::printf("%d of %d damages: an error, and a clean fall-back\n", damages, damages);
}

}  // namespace
}  // namespace zero::testing::engine_crash_test
