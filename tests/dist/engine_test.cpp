// The engine's promises on two and three ranks: bounded live parameters, exact byte counts, no operator sees
// a released parameter, writes are kept, ranks may use other layers.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <torch/nn/init.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "base/log.h"
#include "storage/cpu_allocator.h"
#include "support/odd_model.h"
#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing::engine_test {
namespace {

constexpr std::int64_t kLayers = 24, kDim = 64;
constexpr std::int64_t kLayerNumel = 5120;  // 64*64 + 64, in blocks of 1,024

std::string deep_json(int stage, const std::string& zero_extra = "", const std::string& top_extra = "") {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}}{},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0,
                           "stage3_max_reuse_distance": 0, "overlap_comm": true,
                           "stage3_prefetch_bucket_size": 6000, "allgather_bucket_size": 3000 {}}}}})",
                     top_extra, stage, zero_extra);
}

std::string store_json(const char* store, const char* more = "") {
  return fmt::format(R"(, "zerotorch": {{"store": "{}", "unit_numel": 5000, "debug_observer": true {}}})", store, more);
}

at::Tensor input(int rank, int step) {
  // Requires a gradient, so that backward uses the first layer's weight too.
  return at::sin(at::arange(2 * kDim, at::kFloat).mul(0.1 * (rank + 1)).add(step)).view({2, kDim}).requires_grad_();
}

template <class Engine>
void train(Engine& engine, int steps) {
  for (int step = 0; step < steps; ++step) {
    engine.backward(engine(input(engine.rank(), step)).square().mean());
    engine.step();
  }
}

DeepModel make_deep() {
  at::set_num_threads(1);
  at::manual_seed(3);
  return DeepModel(kLayers, kDim);
}

std::int64_t sum_over_ranks(Group group, std::int64_t value) {
  group.all_reduce(&value, 1, DType::kInt64).wait();
  return value;
}

TEST(Engine, LiveParametersStayBounded) {
  expect_all_ok(spawn(3, [](Group group) {
    auto model = make_deep();
    auto engine = initialize(model, deep_json(3, R"(, "stage3_max_live_parameters": 15000)", store_json("copying")),
                             InitializeOptions{.group = group});
    train(engine, 3);
    const auto report = engine.communication_report();
    EXPECT_EQ(report.padded_numel, kLayers * kLayerNumel);
    EXPECT_LE(report.peak_live_numel, 15000);
    EXPECT_GE(report.peak_live_numel, kLayerNumel);
    EXPECT_GT(report.prefetched_gathers, 0);
    // The gather buffers that exist are a small multiple of one unit, not the model.
    const auto gather = engine.memory_report()[MemoryKind::kGather];
    EXPECT_LE(gather.peak_nbytes, 3 * kLayerNumel * 4);
    EXPECT_GT(gather.peak_nbytes, 0);
  }));
}

TEST(Engine, BytesAreWhatTheTheorySays) {
  for (int ranks : {2, 3, 4}) {
    expect_all_ok(spawn(ranks, [ranks](Group group) {
      const std::int64_t psi = kLayers * kLayerNumel;
      constexpr int kSteps = 4;
      for (int stage = 0; stage <= 3; ++stage) {
        auto model = make_deep();
        auto engine = initialize(model, deep_json(stage, "", store_json("copying")), InitializeOptions{.group = group});
        train(engine, kSteps);
        const auto report = engine.communication_report();
        // Mean over ranks, times N: 2 or 3 times Psi * (N-1) per step. The last layer of forward is the
        // first of backward, so its second gather is not needed: 2 * Psi less one unit.
        const std::int64_t gathers = stage == 3 ? 2 * psi - kLayerNumel : 0;
        EXPECT_EQ(sum_over_ranks(group, report.reduced_numel), kSteps * psi * (ranks - 1)) << "stage " << stage;
        EXPECT_EQ(sum_over_ranks(group, report.gathered_numel), kSteps * gathers * (ranks - 1)) << "stage " << stage;
        EXPECT_EQ(sum_over_ranks(group, report.published_numel), stage == 3 ? 0 : kSteps * psi * (ranks - 1))
            << "stage " << stage;
        EXPECT_EQ(report.parameters_numel, kLayers * (kDim * kDim + kDim));
      }
      // Node-shared: gathers are pointers.
      auto model = make_deep();
      auto engine = initialize(model, deep_json(3, "", store_json("node_shared")), InitializeOptions{.group = group});
      train(engine, kSteps);
      EXPECT_EQ(engine.communication_report().gathered_numel, 0);
      EXPECT_EQ(sum_over_ranks(group, engine.communication_report().total_numel()), kSteps * psi * (ranks - 1));
    }));
  }
}

