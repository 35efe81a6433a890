// Engine::save_checkpoint while training goes on: asynchronous saves, saves that fail, what is kept.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "doubles/faulty_files.h"
#include "persistence/checkpoints.h"
#include "support/engine_hash.h"
#include "support/errors.h"
#include "support/odd_model.h"
#include "support/resume.h"
#include "support/spawn.h"
#include "support/watched_files.h"
#include "zero/zero.h"

namespace zero::testing::checkpoint_save_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::int64_t kDim = 24;
using DeepEngine = ModuleEngine<DeepModel>;

DeepEngine deep_engine(Group group) {
  at::set_num_threads(1);
  at::manual_seed(3);
  return initialize(DeepModel(3, kDim), R"({"train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})",
                    {.group = std::move(group)});
}

void train(DeepEngine& engine, int steps = 1) {
  for (int i = 0; i < steps; ++i) {
    const double index = static_cast<double>(engine.micro_steps() * engine.world_size() + engine.rank());
    const at::Tensor x = at::sin(at::arange(2 * kDim, at::kFloat).view({2, kDim}).mul(0.3).add(index));
    engine.backward(engine(x).square().mean());
    engine.step();
  }
}

std::string latest_in(const std::string& folder) {
  std::string tag;
  std::ifstream(folder + "/latest") >> tag;
  return tag;
}

class CheckpointSave : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder); }
  bool is_there(const std::string& tag) const { return fs::exists(folder + "/" + tag + "/manifest.json"); }
  const std::string folder = fs::temp_directory_path() / fmt::format("checkpoint_save_test_{}", ::getpid());
};

TEST_F(CheckpointSave, ASecondOneWaitsOrIsRefusedAndStagingIsReused) {
  expect_all_ok(spawn(2, [&](Group group) {
    WatchedFiles files(io::system_files());
    auto engine = deep_engine(group);
    persistence::use_files(engine.impl(), files);
    train(engine);
    const auto staging = [&] { return engine.memory_report()[MemoryKind::kStaging].current_nbytes; };
    EXPECT_EQ(staging(), 0);
    const auto first = hash_of(engine);
    files.hold();
    engine.save_checkpoint(folder, "one", "{}", {.async = true});
    // Half of the weights and of both moments.
    const std::int64_t share = 3 * 4 * 3 * (kDim * kDim + kDim) / 2;
    EXPECT_GE(staging(), share);
    EXPECT_LE(staging(), share + (1 << 16));
    const auto staged = staging();

    // Training goes on while nothing is there yet.
    train(engine, 2);
    EXPECT_FALSE(is_there("one"));
    const auto third = hash_of(engine);
    const std::string refused =
        error_of([&] { engine.save_checkpoint(folder, "two", "{}", {.async = true, .refuse_when_busy = true}); });
    EXPECT_TRUE(mentions(refused, "saving the checkpoint 'one'") && mentions(refused, "still under way") &&
                mentions(refused, "refuse_when_busy"))
        << refused;
    EXPECT_FALSE(is_there("one"));

    // Without the option the second one begins when the first is complete, on both ranks.
    std::thread releasing([&] {
      std::this_thread::sleep_for(100ms);
      files.release();
    });
    engine.save_checkpoint(folder, "two", "{}", {.async = true});
    EXPECT_TRUE(is_there("one"));
    releasing.join();
    engine.wait_checkpoint();
    EXPECT_TRUE(is_there("two"));
    EXPECT_EQ(latest_in(folder), "two");
    EXPECT_EQ(staging(), staged);
    EXPECT_EQ(engine.memory_report()[MemoryKind::kStaging].peak_nbytes, staged);
    engine.save_checkpoint(folder, "three", "{}", {.async = true, .refuse_when_busy = true});
    engine.wait_checkpoint();

    // Each has the values of its moment.
    auto other = deep_engine(group);
    EXPECT_EQ(other.load_checkpoint(folder, "one").global_steps, 1);
    EXPECT_EQ(hash_of(other), first);
    EXPECT_EQ(other.load_checkpoint(folder, "two").global_steps, 3);
    EXPECT_EQ(hash_of(other), third);
  }));
}

TEST_F(CheckpointSave, AnEngineThatGoesFinishesItsAsynchronousSave) {
  expect_all_ok(spawn(2, [&](Group group) {
    {
      auto engine = deep_engine(group);
      train(engine);
      engine.save_checkpoint(folder, "one", "{}", {.async = true});
    }
    group.barrier().wait();
    // Rank 0 may have given up on a rank that was slower; what is there is complete or nothing is.
    if (group.rank() == 0) {
      for (const auto& item : checkpoint::list(folder)) EXPECT_TRUE(item.complete) << item.problem;
    }
  }));
}

