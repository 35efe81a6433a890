// Masters and optimizer states on a disk: the same curve as in memory for every optimizer, stage and number of ranks,
// from and to checkpoints of the other tier; and what becomes of a disk that fails, and of a process that is killed.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <tuple>

#include "doubles/faulty_files.h"
#include "engine/engine_impl.h"
#include "engine/offload_files.h"
#include "io/posix_files.h"
#include "support/bits.h"
#include "support/engine_hash.h"
#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::offload_test {
namespace {

/// About 21,000 parameters, in units of their own.
struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int layers = 5) {
    for (int i = 0; i < layers; ++i)
      this->layers.push_back(register_module(fmt::format("layer{}", i), torch::nn::Linear(64, 64)));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = at::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Mlp);

struct Setting {
  int stage = 3;
  bool bf16 = true;
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
  std::string nvme_path = {};        ///< of masters and states; empty: in memory
  std::string gradients_path = {};   ///< of their sums
  std::string parameters_path = {};  ///< of parameters
  bool step_in_backward = false;
  bool frozen = false;  ///< the second layer, from the beginning
  std::string store = "auto";
  std::string more = {};  ///< of the JSON, with a comma before it

  std::string json() const {
    return fmt::format(R"({{"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2,
      "gradient_clipping": {}, "optimizer": {},
      "bf16": {{"enabled": {}, "check_grad_overflow": false}},
      "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0, "sub_group_size": 1024,
        "offload_optimizer": {{"device": "{}", "nvme_path": "{}", "buffer_count": 3}},
        "offload_param": {{"device": "{}", "nvme_path": "{}", "buffer_count": 3}}}},
      "aio": {{"block_size": 4096, "queue_depth": 4}},
      "zerotorch": {{"seed": 5, "unit_numel": 4200, "store": "{}", "update": "{}",
        "offload_gradients": {{"device": "{}", "nvme_path": "{}", "buffer_count": 3}}}}{}}})",
                       step_in_backward ? 0 : 0.5, optimizer, bf16, stage, nvme_path.empty() ? "none" : "nvme",
                       nvme_path, parameters_path.empty() ? "none" : "nvme", parameters_path, store,
                       step_in_backward ? "in_backward" : "after_backward", gradients_path.empty() ? "none" : "nvme",
                       gradients_path, more);
  }
};

using MlpEngine = ModuleEngine<Mlp>;

MlpEngine make_engine(Group group, const Setting& run) {
  at::set_num_threads(1);
  at::manual_seed(3);
  Config config = Config::from_text(run.json());
  if (run.step_in_backward) config.train_batch_size = 2 * group.size(), config.gradient_accumulation_steps = 1;
  Mlp mlp;
  if (run.frozen) {
    for (at::Tensor& parameter : mlp->layers[1]->parameters()) parameter.requires_grad_(false);
  }
  return initialize(mlp, config, {.group = std::move(group)});
}

/// The same global batch whatever the number of ranks.
void train_micro_batch(
    MlpEngine& engine, const std::function<void()>& before_step = [] {}) {
  const double index = static_cast<double>(engine.micro_steps() * engine.world_size() + engine.rank());
  const at::Tensor x = at::sin(at::arange(128, at::kFloat).view({2, 64}).mul(0.7).add(index));
  engine.backward(engine(x.to(engine.module().parameters().front().scalar_type())).to(at::kFloat).square().sum());
  before_step();
  engine.step();
}

void train_steps(MlpEngine& engine, int steps) {
  const std::int64_t until = engine.global_steps() + steps;
  while (engine.global_steps() < until) train_micro_batch(engine);
}

const std::vector<std::string> kOptimizers = {
    R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1, "amsgrad": true}})",
    R"({"type": "AdamW8bit", "params": {"lr": 0.01, "weight_decay": 0.1}})",
    R"({"type": "SGD", "params": {"lr": 0.01}})",
    R"({"type": "Adagrad", "params": {"lr": 0.01, "initial_accumulator_value": 0.5}})",
    R"({"type": "RMSprop", "params": {"lr": 0.001, "momentum": 0.9, "centered": true, "eps": 0.01}})",
    R"({"type": "Lion", "params": {"lr": 0.001, "weight_decay": 0.1}})",
    R"({"type": "AdEMAMix", "params": {"weight_decay": 0.1, "t_alpha": 3, "t_beta3": 8}})",
    R"({"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1}})",
    R"({"type": "Adafactor", "params": {"lr": 0.01}})",
    R"({"type": "Muon", "params": {"lr": 0.01, "momentum": 0.9}})"};

