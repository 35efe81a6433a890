// A module on an accelerator whose shards NCCL moves, beside shared memory and beside MPI. The device and its NCCL are
// simulated (support/simulated_nccl.h).
//
//   --rank     one rank of an mpirun job: prints outcomes
//   --astray   one of ranks that use different layers
//   --late     one of ranks of which the last one is late
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "dist/accelerator.h"
#include "support/errors.h"
#include "support/mpi_job.h"
#include "support/simulated_nccl.h"

namespace zero::testing::accelerator_nccl_test {
namespace {

/// On a GPU, where several ranks take long to connect, some of them.
bool is_of_nccl(const std::string& name, const Setting& setting) {
  return !on_gpu() || !setting.more.empty() || name == "stage 1" || name == "stage 3";
}
const std::size_t kSettingsOfNccl = on_gpu() ? 8 : 17;

/// Every setting on the host and, moved by NCCL, on the device: "name<TAB>outcome".
std::vector<std::string> nccl_outcomes(const Group& group, int seeds) {
  std::vector<std::string> results;
  const at::Device host = on_gpu() ? device_with(0) : at::Device(at::kCPU);  // a GPU's operators round as they like
  if (!on_gpu()) simulated::start({});
  use_nccl();
  use_kernels(true);
  for (const auto& [name, on_host] : settings_of_kernels()) {
    if (!is_of_nccl(name, on_host)) continue;
    results.push_back(name + "\t" + train(group, host, on_host));
    Setting there = on_host;
    there.states = "none";
    there.own = kByNccl;
    for (int seed = 0; seed < seeds; ++seed) {
      const auto device = device_with(static_cast<std::uint64_t>(1000 * seed + group.rank()));
      results.push_back(name + "\t" + train(group, device, there));
      finish();
    }
  }
  return results;
}

/// Each setting has one outcome; how many lines there are.
std::size_t expect_one_outcome_each(const std::vector<std::string>& lines, const std::string& where) {
  std::map<std::string, std::set<std::string>> by_name;
  for (const auto& line : lines) by_name[line.substr(0, line.find('\t'))].insert(line.substr(line.find('\t') + 1));
  EXPECT_EQ(by_name.size(), kSettingsOfNccl) << where;
  for (const auto& [name, results] : by_name) EXPECT_EQ(results.size(), 1u) << name << ", " << where;
  return lines.size();
}

/// Between hosts, or where the program wants it, NCCL moves what ranks of one host would read in place.
TEST(Accelerator, NcclMovesTheSameBits) {
  if (!has_nccl()) GTEST_SKIP() << kNoNccl;
  const int seeds = on_gpu() ? 1 : is_slow() ? 50 : 3;
  for (int ranks = 2; ranks <= (on_gpu() ? 3 : 4); ++ranks) {
    const OneHostAsSeveral hosts(ranks == 3 ? 1 : ranks);
    const auto lines = lines_of(ranks, [&](const Group& group) { return nccl_outcomes(group, seeds); });
    EXPECT_EQ(expect_one_outcome_each(lines, fmt::format("{} ranks", ranks)),
              kSettingsOfNccl * static_cast<std::size_t>(seeds + 1));
  }
}

TEST(Accelerator, NcclMovesTheSameBitsBesideMpi) {
  if (!has_nccl()) GTEST_SKIP() << kNoNccl;
  if (!mpirun_path()) GTEST_SKIP() << "no MPI in this build";
  for (const int ranks : {2, 3}) {
    const OneHostAsSeveral hosts(1);
    const MpiJobResult result = run_under_mpirun(ranks, {"--rank"}, std::chrono::seconds(200));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::vector<std::string> lines;
    std::istringstream in(result.output);
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with("outcome ")) lines.push_back(line.substr(8));
    }
    EXPECT_EQ(expect_one_outcome_each(lines, fmt::format("{} ranks over MPI", ranks)), kSettingsOfNccl * 2);
  }
}

constexpr const char* kBf16 = R"(, "bf16": {"enabled": true})";

/// What training on the host gives, before the device begins.
std::string train_on_host(Group group) {
  simulated::use_kernels(true);
  simulated::start({});
  return train(group, at::kCPU, {.stage = 2, .more = kBf16});
}

/// The same with states on the device.
std::string train_there(Group group) {
  const auto device = device_with(static_cast<std::uint64_t>(group.rank()));
  std::string outcome = train(group, device, {.stage = 2, .more = kBf16, .states = "none"});
  simulated::finish();
  return outcome;
}