TEST_F(CheckpointSave, AnAsynchronousErrorSurfacesOnceAtTheNextCall) {
  expect_all_ok(spawn(2, [&](Group group) {
    io::FaultyFileSystem files(io::system_files());
    auto engine = deep_engine(group);
    persistence::use_files(engine.impl(), files);
    train(engine);
    engine.save_checkpoint(folder, "good");
    const std::function<void()> calls[] = {
        [&] { engine.wait_checkpoint(); },
        [&] { engine.save_checkpoint(folder, "next"); },
        [&] { engine.load_checkpoint(folder); },
    };
    for (const auto& call : calls) {
      for (const int broken : {0, 1}) {
        train(engine);
        // On rank 0 after the hidden folder and the lock: in its own file.
        if (group.rank() == broken) files.fail_mutation(files.count() + (broken == 0 ? 6 : 1), ENOSPC);
        engine.save_checkpoint(folder, "bad", "{}", {.async = true});
        train(engine);  // hears nothing and goes on
        const std::string error = error_of(call);
        EXPECT_TRUE(mentions(error, "saving the checkpoint 'bad'") &&
                    mentions(error, fmt::format("rank {}: ", broken)) && mentions(error, "No space left on device"))
            << error;
        EXPECT_TRUE(files.happened() || group.rank() != broken);
        EXPECT_FALSE(is_there("bad"));
        group.barrier().wait();
        EXPECT_EQ(error_of(call), "");
      }
    }
    EXPECT_EQ(latest_in(folder), "next");
  }));
}

TEST_F(CheckpointSave, TrainingGoesOnAfterEveryFailure) {
  expect_all_ok(spawn(2, [&](Group group) {
    io::FaultyFileSystem files(io::system_files());
    auto engine = deep_engine(group);
    persistence::use_files(engine.impl(), files);
    train(engine);
    engine.save_checkpoint(folder, "step1");
    const auto before = files.count();
    engine.save_checkpoint(folder, "counted", "{}", {.keep_last = 2});
    const auto mine = static_cast<std::int64_t>(files.count() - before);
    std::vector<std::int64_t> operations(2);
    group.all_gather(&mine, operations.data(), std::vector<std::int64_t>(2, 1), DType::kInt64).wait();
    int tried = 0, failed = 0;
    for (const int error : {ENOSPC, EIO, EROFS}) {
      for (const int rank : {0, 1}) {
        for (std::int64_t k = 0; k < operations[static_cast<std::size_t>(rank)]; ++k) {
          train(engine);
          if (group.rank() == rank) files.fail_mutation(files.count() + static_cast<std::uint64_t>(k), error);
          const std::string text = error_of([&] {
            engine.save_checkpoint(folder, fmt::format("at{}", engine.global_steps()), "{}",
                                   {.async = k % 2 == 1, .keep_last = 2});
            engine.wait_checkpoint();
          });
          ++tried;
          if (!text.empty()) {
            ++failed;
            EXPECT_TRUE(mentions(text, "saving the checkpoint 'at")) << text;
          }
          group.barrier().wait();
          // What a load without a tag takes is there, whole.
          if (group.rank() == 0) {
            EXPECT_TRUE(checkpoint::verify(folder).problems.empty());
            EXPECT_TRUE(is_there(latest_in(folder)));
          }
          group.barrier().wait();
        }
      }
    }
    EXPECT_GT(failed, tried / 2);
    if (group.rank() == 0) {
      std::fprintf(stderr, "%d of %d failing operations: %d reported, training went on after each\n", tried, tried,
                   failed);
    }
    engine.save_checkpoint(folder, "last", "{}", {.keep_last = 2});
    group.barrier().wait();
    const auto there = checkpoint::list(folder);
    EXPECT_EQ(there.size(), 2u);
    EXPECT_EQ(there.back().tag, "last");
    // Not one of them left a trace in the run.
    auto other = deep_engine(group);
    train(other, static_cast<int>(engine.global_steps()));
    EXPECT_EQ(hash_of(other), hash_of(engine));
    other.load_checkpoint(folder);
    EXPECT_EQ(hash_of(other), hash_of(engine));
  }));
}

}  // namespace
}  // namespace zero::testing::checkpoint_save_test