TEST(Engine, GroupCountersAgreeWithTheReport) {
  expect_all_ok(spawn(2, [](Group group) {
    auto model = make_deep();
    auto engine = initialize(model, deep_json(3, "", store_json("copying")), InitializeOptions{.group = group});
    group.reset_counters();
    train(engine, 2);
    const auto counters = group.counters();
    const auto report = engine.communication_report();
    EXPECT_EQ(counters.reduce_scatter.numel_received, report.reduced_numel);
    EXPECT_EQ(counters.all_gather.numel_received, report.gathered_numel + report.control_nbytes / 8);
  }));
}

TEST(Engine, ReleasedParameterThrowsWithItsName) {
  expect_all_ok(spawn(2, [](Group group) {
    auto model = make_deep();
    auto engine = initialize(model, deep_json(3, "", store_json("copying")), InitializeOptions{.group = group});
    train(engine, 1);
    try {
      (void)model->linears[4]->weight.data_ptr();
      FAIL() << "no exception";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("layer4.weight"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("GatheredParameters"), std::string::npos) << error.what();
    }
    EXPECT_THROW((void)model->linears[4]->weight.data_ptr<float>(), std::exception);
    EXPECT_THROW((void)model->linears[4]->weight.const_data_ptr<float>(), std::exception);
  }));
}

TEST(Engine, WritesInPlaceReachEveryCopyAndTheMasters) {
  for (const char* store : {"copying", "node_shared"}) {
    for (int stage : {0, 2, 3}) {
      expect_all_ok(spawn(2, [store, stage](Group group) {
        auto model = make_deep();
        auto engine = initialize(model, deep_json(stage, "", store_json(store)), InitializeOptions{.group = group});
        at::Tensor expected = engine.full_weight("layer1.weight");
        auto& weight = model->linears[1]->weight;
        {
          at::NoGradGuard no_grad;
          for (const auto& write : std::vector<std::function<void(at::Tensor)>>{
                   [](at::Tensor w) { w.mul_(0.5); }, [](at::Tensor w) { w.t().mul_(2); },
                   [](at::Tensor w) { w.detach().add_(1); }, [](at::Tensor w) { w.data().clamp_(0.5, 1.25); },
                   [](at::Tensor w) { w.narrow(0, 1, 2).zero_(); }, [](at::Tensor w) { at::add_out(w, w, w); }}) {
            write(weight);
            write(expected);
            EXPECT_TRUE(at::equal(weight + 0, expected));  // seen at once
          }
          EXPECT_TRUE(at::equal(engine.full_weight("layer1.weight"), expected));
          EXPECT_TRUE(at::equal(weight + 0, expected));
          // One rank alone may write as well; two that disagree may not.
          if (group.rank() == 1) weight.select(0, 0).fill_(7);
          expected.select(0, 0).fill_(7);
          EXPECT_TRUE(at::equal(engine.full_weight("layer1.weight"), expected));
          weight.fill_(group.rank());
          EXPECT_THROW(engine.full_weight("layer1.weight"), ModelError);
        }
      }));
    }
  }
}

