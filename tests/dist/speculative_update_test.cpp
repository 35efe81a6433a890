// zerotorch.update "speculative": the bits of an update that waits for the norm, at every stage and number of ranks,
// with steps that clip, overflow, or change what the update began with; and what a program may do in between.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <cerrno>

#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "doubles/faulty_files.h"
#include "engine/engine_impl.h"
#include "engine/offload_files.h"
#include "io/file_system.h"
#include "support/bits.h"
#include "support/engine_hash.h"
#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/plan.h"
#include "zero/zero.h"

namespace zero::testing::speculative_update_test {
namespace {

/// Layers of odd sizes in units of their own; one of them is not used in every step, and one is used twice.
struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    constexpr int kSizes[] = {24, 61, 61, 37, 24};
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module(fmt::format("layer{}", i), torch::nn::Linear(kSizes[i], kSizes[i + 1])));
    seldom = register_module("seldom", torch::nn::Linear(24, 24));
  }
  at::Tensor forward(at::Tensor x, bool with_seldom) {
    x = at::tanh(layers[0](x));
    x = at::tanh(layers[1](at::tanh(layers[1](x))));
    x = at::tanh(layers[3](at::tanh(layers[2](x))));
    return with_seldom ? at::tanh(seldom(x)) : x;
  }
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear seldom{nullptr};
};
TORCH_MODULE(Tower);
using TowerEngine = ModuleEngine<Tower>;

struct Setting {
  int stage = 3;
  std::string precision = R"("bf16": {"enabled": true})";
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
  std::string store = "auto";
  std::int64_t batch = 12;
  std::string own = {};
  bool waits_for_clipping = true;

  std::string json(const std::string& path, bool speculative) const {
    return fmt::format(R"({{"train_batch_size": {}, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": {},
      "optimizer": {}, {},
      "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 50, "reduce_bucket_size": 1100,
        "sub_group_size": 1024, "offload_optimizer": {{"device": "nvme", "nvme_path": "{}", "buffer_count": 3}}}},
      "zerotorch": {{"seed": 5, "store": "{}", "update": "{}" {}}}}})",
                       batch, waits_for_clipping ? 0.5 : 0, optimizer, precision, stage, path, store,
                       speculative ? "speculative" : "after_backward", own);
  }
};

TowerEngine make_engine(const Group& group, const std::string& json) {
  at::set_num_threads(1);
  at::manual_seed(3);
  Tower tower;
  return initialize(tower, Config::from_text(json), {.group = group});
}

/// Every third step is clipped, every seventh overflows, and every fifth uses what the others do not.
at::Tensor loss_of(TowerEngine& engine, std::int64_t batch) {
  const std::int64_t index = engine.micro_steps() * engine.world_size() + engine.rank(), step = index / batch;
  Tower& tower = engine.typed_module();
  const at::Tensor x = at::sin(at::arange(24, at::kFloat).view({1, 24}).mul(0.7).add(static_cast<double>(index)));
  const at::Tensor out = tower->forward(x.to(tower->parameters().front().scalar_type()), step % 5 == 4).to(at::kFloat);
  const double factor = step % 7 == 6 ? std::numeric_limits<double>::infinity() : step % 3 == 0 ? 3 : 0.001;
  return out.square().sum().mul(factor);
}

/// What a program does between the last backward of a step and its step(), if anything; called on every rank.
using Between = std::function<void(TowerEngine& engine, std::int64_t step)>;

/// Weights and states after each step.
std::vector<std::uint64_t> train(TowerEngine& engine, std::int64_t batch, int steps, const Between& between = {}) {
  std::vector<std::uint64_t> hashes;
  for (int i = 0; i < steps; ++i) {
    const std::int64_t step = engine.global_steps();
    while (engine.global_steps() == step) {
      engine.backward(loss_of(engine, batch));
      if (between && engine.is_gradient_accumulation_boundary()) between(engine, step);
      engine.step();
    }
    hashes.push_back(hash_of(engine));
  }
  return hashes;
}

/// Training that gives hashes.
using Run = std::function<std::vector<std::uint64_t>(TowerEngine& engine)>;