/// Every combination over two ranks; over other numbers each optimizer at one stage, in both precisions.
void compare_tiers(const Group& group, const std::string& folder) {
  for (std::size_t index = 0; index < kOptimizers.size(); ++index) {
    const std::string& optimizer = kOptimizers[index];
    for (int stage = 0; stage <= 3; ++stage) {
      if (group.size() != 2 && (index + static_cast<std::size_t>(group.size())) % 4 != static_cast<std::size_t>(stage))
        continue;
      for (const bool bf16 : {false, true}) {
        Setting run{.stage = stage, .bf16 = bf16, .optimizer = optimizer};
        auto in_memory = make_engine(group, run);
        run.nvme_path = folder;
        auto on_disk = make_engine(group, run);
        train_steps(in_memory, 4);
        train_steps(on_disk, 4);
        ASSERT_EQ(hash_of(on_disk), hash_of(in_memory)) << run.json();
        const MemoryReport memory = on_disk.memory_report();
        EXPECT_TRUE(memory.nvme_nbytes > 0 || !bf16) << run.json();  // masters
        EXPECT_EQ(memory.nvme_nbytes > 0, memory[MemoryKind::kOffload].current_nbytes > 0) << run.json();
        EXPECT_EQ(memory[MemoryKind::kMaster].current_nbytes, 0) << run.json();
        if (stage == 0 || optimizer.find("Adafactor") != std::string::npos ||
            optimizer.find("Muon") != std::string::npos)
          continue;
        // Beside states on the disk and in memory.
        if (index % 2) run.nvme_path.clear();
        run.gradients_path = folder;
        auto gradients_on_disk = make_engine(group, run);
        train_steps(gradients_on_disk, 4);
        ASSERT_EQ(hash_of(gradients_on_disk), hash_of(in_memory)) << run.json();
        EXPECT_EQ(gradients_on_disk.grad_norm(), in_memory.grad_norm()) << run.json();
        const MemoryReport without = gradients_on_disk.memory_report();
        EXPECT_EQ(without[MemoryKind::kGradients].peak_nbytes, 0) << run.json();
        EXPECT_GT(without[MemoryKind::kOffload].current_nbytes, 0) << run.json();
      }
    }
  }
}