TEST(Engine, GatheredParametersReadAndModify) {
  for (const char* store : {"copying", "node_shared"}) {
    for (int stage : {0, 1, 2, 3}) {
      expect_all_ok(spawn(3, [store, stage](Group group) {
        auto model = make_deep();
        auto engine = initialize(model, deep_json(stage, "", store_json(store) + R"(, "bf16": {"enabled": true})"),
                                 InitializeOptions{.group = group});
        const at::Tensor before = engine.full_weight("layer2.weight");
        auto& weight = model->linears[2]->weight;
        {
          GatheredParameters gathered(engine, {weight});
          EXPECT_TRUE(at::equal(weight.detach().to(at::kFloat), before.to(at::kBFloat16).to(at::kFloat)));
          EXPECT_NE(weight.data_ptr(), nullptr);
          at::NoGradGuard no_grad;
          EXPECT_THROW(weight.zero_(), ModelError);
          EXPECT_THROW(engine.step(), ModelError);
        }
        {
          GatheredParameters gathered(engine, {weight}, /*modifier_rank=*/1);
          at::NoGradGuard no_grad;
          if (group.rank() == 1) {
            weight.narrow(0, 0, 1).fill_(0.25);
          } else {
            EXPECT_THROW(weight.zero_(), ModelError);
          }
        }
        const at::Tensor after = engine.full_weight("layer2.weight");
        EXPECT_TRUE(at::equal(after.narrow(0, 0, 1), at::full({1, kDim}, 0.25)));
        // What was not written keeps its full precision.
        EXPECT_TRUE(at::equal(after.narrow(0, 1, kDim - 1), before.narrow(0, 1, kDim - 1)));
        at::NoGradGuard no_grad;
        EXPECT_TRUE(at::equal(weight.narrow(0, 0, 1).to(at::kFloat), at::full({1, kDim}, 0.25)));
      }));
    }
  }
}

/// Ranks that go on after a scope that has failed read what was there before, however late the modifier leaves it.
TEST(Engine, AScopeThatFailsEverywhereHasChangedNothing) {
  for (const char* store : {"copying", "node_shared"}) {
    const auto results = spawn(3, [store](Group group) {
      auto model = make_deep();
      auto engine = initialize(model, deep_json(3, "", store_json(store)), InitializeOptions{.group = group});
      auto& weight = model->linears[2]->weight;
      for (int modifier = 0; modifier < 3; ++modifier) {
        const at::NoGradGuard no_grad;
        const at::Tensor before = engine.full_weight("layer2.weight");
        try {
          GatheredParameters outer(engine, {model->linears[0]->weight}, modifier);
          try {
            GatheredParameters gathered(engine, {weight}, modifier);
            if (group.rank() == modifier) {
              weight.fill_(7);
              std::this_thread::sleep_for(std::chrono::milliseconds(300));
            }
            throw std::runtime_error("as on all ranks");
          } catch (const std::runtime_error&) {
            EXPECT_TRUE(at::equal(weight.detach() + 0, before)) << store << ", " << modifier;
            throw;
          }
        } catch (const std::runtime_error&) {
        }
        EXPECT_TRUE(at::equal(weight.detach() + 0, before)) << store << ", " << modifier;
      }
      train(engine, 1);
    });
    expect_all_ok(results);
  }
  // Where the modifier does not leave it, the others are told after the time-out, not given what it writes.
  const auto results = spawn(2, [](Group group) {
    group.set_timeout(std::chrono::seconds(2));
    auto model = make_deep();
    auto engine = initialize(model, deep_json(3, "", store_json("node_shared")), InitializeOptions{.group = group});
    const at::NoGradGuard no_grad;
    try {
      GatheredParameters gathered(engine, {model->linears[2]->weight}, 0);
      if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(5));
      throw std::runtime_error("as on all ranks");
    } catch (const std::runtime_error&) {
    }
    if (group.rank() == 1) (void)(model->linears[2]->weight + 0);
  });
  EXPECT_FALSE(results[1].ok);
  EXPECT_NE(results[1].error.find("has not left it"), std::string::npos) << results[1].error;
}

TEST(Engine, SetFullWeightReachesEveryCopy) {
  for (const char* store : {"copying", "node_shared"}) {
    for (int stage : {0, 2, 3}) {
      expect_all_ok(spawn(2, [store, stage](Group group) {
        auto model = make_deep();
        auto engine = initialize(model, deep_json(stage, "", store_json(store)), InitializeOptions{.group = group});
        const at::Tensor value = at::linspace(-1, 1, kDim * kDim).view({kDim, kDim});
        engine.set_full_weight("layer7.weight", value);
        EXPECT_TRUE(at::equal(engine.full_weight("layer7.weight"), value));
        at::NoGradGuard no_grad;
        EXPECT_TRUE(at::equal(model->linears[7]->weight + 0, value));
        EXPECT_THROW(engine.set_full_weight("layer7.weight", at::ones({3})), ModelError);
      }));
    }
  }
}