/// What `run` gives without the key, it gives with it: else throws. `path`: of scratch files. Returns the report of the
/// engine that has the key.
OffloadReport run_both(const Group& group, const std::string& path, const Setting& setting, const Run& run) {
  std::vector<std::uint64_t> expected;
  {
    auto plain = make_engine(group, setting.json(path, false));
    expected = run(plain);
  }
  auto engine = make_engine(group, setting.json(path, true));
  const auto hashes = run(engine);
  if (hashes.size() != expected.size()) throw std::logic_error("not as many steps");
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i] != expected[i]) throw std::logic_error(fmt::format("{} of {} differs", i, setting.json("", true)));
  }
  return engine.offload_report();
}

/// The same of plain training, of which some updates must have been kept, and some undone.
void expect_the_same(const Group& group, const std::string& path, const Setting& setting, int steps,
                     const Between& between = {}) {
  const OffloadReport report =
      run_both(group, path, setting, [&](TowerEngine& engine) { return train(engine, setting.batch, steps, between); });
  if (report.updates_kept == 0 || report.updates_undone == 0) {
    throw std::logic_error(fmt::format("{} updates were kept and {} undone: {}", report.updates_kept,
                                       report.updates_undone, setting.json("", true)));
  }
}

class SpeculativeUpdate : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SpeculativeUpdate, ::testing::Values(1, 2, 3, 4));

TEST_P(SpeculativeUpdate, HasTheBitsOfOneThatWaits) {
  std::vector<Setting> settings;
  for (const int stage : {1, 2, 3}) {
    for (const char* const precision : {R"("bf16": {"enabled": false})", R"("bf16": {"enabled": true})",
                                        R"("fp16": {"enabled": true, "initial_scale_power": 8, "hysteresis": 1})"})
      settings.push_back({.stage = stage, .precision = precision});
  }
  settings.push_back({.stage = 3, .store = "copying"});
  settings.push_back({.stage = 2, .optimizer = R"({"type": "AdamW8bit", "params": {"lr": 0.01}})"});
  settings.push_back({.stage = 3, .optimizer = R"({"type": "SGD", "params": {"lr": 0.01, "momentum": 0.9}})"});
  settings.push_back({.stage = 3, .optimizer = R"({"type": "SGD", "params": {"lr": 0.01}})", .batch = 12});
  settings.push_back({.stage = 1, .optimizer = R"({"type": "Lion", "params": {"lr": 0.001}})"});
  settings.push_back({.stage = 2, .own = R"(, "unused_parameters": "zero")"});
  settings.push_back({.stage = 2, .waits_for_clipping = false});
  const TemporaryFolder folder;
  expect_all_ok(spawn(GetParam(),
                      [&](const Group& group) {
                        for (const Setting& setting : settings) expect_the_same(group, folder.path(), setting, 16);
                      },
                      {.timeout = std::chrono::seconds(200)}));
}

TEST(SpeculativeUpdateOverHosts, HasTheSameBits) {
  const OneHostAsSeveral hosts(1);
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](const Group& group) { expect_the_same(group, folder.path(), {.stage = 2}, 12); }));
}

TEST_P(SpeculativeUpdate, IsUndoneWhereAProgramComesBetween) {
  const std::vector<std::pair<const char*, Between>> programs = {
      {"sets a rate",
       [](TowerEngine& engine, std::int64_t step) { engine.set_learning_rate(0.01 / static_cast<double>(step + 2)); }},
      {"sets a gradient",
       [](TowerEngine& engine, std::int64_t) {
         engine.set_full_gradient("layer2.weight", engine.full_gradient("layer2.weight").mul(0.5));
       }},
      {"reads weights and states",
       [](TowerEngine& engine, std::int64_t) {
         (void)engine.full_weight("layer1.weight");
         for (const auto& state : engine.optimizer_states("layer1.weight"))
           (void)engine.full_optimizer_state("layer1.weight", state);
       }},
      {"writes a parameter",
       [](TowerEngine& engine, std::int64_t) {
         GatheredParameters scope(engine, {engine.typed_module()->layers[3]->weight}, 0);
         const at::NoGradGuard no_grad;
         if (engine.rank() == 0) engine.typed_module()->layers[3]->weight.mul_(0.75);
       }},
      {"goes backward once more", [](TowerEngine& engine, std::int64_t) { engine.backward(loss_of(engine, 12)); }},
  };
  const TemporaryFolder folder;
  expect_all_ok(spawn(GetParam(),
                      [&](const Group& group) {
                        for (const auto& [name, between] : programs) {
                          for (const int stage : {1, 3}) {
                            const Between now_and_then = [&](TowerEngine& engine, std::int64_t step) {
                              if (step == 4 || step == 8) between(engine, step);
                            };
                            SCOPED_TRACE(name);
                            expect_the_same(group, folder.path(), {.stage = stage}, 12, now_and_then);
                          }
                        }
                      },
                      {.timeout = std::chrono::seconds(200)}));
}