/// GPUs that the driver keeps apart: NCCL moves what ranks would read in place, and a notice says so.
TEST(Accelerator, NcclDoesWhereDevicesAreApart) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  for (int ranks = 2; ranks <= 3; ++ranks) {
    const auto lines = lines_of(ranks, [&](Group group) {
      std::vector<std::string> results{train_on_host(group)};
      simulated::use_nccl(true);
      // On one rank alone, too.
      if (group.rank() == ranks - 1 || ranks == 2) simulated::share_memory(simulated::Sharing::kRefusesToMap);
      results.push_back(train_there(group));
      Small model = make_small(simulated::device());
      const auto engine = initialize(model, json_of({.accumulation = 1, .states = "none"}), {.group = group});
      const std::string said = notices_of(engine);
      EXPECT_TRUE(mentions(said, "cannot map each other's memory") && mentions(said, "NCCL moves")) << said;
      return results;
    });
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0], lines[1]) << ranks;
  }
}

/// Between hosts nobody has to ask for NCCL. Without it on one of them, what is sharded is in host memory.
TEST(Accelerator, NcclDoesBetweenHosts) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  const OneHostAsSeveral hosts(1);
  for (int ranks = 2; ranks <= 3; ++ranks) {
    const auto lines = lines_of(ranks, [&](Group group) {
      std::vector<std::string> results{train_on_host(group)};
      for (const bool everywhere : {true, false}) {
        simulated::use_nccl(everywhere || group.rank() == 0);
        results.push_back(train_there(group));
        Small model = make_small(simulated::device());
        const auto engine = initialize(model, json_of({.accumulation = 1, .states = "none"}), {.group = group});
        const std::string said = notices_of(engine);
        EXPECT_EQ(mentions(said, "in host memory, as NCCL cannot move it between GPUs (rank 1: "), !everywhere) << said;
        EXPECT_EQ(engine.memory_report()[MemoryKind::kOptimizer].device_nbytes > 0, everywhere);
        simulated::finish();
      }
      return results;
    });
    ASSERT_EQ(lines.size(), 3u);
    for (const auto& line : lines) EXPECT_EQ(line, lines[0]) << ranks;
  }
}

/// Whatever stands in the way, all ranks have the error, and may go on with what it says.
TEST(Accelerator, DevicesThatCannotReadEachOthersMemoryAreAnError) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  using simulated::Sharing;
  struct Case {
    Sharing sharing;
    bool with_nccl;
    const char* own;
    const char* words;
  };
  for (const Case& one :
       {Case{Sharing::kRefusesToMap, false, "", "NCCL cannot move"},
        Case{Sharing::kRefusesToMap, true, R"(, "device_transport": "shared")", "device_transport to 'nccl'"},
        Case{Sharing::kMapsOtherMemory, true, "", "rank 1 reads other bytes"}}) {
    expect_all_ok(spawn(2, [&](Group group) {
      const auto device = device_with(1);
      simulated::use_nccl(one.with_nccl);
      if (group.rank() == 1) simulated::share_memory(one.sharing);
      Small model = make_small(device);
      try {
        initialize(model, json_of({.accumulation = 1, .states = "none", .own = one.own}), {.group = group});
        ADD_FAILURE() << one.words;
      } catch (const IoError& error) {
        const std::string said = error.what();
        EXPECT_TRUE(mentions(said, one.words) && mentions(said, "rank 1") && mentions(said, "'cpu'")) << said;
      }
      auto engine = initialize(model, json_of({.accumulation = 1}), {.group = group});
      engine.backward(model->loss(tokens_of(0, group.rank(), device)));
      engine.step();
      simulated::finish();
    }));
  }
}