TEST(Engine, FullGradientIsTheMeanOverRanks) {
  for (int stage : {0, 1, 2, 3}) {
    expect_all_ok(spawn(2, [stage](Group group) {
      auto reference = make_deep();
      for (int rank = 0; rank < 2; ++rank) reference->forward(input(rank, 0)).square().mean().backward();
      const at::Tensor expected = reference->linears[3]->weight.grad() / 2;
      auto model = make_deep();
      auto engine = initialize(model, deep_json(stage, "", store_json("copying")), InitializeOptions{.group = group});
      EXPECT_EQ(engine.full_gradient("layer3.weight").abs().sum().item<float>(), 0.0f);
      engine.backward(engine(input(group.rank(), 0)).square().mean());
      EXPECT_THROW((void)model->linears[3]->weight.grad().norm(), ModelError);  // it has left the module
      EXPECT_TRUE(at::equal(engine.full_gradient("layer3.weight"), expected));
      EXPECT_TRUE(at::equal(engine.full_gradient("layer3.weight"), expected));  // asking twice changes nothing
      engine.step();
      EXPECT_THROW(engine.full_gradient("layer3.weigth"), ModelError);
    }));
  }
}

TEST(Engine, SeveralBackwardsInOneMicroBatchAllCount) {
  expect_all_ok(spawn(2, [](Group group) {
    const auto gradient = [&](bool at_once) {
      auto model = make_deep();
      auto engine = initialize(model, deep_json(2, "", store_json("copying")), InitializeOptions{.group = group});
      if (at_once) {
        engine.backward(engine(input(group.rank(), 0)).square().mean() +
                        engine(input(group.rank(), 1)).square().mean());
      } else {
        engine.backward(engine(input(group.rank(), 0)).square().mean());
        engine.backward(engine(input(group.rank(), 1)).square().mean());
      }
      return engine.full_gradient("layer0.weight");
    };
    EXPECT_TRUE(at::allclose(gradient(true), gradient(false), 1e-4, 1e-7));
  }));
}

TEST(Engine, PlainLossBackwardWorksToo) {
  expect_all_ok(spawn(2, [](Group group) {
    const auto weight = [&](bool plain) {
      auto model = make_deep();
      auto engine = initialize(model, deep_json(3, "", store_json("node_shared")), InitializeOptions{.group = group});
      const at::Tensor loss = model->forward(input(group.rank(), 0)).square().mean();
      plain ? loss.backward() : engine.backward(loss);
      engine.step();
      return engine.full_weight("layer5.weight");
    };
    EXPECT_TRUE(at::equal(weight(true), weight(false)));
  }));
}

TEST(Engine, RanksMaySkipLayers) {
  const auto weights_after = [](Group group, const std::string& json, int ranks) {
    auto model = make_deep();
    auto engine = initialize(model, json, InitializeOptions{.group = group});
    for (int step = 0; step < 3; ++step) {
      for (int index = group.rank(); index < ranks; index += group.size()) {
        model->skipped_layer = 9 + index;
        engine.backward(engine(input(index, step)).square().mean());
        engine.step();
      }
    }
    std::vector<at::Tensor> weights;
    for (const auto& item : model->named_parameters()) weights.push_back(engine.full_weight(item.key()));
    return weights;
  };
  for (const char* store : {"copying", "node_shared"}) {
    for (int stage : {0, 2, 3}) {
      expect_all_ok(spawn(2, [&](Group group) {
        const auto json = [&](int accumulation) {
          return deep_json(stage, "",
                           fmt::format(R"(, "gradient_accumulation_steps": {})", accumulation) + store_json(store));
        };
        const auto together = weights_after(group, json(1), 2), alone = weights_after(Group(), json(2), 2);
        for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::equal(together[i], alone[i])) << i;
      }));
    }
  }
}