class Offload : public ::testing::TestWithParam<int> {
 protected:
  TemporaryFolder folder_;
  const int ranks_ = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Ranks, Offload, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(Offload, EveryOptimizerTrainsAsInMemory) {
  expect_all_ok(
      spawn(ranks_, [&](Group group) { compare_tiers(group, folder_.path()); }, {.timeout = std::chrono::minutes(3)}));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_P(Offload, CheckpointsGoFromTierToTier) {
  expect_all_ok(spawn(ranks_,
                      [&](Group group) {
                        for (int stage = 0; stage <= 3; ++stage) {
                          for (const bool from_disk : {false, true}) {
                            Setting run{.stage = stage, .nvme_path = from_disk ? folder_.path() : ""};
                            auto first = make_engine(group, run);
                            train_steps(first, 2);
                            // Asynchronous: states on a disk stream, they are not copied into memory.
                            first.save_checkpoint(folder_.file("ckpt"), {}, {}, {.async = true});
                            first.wait_checkpoint();
                            train_steps(first, 2);
                            run.nvme_path = from_disk ? "" : folder_.path();
                            auto second = make_engine(group, run);
                            second.load_checkpoint(folder_.file("ckpt"));
                            train_steps(second, 2);
                            EXPECT_EQ(hash_of(second), hash_of(first)) << run.json();
                          }
                        }
                      },
                      {.timeout = std::chrono::minutes(2)}));
}

/// Saved inside a window, whose sums go from tier to tier.
TEST_P(Offload, SumsOfGradientsGoFromTierToTier) {
  expect_all_ok(spawn(ranks_,
                      [&](Group group) {
                        for (int stage = 1; stage <= 3; ++stage) {
                          for (const bool from_disk : {false, true}) {
                            for (const char* sums : {"fp32", "bf16"}) {
                              Setting run{.stage = stage, .gradients_path = from_disk ? folder_.path() : ""};
                              run.more = fmt::format(R"(, "data_types": {{"grad_accum_dtype": "{}"}})", sums);
                              auto first = make_engine(group, run);
                              train_steps(first, 1);
                              train_micro_batch(first);
                              train_micro_batch(first);
                              first.save_checkpoint(folder_.file("ckpt"), {}, {}, {.async = from_disk});
                              first.wait_checkpoint();
                              train_steps(first, 2);
                              run.gradients_path = from_disk ? "" : folder_.path();
                              auto second = make_engine(group, run);
                              train_micro_batch(second);  // dropped
                              second.load_checkpoint(folder_.file("ckpt"));
                              train_steps(second, 2);
                              EXPECT_EQ(hash_of(second), hash_of(first)) << run.json();
                            }
                          }
                        }
                      },
                      {.timeout = std::chrono::minutes(2)}));
}

TEST_P(Offload, GradientsThatAProgramLooksAtAndChangesAreTheSame) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    const auto run_all = [&](const std::string& path) {
      auto engine = make_engine(group, {.gradients_path = path, .frozen = true});
      train_steps(engine, 1);
      std::uint64_t hash = kNoBits;
      for (int step = 0; step < 3; ++step) {
        if (step == 1) {  // unfrozen
          for (at::Tensor& parameter : engine.typed_module()->layers[1]->parameters()) parameter.requires_grad_(true);
        }
        const std::int64_t before = engine.global_steps();
        while (!engine.is_gradient_accumulation_boundary()) {
          train_micro_batch(engine, [&] { hash = hash_with(hash, engine.full_gradient("layer2.weight")); });
        }
        train_micro_batch(engine, [&] {
          if (step == 0) engine.clip_grad_norm(0.01);
          if (step == 1) engine.clip_grad_value(0.001);
          engine.set_full_gradient("layer0.bias", at::linspace(0, 1, 64));
          engine.for_each_gradient([&](const GradientPart& part) { at::Tensor(part.values).add_(0.001); });
        });
        EXPECT_EQ(engine.global_steps(), before + 1);
      }
      train_micro_batch(engine);
      engine.zero_grad();  // drops it
      train_steps(engine, 1);
      return std::pair(hash, hash_of(engine));
    };
    EXPECT_EQ(run_all(folder_.path()), run_all(""));
  }));
}

struct SparseImpl : torch::nn::Module {
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(700, 32).sparse(true)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, 8));
};
TORCH_MODULE(Sparse);

/// Rows of a table that come as such, a table that nobody uses in a window, and fp16 steps that are skipped.
TEST_P(Offload, SumsOfGradientsOfRowsAndOfSkippedSteps) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    for (const char* precision :
         {R"("bf16": {"enabled": true})", R"("fp16": {"enabled": true, "initial_scale_power": 24})"}) {
      const auto run_all = [&](const std::string& path) {
        at::manual_seed(3);
        const std::string json = fmt::format(
            R"({{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3, "gradient_clipping": 0.5, {},
               "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
               "zero_optimization": {{"stage": 2, "reduce_bucket_size": 6000, "sub_group_size": 1024}},
               "zerotorch": {{"seed": 5, "offload_gradients": {{"device": "{}", "nvme_path": "{}"}}}}}})",
            precision, path.empty() ? "none" : "nvme", path);
        auto engine = initialize(Sparse(), Config::from_text(json), {.group = group});
        for (int i = 0; i < 24; ++i) {
          const at::Tensor tokens = at::arange(4, at::kLong).mul(97 + i).add(31 * i + 7 * group.rank()).remainder(700);
          at::Tensor hidden = engine.typed_module()->table(tokens);
          if (i / 3 % 4 == 3) hidden = at::ones({4, 32}, hidden.options().requires_grad(false));
          engine.backward(engine.typed_module()->head(hidden).to(at::kFloat).square().sum().mul(1 + i % 5));
          engine.step();
        }
        std::uint64_t hash = kNoBits;
        for (const auto& item : engine.module().named_parameters())
          hash = hash_with(hash, engine.full_weight(item.key()));
        return std::tuple(hash, engine.skipped_steps(), fmt::format("{:a}", engine.grad_norm()));
      };
      const auto in_memory = run_all("");
      EXPECT_EQ(run_all(folder_.path()), in_memory) << precision;
      EXPECT_EQ(std::get<1>(in_memory) > 0, std::string(precision).find("fp16") != std::string::npos);
    }
  }));
}