/// What a scope has gathered is written when it is closed, after the backward.
TEST_P(SpeculativeUpdate, BackwardMayRunInsideAScope) {
  const auto run = [](TowerEngine& engine) {
    auto hashes = train(engine, 12, 2);
    for (int round = 0; round < 6; ++round) {
      for (bool is_last = false; !is_last;) {
        const at::Tensor loss = loss_of(engine, 12);
        is_last = engine.is_gradient_accumulation_boundary();
        {
          GatheredParameters scope(engine, {engine.typed_module()->layers[3]->weight}, 0);
          engine.backward(loss);
          const at::NoGradGuard no_grad;
          if (engine.rank() == 0) engine.typed_module()->layers[3]->weight.mul_(0.75);
        }
        engine.step();
      }
      hashes.push_back(hash_of(engine));
    }
    return hashes;
  };
  const TemporaryFolder folder;
  expect_all_ok(spawn(GetParam(), [&](const Group& group) {
    for (const char* const precision : {R"("bf16": {"enabled": false})", R"("bf16": {"enabled": true})"})
      run_both(group, folder.path(), {.precision = precision}, run);
  }));
}

/// A window that ends otherwise than was said when its backward began.
TEST_P(SpeculativeUpdate, ABoundaryMayBeTakenBack) {
  const auto run = [](TowerEngine& engine) {
    auto hashes = train(engine, 12, 2);
    for (int round = 0; round < 4; ++round) {
      engine.set_gradient_accumulation_boundary(true);
      engine.backward(loss_of(engine, 12));
      engine.set_gradient_accumulation_boundary(false);
      engine.step();
      engine.backward(loss_of(engine, 12));
      if (round % 2 == 0) engine.set_gradient_accumulation_boundary(true);
      engine.step();
      engine.set_gradient_accumulation_boundary(std::nullopt);
      if (round % 2 == 1) engine.zero_grad();
      hashes.push_back(hash_of(engine));
    }
    return hashes;
  };
  const TemporaryFolder folder;
  expect_all_ok(spawn(GetParam(), [&](const Group& group) { run_both(group, folder.path(), {.stage = 2}, run); }));
}

TEST_P(SpeculativeUpdate, GradientsMayBeDroppedAndParametersFrozen) {
  const auto run = [](TowerEngine& engine) {
    auto hashes = train(engine, 12, 2);
    for (int round = 0; round < 3; ++round) {
      for (std::int64_t i = 0; i < 12 / engine.world_size(); ++i) {
        engine.backward(loss_of(engine, 12));
        if (engine.is_gradient_accumulation_boundary()) break;
        engine.step();
      }
      engine.zero_grad();
      const bool trains = round == 1;
      for (auto& parameter : engine.typed_module()->layers[2]->parameters()) parameter.requires_grad_(trains);
      const auto more = train(engine, 12, 3);
      hashes.insert(hashes.end(), more.begin(), more.end());
    }
    return hashes;
  };
  const TemporaryFolder folder;
  expect_all_ok(spawn(GetParam(), [&](const Group& group) {
    if (run_both(group, folder.path(), {.stage = 2}, run).updates_kept == 0) throw std::logic_error("nothing was kept");
  }));
}

TEST_P(SpeculativeUpdate, CheckpointsGoOnWithTheSameBits) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(GetParam(), [&](const Group& group) {
    const Setting setting{.stage = 3};
    std::vector<std::uint64_t> whole, parts;
    {
      auto engine = make_engine(group, setting.json(folder.path(), true));
      whole = train(engine, 12, 9);
    }
    {
      auto engine = make_engine(group, setting.json(folder.path(), true));
      parts = train(engine, 12, 5);
      engine.save_checkpoint(folder.file("saved"));
    }
    auto engine = make_engine(group, setting.json(folder.path(), false));
    engine.load_checkpoint(folder.file("saved"));
    const auto rest = train(engine, 12, 4);
    parts.insert(parts.end(), rest.begin(), rest.end());
    if (parts != whole) throw std::logic_error("other bits");
  }));
}