TEST(Engine, DifferentModelsAreNamedOnEveryRank) {
  const auto results = spawn(3, [](Group group) {
    at::manual_seed(1);
    DeepModel model(group.rank() == 2 ? 5 : 4, 16);
    initialize(model, deep_json(3), InitializeOptions{.group = group});
  });
  for (const auto& result : results) {
    EXPECT_FALSE(result.ok);
    EXPECT_NE(result.error.find("layer4.weight"), std::string::npos) << result.error;
    EXPECT_NE(result.error.find("rank 2"), std::string::npos) << result.error;
  }
}

TEST(Engine, VerifyNamesTheParameterThatDiffers) {
  const auto results = spawn(2, [](Group group) {
    auto model = make_deep();
    if (group.rank() == 1) {
      at::NoGradGuard no_grad;
      model->linears[6]->bias.add_(1);
    }
    initialize(model, deep_json(3, "", store_json("copying", R"(, "verify_parameters": "verify")")),
               InitializeOptions{.group = group});
  });
  for (const auto& result : results) {
    EXPECT_NE(result.error.find("layer6.bias"), std::string::npos) << result.error;
  }
}

TEST(Engine, MovedModuleIsNoticed) {
  expect_all_ok(spawn(2, [](Group group) {
    auto model = make_deep();
    auto engine = initialize(model, deep_json(3, "", store_json("node_shared")), InitializeOptions{.group = group});
    train(engine, 1);
    model->linears[2]->to(at::kDouble);
    try {
      engine(input(0, 0));
      FAIL() << "no exception";
    } catch (const ModelError& error) {
      EXPECT_NE(std::string(error.what()).find("layer2.weight"), std::string::npos) << error.what();
    }
  }));
}

TEST(Engine, ClientOptimizerAndParameterGroups) {
  expect_all_ok(spawn(2, [](Group group) {
    const std::string json = R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
                                 "zero_optimization": {"stage": 2}})";
    auto reference = make_deep();
    std::vector<at::Tensor> weights, biases;
    const auto split = [&](DeepModel& model) {
      weights.clear();
      biases.clear();
      for (auto& linear : model->linears) {
        weights.push_back(linear->weight);
        biases.push_back(linear->bias);
      }
    };
    split(reference);
    const auto make = [&] {
      auto decay = std::make_unique<torch::optim::AdamWOptions>(0.02);
      decay->weight_decay(0.3);
      auto none = std::make_unique<torch::optim::AdamWOptions>(0.005);
      none->weight_decay(0.0);
      return torch::optim::AdamW({torch::optim::OptimizerParamGroup(weights, std::move(decay)),
                                  torch::optim::OptimizerParamGroup(biases, std::move(none))});
    };
    auto plain = make();
    auto model = make_deep();
    split(model);
    auto client = make();
    auto engine = initialize(model, json, InitializeOptions{.group = group, .optimizer = &client});
    auto grouped_model = make_deep();
    auto grouped =
        initialize(grouped_model, json,
                   InitializeOptions{.group = group,
                                     .parameter_groups = {{.names = {"*.weight"}, .lr = 0.02, .weight_decay = 0.3},
                                                          {.names = {"*.bias"}, .lr = 0.005, .weight_decay = 0.0}}});
    for (int step = 0; step < 3; ++step) {
      for (int rank = 0; rank < 2; ++rank) (reference->forward(input(rank, step)).square().mean() / 2).backward();
      plain.step();
      plain.zero_grad();
    }
    train(engine, 3);
    train(grouped, 3);
    for (const char* name : {"layer3.weight", "layer3.bias"}) {
      const at::Tensor expected = reference->named_parameters()[name].detach();
      EXPECT_TRUE(at::allclose(engine.full_weight(name), expected, 1e-4, 1e-5)) << name;
      EXPECT_TRUE(at::equal(engine.full_weight(name), grouped.full_weight(name))) << name;
    }
    torch::optim::LBFGS lbfgs(model->parameters());
    auto other = make_deep();
    EXPECT_THROW(initialize(other, json, InitializeOptions{.group = group, .optimizer = &lbfgs}), ConfigError);
    EXPECT_THROW(initialize(other, json, InitializeOptions{.group = group, .parameter_groups = {{.names = {"nope*"}}}}),
                 ConfigError);
  }));
}