/// Each micro-batch adds to what is there, which the first does not read; the update reads it, and nobody writes it
/// then.
TEST_P(Offload, SumsOfGradientsMoveOnceAMicroBatch) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    auto engine = make_engine(group, {.gradients_path = folder_.path()});
    train_steps(engine, 2);
    const std::int64_t micro_batches = 12 / group.size();
    const OffloadReport before = engine.offload_report();
    train_steps(engine, 6);
    const OffloadReport after = engine.offload_report();
    // What is read ahead where backward and update turn to each other is not what comes next.
    EXPECT_LE(after.read_nbytes - before.read_nbytes, 6 * micro_batches * after.reserved_nbytes * 9 / 8);
    EXPECT_LE(after.written_nbytes - before.written_nbytes, 6 * micro_batches * after.reserved_nbytes);
    EXPECT_GE(after.written_nbytes - before.written_nbytes, 6 * (micro_batches - 1) * after.reserved_nbytes);
  }));
}

TEST_P(Offload, StatesCanBeUpdatedInBackward) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    for (int stage = 1; stage <= 3; ++stage) {
      Setting run{.stage = stage, .step_in_backward = true};
      auto in_memory = make_engine(group, run);
      run.nvme_path = folder_.path();
      auto on_disk = make_engine(group, run);
      train_steps(in_memory, 4);
      train_steps(on_disk, 4);
      EXPECT_EQ(hash_of(on_disk), hash_of(in_memory)) << run.json();
    }
  }));
}

/// Beside states in memory and on the disk, in both precisions, updated in backward or after it.
TEST_P(Offload, ParametersTrainAsInMemory) {
  expect_all_ok(spawn(ranks_,
                      [&](Group group) {
                        for (int bits = 0; bits < 16; ++bits) {
                          Setting run{.bf16 = (bits & 1) != 0, .step_in_backward = (bits & 2) != 0};
                          // In backward there are no whole tensors.
                          const int optimizer = run.step_in_backward ? 1 : bits / 2;
                          if ((bits & 4) != 0) run.optimizer = kOptimizers[static_cast<std::size_t>(optimizer)];
                          auto in_memory = make_engine(group, run);
                          run.parameters_path = folder_.path();
                          if ((bits & 8) != 0) run.nvme_path = folder_.path();
                          auto on_disk = make_engine(group, run);
                          train_steps(in_memory, 5);
                          train_steps(on_disk, 5);
                          ASSERT_EQ(hash_of(on_disk), hash_of(in_memory)) << run.json();
                          EXPECT_GT(on_disk.memory_report().nvme_nbytes, 0);
                          EXPECT_EQ(on_disk.memory_report()[MemoryKind::kParameters].current_nbytes, 0) << run.json();
                        }
                      },
                      {.timeout = std::chrono::minutes(2)}));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_P(Offload, CheckpointsOfParametersGoFromTierToTier) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    for (const bool from_disk : {false, true}) {
      Setting run{.parameters_path = from_disk ? folder_.path() : "", .frozen = true};  // saved as it is kept
      auto first = make_engine(group, run);
      train_steps(first, 2);
      first.save_checkpoint(folder_.file("ckpt"), {}, {}, {.async = from_disk});
      first.wait_checkpoint();
      train_steps(first, 2);
      run.parameters_path = from_disk ? "" : folder_.path();
      auto second = make_engine(group, run);
      second.set_full_weight("layer1.weight", at::zeros({64, 64}));
      second.load_checkpoint(folder_.file("ckpt"));
      train_steps(second, 2);
      EXPECT_EQ(hash_of(second), hash_of(first)) << run.json();
    }
  }));
}

/// Ranks go through other layers: nobody waits for one that does not come.
TEST_P(Offload, RanksReadParametersThatOthersDoNotUse) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    const auto run_all = [&](const std::string& path) {
      auto engine = make_engine(group, {.parameters_path = path});
      const at::Tensor x = at::ones({2, 64}).to(at::kBFloat16).mul(0.1);
      for (int step = 0; step < 6; ++step) {
        at::Tensor y = x + static_cast<double>(step + engine.rank()) / 16;
        auto& layers = engine.typed_module()->layers;
        for (int i = 0; i < 5; ++i) {
          if ((i + engine.rank() + step) % 3 != 0) y = at::tanh(layers[static_cast<std::size_t>(i)](y));
        }
        engine.backward(y.to(at::kFloat).square().sum());
        engine.step();
      }
      return hash_of(engine);
    };
    EXPECT_EQ(run_all(folder_.path()), run_all(""));
  }));
}

