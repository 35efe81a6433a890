// Between hosts step() returns before updated parameters have come: every use waits for them, memory that is read
// without an operator throws or is asked for, and the bits are those of a step that waits.
//
//   overlap_all_gather_test
//   --rank     one rank of an mpirun job
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>

#include "support/layers.h"
#include "support/mpi_job.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"

namespace zero::testing::overlap_all_gather_test {
namespace {

std::string json_of(int stage, const char* store, bool overlaps, const char* update = "after_backward") {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}}, "gradient_clipping": 0.5,
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": {}}},
    "zerotorch": {{"seed": 5, "store": "{}", "progress_thread": "always", "overlap_all_gather": "{}",
      "update": "{}", "unit_numel": 1}}}})",
                     stage, stage == 3 ? 25 : 0, store, overlaps ? "always" : "never", update);
}

LayersImpl& layers_of(const LayersEngine& engine) { return dynamic_cast<LayersImpl&>(engine.module()); }

Values trained_values(const Group& group, const std::string& json) {
  auto engine = layers_engine(group, 3, {}, json);
  train(engine, 2);
  {
    const at::NoGradGuard no_grad;  // the program's own writes, into values that are still to come
    layers_of(engine).first->weight.mul_(0.5);
    layers_of(engine).second->bias.add_(1);
  }
  train(engine, 2);
  return values_of(engine);
}

void expect_same_bits(const Group& group, const char* store) {
  for (int stage = 1; stage <= 3; ++stage) {
    const auto want = trained_values(group, json_of(stage, store, false));
    EXPECT_EQ(differing(trained_values(group, json_of(stage, store, true)), want), Names()) << stage << store;
  }
}

TEST(OverlapAllGather, GivesTheBitsOfAStepThatWaits) {
  for (const int ranks : {2, 3}) {
    expect_all_ok(spawn(ranks, [](const Group& group) { expect_same_bits(group, "copying"); }));
    const OneHostAsSeveral hosts(1);
    expect_all_ok(spawn(ranks, [](const Group& group) { expect_same_bits(group, "copying"); }));
  }
}

TEST(OverlapAllGather, GivesTheBitsOfADelayedUpdate) {
  expect_all_ok(spawn(2, [](const Group& group) {
    const auto values = [&](bool overlaps) {
      auto engine = layers_engine(group, 3, {}, json_of(2, "copying", overlaps, "delayed"));
      train(engine, 4);
      engine.finish_update();
      return values_of(engine);
    };
    EXPECT_EQ(differing(values(true), values(false)), Names());
  }));
}

void expect_raw_access_throws(const at::Tensor& parameter, const std::string& name) {
  try {
    parameter.const_data_ptr();
    ADD_FAILURE() << name << " was read";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("wait_for_parameters"), std::string::npos) << error.what();
  }
}

/// *Collective.*
void expect_loud_or_right(const Group& group, int stage, const char* store) {
  auto engine = layers_engine(group, 3, {}, json_of(stage, store, true));
  auto& layers = layers_of(engine);
  const auto read = [](const at::Tensor& parameter) {
    return at::from_blob(const_cast<void*>(parameter.const_data_ptr()), parameter.sizes(), at::kFloat).clone();
  };
  read(layers.first->bias);
  train(engine, 1);
  expect_raw_access_throws(layers.first->bias, "first.bias");
  const at::Tensor view = layers.first->bias.detach().view({5});
  expect_raw_access_throws(view, "first.bias");
  const at::Tensor used = layers.first->bias.clone();
  EXPECT_TRUE(at::equal(read(layers.first->bias), used));
  EXPECT_TRUE(at::equal(view, used));
  expect_raw_access_throws(layers.second->bias, "second.bias");
  engine.wait_for_parameters();
  const at::Tensor raw = read(layers.second->bias);
  EXPECT_TRUE(at::equal(raw, engine.full_weight("second.bias")));
  EXPECT_TRUE(at::equal(used, engine.full_weight("first.bias")));
  train(engine, 1);
  {
    const GatheredParameters scope(engine);
    EXPECT_FALSE(at::equal(read(layers.second->bias), raw));
  }
}

TEST(OverlapAllGather, RawAccessThrowsUntilValuesHaveCome) {
  for (const int stage : {1, 2}) {
    expect_all_ok(spawn(2, [&](const Group& group) { expect_loud_or_right(group, stage, "copying"); }));
  }
}

TEST(OverlapAllGather, AnEngineThatEndsLeavesTheModuleItsValues) {
  expect_all_ok(spawn(2, [](const Group& group) {
    const auto output = [&](bool overlaps) {
      at::manual_seed(3);
      Layers layers{Shape()};
      {
        auto engine = initialize(layers, json_of(2, "copying", overlaps), {.group = group});
        train(engine, 2);
      }
      return layers->first->weight.sum().item<double>() + layers->second->bias.const_data_ptr<float>()[1];
    };
    EXPECT_EQ(output(true), output(false));
  }));
}

/// A rank evaluates while the others are outside of the library. *Collective.*
void expect_alone(const Group& group, int stage, const char* store, const std::string& file) {
  auto engine = layers_engine(group, 3, {}, json_of(stage, store, true));
  train(engine, 2);
  if (group.rank() == 0) {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(std::isfinite(engine(at::ones({2, 6})).sum().item<double>()));
    std::ofstream(file) << "done";
  } else {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (::access(file.c_str(), F_OK) != 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(::access(file.c_str(), F_OK), 0) << "rank 0 has waited for this rank's program";
  }
  train(engine, 1);
}

TEST(OverlapAllGather, ARankEvaluatesWhileTheOthersAreElsewhere) {
  const TemporaryFolder folder;
  const OneHostAsSeveral hosts(1);
  for (const int stage : {1, 2}) {
    expect_all_ok(spawn(2, [&](const Group& group) {
      expect_alone(group, stage, "copying", folder.file(fmt::format("stage{}", stage)));
    }));
  }
}

TEST(OverlapAllGather, OverMpiAndInMemoryThatAHostShares) {
  if (!mpirun_path()) GTEST_SKIP() << "no MPI in this build";
  for (const auto& [ranks, per_host] : {std::pair{2, 1}, {4, 2}}) {
    const OneHostAsSeveral hosts(per_host);
    const TemporaryFolder folder;
    const MpiJobResult result = run_under_mpirun(ranks, {"--rank", folder.path()}, std::chrono::seconds(120));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_TRUE(result.leftovers.empty());
  }
}

}  // namespace

/// A rank of an mpirun job.
int be_rank(const std::string& folder) {
  const Group group = join_mpi_job();
  for (const char* const store : {"copying", "node_shared"}) {
    expect_same_bits(group, store);
    expect_alone(group, 3, store, fmt::format("{}/{}", folder, store));
  }
  expect_alone(group, 1, "copying", folder + "/stage1");
  expect_loud_or_right(group, 3, "node_shared");
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace zero::testing::overlap_all_gather_test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc >= 3 && std::string_view(argv[1]) == "--rank")
    return zero::testing::overlap_all_gather_test::be_rank(argv[2]);
  return RUN_ALL_TESTS();
}