TEST(Engine, NonFiniteGradientSkipsTheStepOnAllRanks) {
  expect_all_ok(spawn(2, [](Group group) {
    auto model = make_deep();
    auto engine = initialize(model, deep_json(3, "", store_json("node_shared") + R"(, "bf16": {"enabled": true},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.001, "warmup_max_lr": 0.01,
                                                       "warmup_num_steps": 10, "warmup_type": "linear"}})"),
                             InitializeOptions{.group = group});
    const at::Tensor before = engine.full_weight("layer0.weight");
    const double rate = engine.learning_rate();
    at::Tensor x = input(0, 0).to(at::kBFloat16);
    if (group.rank() == 1) x = x * std::numeric_limits<float>::infinity();
    engine.backward(engine(x).to(at::kFloat).square().mean());
    engine.step();
    EXPECT_EQ(engine.skipped_steps(), 1);
    EXPECT_EQ(engine.learning_rate(), rate);
    EXPECT_TRUE(at::equal(before, engine.full_weight("layer0.weight")));
    engine.backward(engine(input(0, 0).to(at::kBFloat16)).to(at::kFloat).square().mean());
    engine.step();
    EXPECT_EQ(engine.skipped_steps(), 1);
    EXPECT_FALSE(at::equal(before, engine.full_weight("layer0.weight")));
  }));
}

TEST(Engine, UnusedParameterIsAnErrorWhenAskedFor) {
  const auto results = spawn(1, [](Group group) {
    auto model = make_deep();
    model->skipped_layer = 3;
    auto engine =
        initialize(model, deep_json(0, R"(, "ignore_unused_parameters": false)"), InitializeOptions{.group = group});
    train(engine, 1);
  });
  EXPECT_NE(results[0].error.find("layer3.weight"), std::string::npos) << results[0].error;
}

TEST(Engine, StaleGraphIsRefused) {
  expect_all_ok(spawn(1, [](Group group) {
    auto model = make_deep();
    auto engine = initialize(model, deep_json(3), InitializeOptions{.group = group});
    const at::Tensor old_loss = engine(input(0, 0)).square().mean();
    train(engine, 1);
    EXPECT_THROW(engine.backward(old_loss), c10::Error);  // "modified by an inplace operation"
  }));
}

TEST(Engine, ParametersOutliveTheEngineWhereTheyAreWhole) {
  expect_all_ok(spawn(2, [](Group group) {
    for (const char* store : {"node_shared", "copying"}) {
      auto model = make_deep();
      at::Tensor expected;
      {
        auto engine = initialize(model, deep_json(3, "", store_json(store)), InitializeOptions{.group = group});
        train(engine, 1);
        expected = engine.full_weight("layer1.weight");
        group.barrier().wait();
      }
      if (std::string_view(store) == "node_shared") {
        at::NoGradGuard no_grad;
        EXPECT_TRUE(at::equal(model->linears[1]->weight + 0, expected));
        model->linears[1]->weight.to(at::kDouble);
      } else {
        EXPECT_THROW(model->linears[1]->weight + 0, std::exception);
      }
    }
  }));
}

TEST(Engine, SaysAndPinsWhatTheConfigurationAsksFor) {
  expect_all_ok(spawn(2, [](Group group) {
    const std::string json =
        R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0, "steps_per_print": 2,
        "wall_clock_breakdown": true, "memory_breakdown": true, "dump_state": true,
        "zerotorch": {"bind_cores_to_rank": true}})";
    ::unsetenv("ZERO_LOG_LEVEL");
    base::set_log_level(base::LogLevel::kInfo);
    ::testing::internal::CaptureStderr();
    auto model = make_deep();
    auto engine = initialize(model, json, InitializeOptions{.group = group});
    train(engine, 2);
    const std::string said = ::testing::internal::GetCapturedStderr();
    const bool first = group.rank() == 0;
    for (const char* part : {"step 2: lr 0.001", "step 1 in ms: gradient copy", "optimizer", "\"dump_state\": true"}) {
      EXPECT_EQ(said.find(part) != std::string::npos, first) << part << " in: " << said;
    }
    EXPECT_EQ(said.find("step 1: lr"), std::string::npos);
    cpu_set_t cpus;
    ASSERT_EQ(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    EXPECT_LE(CPU_COUNT(&cpus), std::max(1, (cores + 1) / 2));
  }));
}