/// Every part of a unit is read once for all ranks of the host, twice a step but for what is still there, and once
/// more with its update.
TEST_P(Offload, PartsAreReadOnceForAHost) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    auto engine = make_engine(group, {.parameters_path = folder_.path()});
    train_steps(engine, 3);
    const std::int64_t micro_batches = 12 / group.size();
    const OffloadReport before = engine.offload_report();
    train_steps(engine, 6);
    const OffloadReport after = engine.offload_report();
    std::array<std::int64_t, 2> moved{after.read_nbytes - before.read_nbytes, after.reserved_nbytes};
    if (group.size() > 1) group.all_reduce(moved.data(), 2, DType::kInt64, ReduceOp::kSum).wait();
    // A rank that comes late finds its part read by another one, and may have begun it as well.
    EXPECT_LE(moved[0], 6 * (2 * micro_batches + 1) * moved[1] * 5 / 4);
    EXPECT_GE(after.written_nbytes - before.written_nbytes, 6 * after.reserved_nbytes * 9 / 10);
    EXPECT_LE(after.written_nbytes - before.written_nbytes, 6 * after.reserved_nbytes);
  }));
}

TEST_P(Offload, AStepReadsAndWritesTheFileOnce) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    auto engine = make_engine(group, {.nvme_path = folder_.path()});
    train_steps(engine, 3);
    const OffloadReport before = engine.offload_report();
    train_steps(engine, 6);
    const OffloadReport after = engine.offload_report();
    EXPECT_GT(after.reserved_nbytes, 0);
    // How far a pass has read ahead for the next one depends on the disk's speed.
    const auto buffers = static_cast<double>(engine.memory_report()[MemoryKind::kOffload].current_nbytes);
    EXPECT_NEAR(static_cast<double>(after.read_nbytes - before.read_nbytes),
                6 * static_cast<double>(after.reserved_nbytes), buffers);
    EXPECT_EQ(after.written_nbytes - before.written_nbytes, 6 * after.reserved_nbytes);
  }));
}

TEST_P(Offload, WhatAProgramLooksAtAndChangesIsTheSame) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    const auto run_all = [&](const std::string& nvme_path, const std::string& parameters_path) {
      auto engine = make_engine(group, {.nvme_path = nvme_path, .parameters_path = parameters_path});
      train_steps(engine, 1);
      const auto freeze = [&](const std::string& layer, bool frozen) {
        for (auto& item : engine.module().named_parameters())
          if (item.key().starts_with(layer)) item.value().requires_grad_(!frozen);
      };
      freeze("layer1", true);
      freeze("layer2", true);
      train_steps(engine, 1);
      freeze("layer1", false);
      {
        GatheredParameters scope(engine, {engine.typed_module()->layers[4]->weight}, group.size() - 1);
        if (group.rank() == group.size() - 1) {
          at::NoGradGuard no_grad;
          engine.typed_module()->layers[4]->weight.mul_(0.5);
        }
      }
      const at::Tensor moment = engine.full_optimizer_state("layer0.weight", "exp_avg");
      engine.set_full_optimizer_state("layer0.weight", "exp_avg", moment * 2);
      engine.set_full_weight("layer3.weight", engine.full_weight("layer3.weight") + 0.125);
      train_steps(engine, 2);
      return hash_of(engine);
    };
    const std::uint64_t in_memory = run_all("", "");
    EXPECT_EQ(run_all(folder_.path(), ""), in_memory);
    EXPECT_EQ(run_all(folder_.path(), folder_.path()), in_memory);
  }));
}