TEST_P(SpeculativeUpdate, MemoryIsAsPlanned) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(GetParam(), [&](const Group& group) {
    Config config = Config::from_text(Setting{.stage = 2}.json(folder.path(), true));
    config.resolve_batch(group.size());
    Tower tower;
    const MemoryReport planned =
        plan::engine_memory(plan::shape_of(ModelView::of(tower.ptr())), config, group.size(), group.rank());
    auto engine = make_engine(group, Setting{.stage = 2}.json(folder.path(), true));
    train(engine, 12, 4);
    const MemoryReport seen = engine.memory_report();
    for (const MemoryKind kind : {MemoryKind::kParameters, MemoryKind::kMaster, MemoryKind::kOptimizer,
                                  MemoryKind::kOffload, MemoryKind::kGradients})
      EXPECT_EQ(seen[kind].peak_nbytes, planned[kind].peak_nbytes) << memory_kind_name(kind);
    EXPECT_EQ(seen.nvme_nbytes, planned.nvme_nbytes);
  }));
}

/// A disk that fails at any of a step's calls ends the training of all ranks with an error that names it.
TEST(SpeculativeUpdateFailures, ADiskThatFailsIsAnErrorOfTheStep) {
  const TemporaryFolder folder;
  for (int call = 0; call < 40; call += 2) {
    const bool is_read = call % 4 == 2;
    const auto results = spawn(2, [&](const Group& group) {
      io::FaultyFileSystem files(io::system_files());
      engine::use_files_for_offload(&files);
      auto engine = make_engine(group, Setting{}.json(folder.path(), true));
      train(engine, 12, 2);
      const auto failing = static_cast<std::uint64_t>(call);
      if (group.rank() == 1 && is_read) files.fail_read(files.read_count() + failing, EIO);
      if (group.rank() == 1 && !is_read) files.fail_mutation(files.count() + failing, EIO);
      train(engine, 12, 8);
    });
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 1) << call << ": " << result.error;
    EXPECT_TRUE(mentions(results[1].error, folder.path())) << results[1].error;
  }
}

TEST(SpeculativeUpdateFailures, AnEngineMayGoInTheMiddle) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](const Group& group) {
    for (int round = 0; round < 3; ++round) {
      auto engine = make_engine(group, Setting{.batch = 2}.json(folder.path(), true));
      train(engine, 2, 3);
      engine.backward(loss_of(engine, 2));
    }
  }));
}

TEST(SpeculativeUpdateFailures, RefusesWhatItCannotDo) {
  const auto refuses = [](const std::string& json, const char* what) {
    try {
      (void)Config::from_text(json);
      ADD_FAILURE() << json;
    } catch (const ConfigError& error) {
      EXPECT_TRUE(mentions(error.what(), "zerotorch.update: speculative")) << error.what();
      EXPECT_TRUE(mentions(error.what(), what)) << error.what();
    }
  };
  const std::string own = R"("train_batch_size": 1, "zerotorch": {"update": "speculative")";
  const std::string nvme = R"("offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"})";
  try {
    (void)make_engine(Group(), "{" + own + R"(}, "zero_optimization": {"stage": 2}})");
    ADD_FAILURE() << "states in memory";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(mentions(error.what(), "zero_optimization.offload_optimizer.device to 'nvme'")) << error.what();
  }
  refuses("{" + own + R"(}, "zero_optimization": {"stage": 0, )" + nvme + "}}", "sharded");
  refuses("{" + own +
              R"(, "offload_gradients": {"device": "nvme", "nvme_path": "/tmp"}}, "zero_optimization": {"stage": 2, )" +
              nvme + "}}",
          "offload_gradients");
  refuses(
      "{" + own + R"(}, "optimizer": {"type": "Lamb", "params": {}}, "zero_optimization": {"stage": 2, )" + nvme + "}}",
      "Lamb");
}

}  // namespace
}  // namespace zero::testing::speculative_update_test