TEST(Accelerator, WhatNcclReportsEndsAll) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  const auto began = std::chrono::steady_clock::now();
  const auto results = spawn(2, [&](Group group) {
    simulated::use_nccl(true);
    const auto device = device_with(static_cast<std::uint64_t>(group.rank()));
    Small model = make_small(device);
    auto engine =
        initialize(model, json_of({.stage = 2, .accumulation = 1, .states = "none", .own = kByNccl}), {.group = group});
    for (int step = 0; step < 3; ++step) {
      if (group.rank() == 1 && step == 1) simulated::break_nccl();
      engine.backward(model->loss(tokens_of(step, group.rank(), device)));
      engine.step();
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
  for (const auto& result : results) {
    EXPECT_FALSE(result.ok);
    EXPECT_TRUE(mentions(result.error, "NCCL") && mentions(result.error, "error")) << result.error;
  }
}

/// A layer of its own for each of two ranks.
struct RoutedImpl : torch::nn::Module {
  RoutedImpl() {
    common = register_module("common", torch::nn::Linear(13, 29));
    first = register_module("first", torch::nn::Linear(29, 29));
    second = register_module("second", torch::nn::Linear(29, 29));
  }
  at::Tensor loss(const at::Tensor& x, bool by_second) {
    const at::Tensor hidden = at::tanh(common(x));
    return (by_second ? second(hidden) : first(hidden)).square().mean();
  }
  torch::nn::Linear common{nullptr}, first{nullptr}, second{nullptr};
};
TORCH_MODULE(Routed);

/// Ranks use another layer at each step: the same one as the other rank at no step. The norms.
std::string train_routed(Group group, at::Device device, int stage, const std::string& own) {
  at::set_num_threads(1);
  at::manual_seed(3);
  Routed model;
  to_device(*model, device);
  auto engine = initialize(
      model, json_of({.stage = stage, .accumulation = 2, .states = own.empty() ? "cpu" : "none", .own = own}),
      {.group = group});
  std::string norms;
  for (int step = 0; step < 6; ++step) {
    at::manual_seed(100 + 10 * step + group.rank());
    engine.backward(model->loss(at::randn({4, 13}).to(device), (step + group.rank()) % 2 == 1));
    engine.step();
    norms += fmt::format("{:a} ", engine.grad_norm());
  }
  return norms;
}

TEST(Accelerator, RanksMayUseDifferentParametersByNccl) {
  if (!has_nccl()) GTEST_SKIP() << kNoNccl;
  const auto lines = lines_of(2, [&](Group group) {
    std::vector<std::string> results;
    use_nccl();
    use_kernels(true);
    if (!on_gpu()) simulated::start({});
    results.push_back(train_routed(group, on_gpu() ? device_with(0) : at::Device(at::kCPU), 2, ""));
    for (int seed = 0; seed < 4; ++seed) {
      results.push_back(
          train_routed(group, device_with(static_cast<std::uint64_t>(10 * seed + group.rank())), seed % 3, kByNccl));
      finish();
    }
    return results;
  });
  ASSERT_EQ(lines.size(), 5u);
  for (const auto& line : lines) EXPECT_EQ(line, lines[0]);
  // What a rank alone wants to have whole, NCCL cannot bring.
  const auto began = std::chrono::steady_clock::now();
  const auto results = spawn(3, [&](Group group) {
    use_nccl();
    train_routed(group, device_with(static_cast<std::uint64_t>(group.rank())), 3, kByNccl);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
  for (const auto& result : results) {
    EXPECT_FALSE(result.ok);
    EXPECT_TRUE(mentions(result.error, "leaf_module")) << result.error;
  }
}

/// Over MPI no rank sees of another that it waits, nor whether it is only late.
TEST(Accelerator, RanksThatUseDifferentParametersByNcclBesideMpiEndWithinSeconds) {
  if (!has_nccl()) GTEST_SKIP() << kNoNccl;
  if (!mpirun_path()) GTEST_SKIP() << "no MPI in this build";
  const OneHostAsSeveral hosts(1);
  for (const int ranks : {2, 3}) {
    const MpiJobResult result = run_under_mpirun(ranks, {"--astray"}, std::chrono::seconds(100));
    EXPECT_NE(result.exit_code, 0) << result.output;
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_TRUE(mentions(error_of_rank(result, rank), "leaf_module")) << result.output;
  }
}

TEST(Accelerator, ARankMayBeLateByNcclBesideMpi) {
  if (!has_nccl()) GTEST_SKIP() << kNoNccl;
  if (!mpirun_path()) GTEST_SKIP() << "no MPI in this build";
  const OneHostAsSeveral hosts(1);
  const MpiJobResult result = run_under_mpirun(3, {"--late"}, std::chrono::seconds(100));
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

}  // namespace

/// Ranks of an mpirun job that wait for each other.
int go_astray() {
  const Group group = join_mpi_job();
  try {
    use_nccl();
    use_kernels(true);
    train_routed(group, device_with(static_cast<std::uint64_t>(group.rank())), 3, kByNccl);
    return 0;
  } catch (const std::exception& error) {
    report_error(group.rank(), error.what());
    return 1;
  }
}

/// Ranks of an mpirun job that wait for the last one for longer than those that wait for each other are given.
int be_late() {
  const Group group = join_mpi_job();
  use_nccl();
  use_kernels(true);
  const auto device = device_with(static_cast<std::uint64_t>(group.rank()));
  Small model = make_small(device);
  auto engine =
      initialize(model, json_of({.stage = 3, .accumulation = 1, .states = "none", .own = kByNccl}), {.group = group});
  for (int step = 0; step < 3; ++step) {
    if (step == 1 && group.rank() == group.size() - 1) std::this_thread::sleep_for(std::chrono::seconds(20));
    engine.backward(model->loss(tokens_of(step, group.rank(), device)));
    engine.step();
  }
  return 0;
}

/// A rank of an mpirun job.
int be_rank() {
  const Group group = join_mpi_job();
  for (const std::string& line : nccl_outcomes(group, 1)) {
    if (group.rank() == 0) std::printf("outcome %s\n", line.c_str());
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace zero::testing::accelerator_nccl_test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using namespace zero::testing::accelerator_nccl_test;
  const std::string_view role = argc >= 2 ? argv[1] : "";
  if (role == "--rank") return be_rank();
  if (role == "--astray") return go_astray();
  if (role == "--late") return be_late();
  return RUN_ALL_TESTS();
}