TEST(OffloadFailures, KilledRanksLeaveNothing) {
  const TemporaryFolder folder;
  const auto results = spawn(2,
                             [&](Group group) {
                               auto engine = make_engine(group, {.nvme_path = folder.path()});
                               train_steps(engine, 2);
                               EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
                               ::raise(SIGKILL);
                             },
                             {.timeout = std::chrono::seconds(60)});
  for (const auto& result : results) EXPECT_EQ(result.signal, SIGKILL) << result.error;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// A request of rank 1 fails somewhere in the third step: both ranks end, rank 1 with the error. False, where nothing
/// else is wrong, if there is no such request any more, which `may_be_over`.
enum class Kept : std::uint8_t { kStates, kGradients, kParameters };
bool fail_in_a_step(std::uint64_t sample, const TemporaryFolder& folder, Kept kept, bool may_be_over = false) {
  const auto results = spawn(2,
                             [&](Group group) {
                               io::FaultyFileSystem files(io::system_files());
                               engine::use_files_for_offload(&files);
                               {
                                 Setting setting;
                                 (kept == Kept::kParameters  ? setting.parameters_path
                                  : kept == Kept::kGradients ? setting.gradients_path
                                                             : setting.nvme_path) = folder.path();
                                 auto engine = make_engine(group, setting);
                                 train_steps(engine, 2);
                                 if (group.rank() == 1) {
                                   if (sample % 2) {
                                     files.fail_read(files.read_count() + sample / 2, EIO);
                                   } else {
                                     files.fail_mutation(files.count() + sample / 2, ENOSPC);
                                   }
                                 }
                                 train_steps(engine, 2);
                               }
                               engine::use_files_for_offload(nullptr);
                             },
                             {.timeout = std::chrono::seconds(60), .group_timeout = std::chrono::seconds(20)});
  if (may_be_over && std::ranges::all_of(results, &RankResult::ok)) return false;
  for (const auto& result : results) {
    EXPECT_FALSE(result.ok) << "request " << sample << ", rank " << result.rank;
    EXPECT_FALSE(result.timed_out) << "request " << sample << ", rank " << result.rank;
    EXPECT_NE(result.error, "") << "request " << sample << ", rank " << result.rank;
  }
  const auto parts = kept == Kept::kParameters ? std::vector<std::string>{"parameters of 'layer", "cannot "}
                     : kept == Kept::kGradients
                         ? std::vector<std::string>{"sums of gradients of 'layer", "cannot ", "of unit "}
                         : std::vector<std::string>{"optimizer states of 'layer", "cannot ", "of unit "};
  for (const std::string& part : parts) EXPECT_NE(results[1].error.find(part), std::string::npos) << results[1].error;
  EXPECT_NE(results[1].error.find(folder.path()), std::string::npos) << results[1].error;
  return true;
}

constexpr Kept kAllKept[] = {Kept::kStates, Kept::kGradients, Kept::kParameters};

TEST(OffloadFailures, ADiskThatFailsEndsAllRanksWithItsName) {
  const TemporaryFolder folder;
  for (std::uint64_t sample = 0; sample < 16; ++sample) {
    for (const Kept kept : kAllKept) fail_in_a_step(sample, folder, kept);
  }
}

/// The same at every request until the run is over.
TEST(OffloadFailures, EveryRequestThatFailsEndsAllRanks) {
  if (std::getenv("ZERO_TEST_SLOW") == nullptr) GTEST_SKIP() << "some minutes: ZERO_TEST_SLOW=1";
  const TemporaryFolder folder;
  for (const Kept kept : kAllKept) {
    for (const std::uint64_t first : {0, 1}) {
      int failed = 0, over = 0;  // the last writes of a run may fail after its end
      for (std::uint64_t sample = first; over < 8 && !HasFailure(); sample += 2) {
        if (fail_in_a_step(sample, folder, kept, /*may_be_over=*/true)) {
          ++failed;
          over = 0;
        } else {
          ++over;
        }
      }
      std::printf("%s %d: %d requests\n", first == 0 ? "writes" : "reads", static_cast<int>(kept), failed);
      EXPECT_GT(failed, 10);
    }
  }
}

TEST(OffloadFailures, ParametersThatTheDiskGivesBackOtherwiseAreNotUsed) {
  class LyingDisk : public io::Syscalls {
   public:
    std::atomic<int> lies_at{-1};
    ssize_t pread(int fd, void* data, std::size_t nbytes, off_t offset) override {
      const ssize_t got = io::Syscalls::pread(fd, data, nbytes, offset);
      if (got > 0 && lies_at >= 0 && lies_at-- == 0) static_cast<char*>(data)[8] ^= 1;
      return got;
    }
  };
  const TemporaryFolder folder;
  for (const int lie : {0, 1, 2, 5, 9, 14}) {
    const auto results = spawn(2,
                               [&](Group group) {
                                 LyingDisk syscalls;
                                 io::PosixFileSystem files({.syscalls = &syscalls});
                                 engine::use_files_for_offload(&files);
                                 auto engine = make_engine(group, {.parameters_path = folder.path()});
                                 train_steps(engine, 2);
                                 if (group.rank() == 1) syscalls.lies_at = lie;
                                 train_steps(engine, 3);
                               },
                               {.timeout = std::chrono::seconds(60), .group_timeout = std::chrono::seconds(20)});
    EXPECT_NE(results[1].error.find("gave back other bytes"), std::string::npos)
        << lie << ": signal " << results[1].signal << ", " << results[1].error;
    EXPECT_NE(results[1].error.find(folder.path()), std::string::npos) << results[1].error;
    EXPECT_FALSE(results[0].ok) << lie;
    EXPECT_FALSE(results[0].timed_out) << lie;
  }
}

TEST(OffloadFailures, AFullDiskIsSaidAtInitialize) {
  class FullDisk : public io::Syscalls {
    int allocate(int, off_t) override {
      errno = ENOSPC;
      return -1;
    }
  } syscalls;
  const TemporaryFolder folder;
  const auto results = spawn(2, [&](Group group) {
    io::PosixFileSystem full({.syscalls = &syscalls});
    if (group.rank() == 1) engine::use_files_for_offload(&full);
    make_engine(group, {.nvme_path = folder.path()});
  });
  EXPECT_NE(results[1].error.find("cannot reserve"), std::string::npos) << results[1].error;
  EXPECT_NE(results[1].error.find("No space left on device"), std::string::npos) << results[1].error;
  EXPECT_FALSE(results[0].ok);
  EXPECT_FALSE(results[0].timed_out);
}

/// Stopped at operations of the disk, begun again from the last checkpoint: the bits of a run without.
TEST(OffloadFailures, AStoppedRunGoesOnFromItsCheckpoint) {
  const TemporaryFolder folder;
  std::uint64_t expected = 0, operations = 0;
  {
    io::FaultyFileSystem files(io::system_files());
    engine::use_files_for_offload(&files);
    auto engine = make_engine(Group(), {.nvme_path = folder.path()});
    train_steps(engine, 2);
    engine.save_checkpoint(folder.file("ckpt"));
    const std::uint64_t before = files.count();
    train_steps(engine, 2);
    operations = files.count() - before;
    expected = hash_of(engine);
  }
  ASSERT_GT(operations, 20u);
  int stopped = 0;
  for (std::uint64_t at = 0; at < operations; at += 3) {
    io::FaultyFileSystem files(io::system_files());
    engine::use_files_for_offload(&files);
    try {
      auto engine = make_engine(Group(), {.nvme_path = folder.path()});
      engine.load_checkpoint(folder.file("ckpt"));
      files.stop_at_mutation(files.count() + at);
      train_steps(engine, 2);
    } catch (const io::SimulatedCrash&) {
      ++stopped;
    }
    engine::use_files_for_offload(nullptr);
    auto engine = make_engine(Group(), {.nvme_path = folder.path()});
    engine.load_checkpoint(folder.file("ckpt"));
    train_steps(engine, 2);
    ASSERT_EQ(hash_of(engine), expected) << "stopped at " << at;
  }
  EXPECT_GT(stopped, 5);
}

/// Everything on the disk, two ranks killed at moments of their own, wherever they are; begun again from the last
/// checkpoint, which is saved again and again meanwhile: the bits of a run without.
TEST(OffloadFailures, KilledRanksGoOnFromTheirCheckpoint) {
  const TemporaryFolder folder;
  const Setting run{
      .nvme_path = folder.file("nvme"), .gradients_path = folder.file("nvme"), .parameters_path = folder.file("nvme")};
  constexpr int kSteps = 6;
  const auto train = [&](Group group, const std::string& checkpoints, int save_at) {
    auto engine = make_engine(group, run);
    engine.load_checkpoint(checkpoints);
    while (engine.global_steps() < kSteps) {
      train_steps(engine, 1);
      if (engine.global_steps() == save_at) engine.save_checkpoint(checkpoints);
    }
    return hash_of(engine);
  };
  std::chrono::microseconds whole{0};
  const auto results = spawn(2, [&](Group group) {
    auto engine = make_engine(group, run);
    engine.save_checkpoint(folder.file("begin"));
    train_steps(engine, kSteps);
    const std::uint64_t hash = hash_of(engine);
    if (group.rank() == 0) std::ofstream(folder.file("expected")) << hash;
  });
  expect_all_ok(results);
  std::uint64_t expected = 0;
  std::ifstream(folder.file("expected")) >> expected;
  {
    const auto begin = std::chrono::steady_clock::now();
    std::filesystem::copy(folder.file("begin"), folder.file("timed"), std::filesystem::copy_options::recursive);
    expect_all_ok(spawn(2, [&](Group group) { train(group, folder.file("timed"), 3); }));
    whole = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
  }
  constexpr int kSamples = 24;
  int killed = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    const std::string checkpoints = folder.file(fmt::format("ckpt{}", sample));
    std::filesystem::copy(folder.file("begin"), checkpoints, std::filesystem::copy_options::recursive);
    const auto stopped = spawn(2,
                               [&](Group group) {
                                 const auto after = whole * (2 * sample + 1 + group.rank()) / (2 * kSamples);
                                 std::thread([after] {
                                   std::this_thread::sleep_for(after);
                                   ::kill(::getpid(), SIGKILL);
                                 }).detach();
                                 train(group, checkpoints, 3);
                               },
                               {.timeout = std::chrono::seconds(60), .group_timeout = std::chrono::seconds(20)});
    for (const auto& result : stopped) {
      killed += result.signal == SIGKILL ? 1 : 0;
      EXPECT_FALSE(result.timed_out);
    }
    expect_all_ok(
        spawn(2, [&](Group group) { EXPECT_EQ(train(group, checkpoints, -1), expected) << "sample " << sample; }));
    EXPECT_TRUE(std::filesystem::is_empty(run.nvme_path)) << "sample " << sample;
    std::filesystem::remove_all(checkpoints);
  }
  EXPECT_GT(killed, kSamples / 2);
}