TEST(Engine, ProgressThreadAsConfigured) {
  expect_all_ok(spawn(2, [](Group group) {
    for (const bool wanted : {true, false}) {
      auto model = make_deep();
      auto engine = initialize(model,
                               deep_json(3, "",
                                         store_json("copying", wanted ? R"(, "progress_thread": "always")"
                                                                      : R"(, "progress_thread": "never")")),
                               InitializeOptions{.group = group});
      EXPECT_EQ(group.has_progress_thread(), wanted);
      train(engine, 3);
    }
  }));
}

TEST(Engine, PrefetchWindowIsMeasuredUpToTheLimit) {
  expect_all_ok(spawn(2, [](Group group) {
    constexpr std::int64_t kLimit = 7 * kLayerNumel;
    for (const bool measured : {true, false}) {
      auto model = make_deep();
      std::string json = deep_json(
          3, "",
          store_json("copying", measured ? R"(, "progress_thread": "always")" : R"(, "measured_prefetch": false)"));
      json.replace(json.find("6000"), 4, std::to_string(kLimit));
      auto engine = initialize(model, json, InitializeOptions{.group = group});
      const auto window = [&] { return engine.communication_report().prefetch_window_numel; };
      EXPECT_EQ(window(), measured ? kLayerNumel : kLimit) << "before anything was measured";
      train(engine, 8);
      EXPECT_GE(window(), kLayerNumel);
      EXPECT_LE(window(), kLimit);
      EXPECT_GT(engine.communication_report().prefetched_gathers, 0);
    }
  }));
}

TEST(Engine, DestroyedWithReductionsAndGathersUnderWay) {
  for (const char* more : {R"(, "progress_thread": "never")", R"(, "progress_thread": "always")",
                           R"(, "progress_thread": "never", "update": "in_backward")",
                           R"(, "progress_thread": "always", "update": "in_backward")"}) {
    for (const char* store : {"copying", "node_shared"}) {
      expect_all_ok(spawn(3, [&](Group group) {
        std::string json = deep_json(3, "", store_json(store, more));
        constexpr std::string_view kClipping = "\"gradient_clipping\": 1.0";
        json.replace(json.find(kClipping), kClipping.size(), "\"gradient_clipping\": 0.0");
        for (int round = 0; round < 20; ++round) {
          auto model = make_deep();
          {
            auto engine = initialize(model, json, InitializeOptions{.group = group});
            train(engine, 2);
            engine.backward(engine(input(group.rank(), 2)).square().mean());  // and no step
          }
          std::int64_t ranks = 1;
          group.all_reduce(&ranks, 1, DType::kInt64).wait();
          EXPECT_EQ(ranks, group.size());
        }
      }));
    }
  }
}

TEST(Engine, MemoryInUseIsLessThanHeldAndTheSummaryHasAllRanks) {
  for (const int ranks : {1, 2, 5}) {
    expect_all_ok(spawn(ranks, [ranks](Group group) {
      auto model = make_deep();
      auto engine = initialize(model, deep_json(3, "", store_json("copying")), InitializeOptions{.group = group});
      train(engine, 2);
      const auto report = engine.memory_report();
      EXPECT_EQ(report[MemoryKind::kBuckets].in_use_nbytes, 0);  // between steps they wait in the pool
      // One rank's gradients come straight into their sums.
      EXPECT_EQ(report[MemoryKind::kBuckets].current_nbytes > 0, ranks > 1);
      EXPECT_EQ(report[MemoryKind::kOptimizer].in_use_nbytes, report[MemoryKind::kOptimizer].current_nbytes);
      for (const auto& kind : report.kinds) EXPECT_LE(kind.in_use_nbytes, kind.current_nbytes);
      const std::string summary = engine.memory_summary();
      EXPECT_EQ(summary.find("all ranks") != std::string::npos, ranks > 1) << summary;
      EXPECT_EQ(summary.find("the fullest") != std::string::npos, ranks > 4) << summary;
      for (const char* part : {"rank ", "before initialize", "gather buffers", "in use", "held", "process, PSS"}) {
        EXPECT_NE(summary.find(part), std::string::npos) << part << " in:\n" << summary;
      }
      const std::int64_t optimizer = sum_over_ranks(group, report[MemoryKind::kOptimizer].current_nbytes);
      EXPECT_NE(summary.find(fmt::format("{:.1f}", optimizer / 1e6)), std::string::npos) << summary;
    }));
  }
}

TEST(Engine, GradientsHaveMemoryFromBackwardToStep) {
  for (const bool cached : {true, false}) {
    expect_all_ok(spawn(2, [cached](Group group) {
      for (int stage = 0; stage <= 3; ++stage) {
        auto model = make_deep();
        const std::string own = fmt::format(R"(, "caching_allocator": {})", cached);
        auto engine = initialize(model, deep_json(stage, "", store_json("copying", own.c_str())),
                                 InitializeOptions{.group = group});
        const bool comes_and_goes = stage >= 1 && storage::keeps_blocks();
        rlimit addresses{};
        getrlimit(RLIMIT_AS, &addresses);
#if !defined(__SANITIZE_ADDRESS__)
        EXPECT_EQ(storage::keeps_blocks(), cached && addresses.rlim_cur == RLIM_INFINITY);
#endif
        const auto gradients = [&] { return engine.memory_report()[MemoryKind::kGradients]; };
        const std::int64_t held = gradients().current_nbytes;
        for (int step = 0; step < 3; ++step) {
          EXPECT_EQ(gradients().in_use_nbytes, comes_and_goes ? 0 : held) << stage;
          engine.backward(engine(input(group.rank(), step)).square().mean());
          // Complete on this rank now, and what is left until the step.
          const at::Tensor gradient = engine.full_gradient("layer2.weight");
          EXPECT_EQ(gradients().in_use_nbytes, held) << stage;
          EXPECT_TRUE(at::equal(engine.full_gradient("layer2.weight"), gradient)) << stage;
          EXPECT_GT(gradient.abs().max().item<float>(), 0) << stage;
          engine.step();
          EXPECT_EQ(engine.full_gradient("layer2.weight").abs().max().item<float>(), 0) << stage;
        }
        EXPECT_EQ(gradients().current_nbytes, held) << stage;
        EXPECT_EQ(gradients().peak_nbytes, held) << stage;
      }
    }));
  }
}

TEST(Engine, MemoryShrinksWithTheStage) {
  expect_all_ok(spawn(2, [](Group group) {
    const std::int64_t psi = kLayers * kLayerNumel;
    for (int stage = 0; stage <= 3; ++stage) {
      auto model = make_deep();
      auto engine = initialize(model, deep_json(stage, "", store_json("copying")), InitializeOptions{.group = group});
      train(engine, 1);
      const auto report = engine.memory_report();
      const auto current = [&](MemoryKind kind) { return sum_over_ranks(group, report[kind].current_nbytes); };
      EXPECT_EQ(current(MemoryKind::kOptimizer), psi * 8 * (stage >= 1 ? 1 : 2)) << stage;
      EXPECT_EQ(current(MemoryKind::kParameters), psi * 4 * (stage >= 3 ? 1 : 2)) << stage;
      EXPECT_EQ(current(MemoryKind::kGradients), psi * 4 * (stage >= 1 ? 1 : 2)) << stage;
      EXPECT_EQ(report[MemoryKind::kStaging].current_nbytes, 0) << stage;
      if (stage < 2) {
        EXPECT_EQ(current(MemoryKind::kBuckets), psi * 4 * 2) << stage;
      }
      if (stage >= 2) {
        EXPECT_LE(current(MemoryKind::kBuckets), 3 * kLayerNumel * 4 * 2) << stage;
      }
      EXPECT_GT(report[MemoryKind::kActivations].peak_nbytes, 0);
    }
  }));
}

}  // namespace
}  // namespace zero::testing::engine_test