TEST(OffloadFailures, WhatCannotBeIsRefused) {
  const auto said = [](const std::string& json, std::string_view words) {
    EXPECT_NE(error_of<ConfigError>([&] { Config::from_text(json); }).find(words), std::string::npos) << json;
  };
  said(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})", "needs nvme_path beside it");
  said(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/tmp", "buffer_count": 2}}})",
       "buffer_count");
  said(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})", "needs nvme_path beside it");
  said(R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "nvme", "nvme_path": "/tmp"}}})",
       "set zero_optimization.stage to 3");
  said(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/tmp"}},
           "zerotorch": {"store": "node_shared"}})",
       "node_shared");
  const std::string gradients = R"("zerotorch": {"offload_gradients": {"device": "nvme", "nvme_path": "/tmp"}})";
  said(R"({"zerotorch": {"offload_gradients": {"device": "nvme"}}, "zero_optimization": {"stage": 2}})",
       "needs nvme_path beside it, or that of offload_optimizer");
  said("{" + gradients + "}", "set zero_optimization.stage to 1, 2 or 3");
  said(
      "{" + gradients + R"(, "zero_optimization": {"stage": 2}, "optimizer": {"type": "Muon", "params": {"lr": 0.1}}})",
      "optimizer.type Muon");
  said(R"({"zerotorch": {"update": "in_backward", "offload_gradients": {"device": "nvme", "nvme_path": "/tmp"}},
           "zero_optimization": {"stage": 2}})",
       "it keeps no sums of gradients");
  Setting nowhere_for_gradients{.gradients_path = "/proc/nowhere"};
  EXPECT_NE(error_of<IoError>([&] { make_engine(Group(), nowhere_for_gradients); }).find("offload_gradients.nvme_path"),
            std::string::npos);
  Setting nowhere_for_parameters{.parameters_path = "/proc/nowhere"};
  EXPECT_NE(error_of<IoError>([&] { make_engine(Group(), nowhere_for_parameters); }).find("offload_param.nvme_path"),
            std::string::npos);
  Setting nowhere{.nvme_path = "/proc/nowhere"};
  EXPECT_NE(error_of<IoError>([&] { make_engine(Group(), nowhere); }).find("/proc/nowhere"), std::string::npos);
}

}  // namespace
}  // namespace zero::testing::offload_test
