// fp16: losses are scaled and gradients unscaled without leaving a trace, an overflow anywhere skips the step
// everywhere, and the scale survives checkpoints.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include "support/layers.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::fp16_test {
namespace {

struct Setting {
  int stage = 3;
  const char* store = "auto";
  std::string fp16 = R"("initial_scale_power": 8)";
  int accumulation = 1;
  std::string more;  ///< of the JSON, with a comma before it
};

std::string json(const Setting& run) {
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {}, "gradient_clipping": 0,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}},
    "fp16": {{"enabled": true, {}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"store": "{}", "seed": 5}}{}}})",
      run.accumulation, run.fp16, run.stage, run.store, run.more);
}

LayersEngine fp16_engine(Group group, const Setting& run = {}) {
  return layers_engine(std::move(group), 3, {}, json(run));
}

at::Tensor input(std::int64_t index) {
  return at::sin(at::arange(12, at::kFloat).view({2, 6}).mul(0.7).add(static_cast<double>(index))).to(at::kHalf);
}

at::Tensor loss_of(LayersEngine& engine, std::int64_t index) {
  return engine(input(index)).to(at::kFloat).square().mean();
}

/// Everything but the buffer, which counts the calls of forward.
Values trained_of(Engine& engine) {
  Values values = values_of(engine);
  std::erase_if(values, [](const auto& item) { return item.first.starts_with("buffer/"); });
  return values;
}

void step_once(LayersEngine& engine, std::int64_t index) {
  engine.backward(loss_of(engine, index));
  engine.step();
}

/// fp16 parameters, fp32 masters, a scaled loss and AdamW, written by hand.
std::vector<at::Tensor> train_by_hand(int steps, double scale) {
  at::set_num_threads(1);
  at::manual_seed(3);
  Layers model{Shape{}};
  std::vector<at::Tensor> masters;
  for (const auto& parameter : model->parameters()) masters.push_back(parameter.detach().clone().requires_grad_());
  for (auto& parameter : model->parameters()) parameter.set_data(parameter.to(at::kHalf));
  torch::optim::AdamW optimizer(masters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  for (int i = 0; i < steps; ++i) {
    model->forward(input(i)).to(at::kFloat).square().mean().mul(scale).backward();
    const auto parameters = model->parameters();
    for (std::size_t p = 0; p < masters.size(); ++p) {
      masters[p].mutable_grad() = parameters[p].grad().to(at::kFloat).div(scale);
      parameters[p].mutable_grad().reset();
    }
    optimizer.step();
    const at::NoGradGuard no_grad;
    for (std::size_t p = 0; p < masters.size(); ++p) parameters[p].copy_(masters[p]);
  }
  return masters;
}

TEST(Fp16, AgreesWithMastersAndScalesByHand) {
  expect_all_ok(spawn(1, [](Group group) {
    for (const Setting& run : {Setting{0}, Setting{1}, Setting{3, "copying"}, Setting{3, "node_shared"}}) {
      const auto wanted = train_by_hand(8, 256);
      auto engine = fp16_engine(group, run);
      for (int i = 0; i < 8; ++i) step_once(engine, i);
      EXPECT_EQ(engine.loss_scale(), 256);
      EXPECT_EQ(engine.module().parameters().front().scalar_type(), at::kHalf);
      std::size_t p = 0;
      for (const auto& item : engine.module().named_parameters()) {
        // Adam divides by a root of squares: one fp16 rounding of an activation moves a weight by this much.
        EXPECT_TRUE(at::allclose(engine.full_weight(item.key()), wanted[p++], 1e-4, 1e-5)) << item.key();
      }
    }
  }));
}

TEST(Fp16, ScalesThatArePowersOfTwoLeaveNoTrace) {
  expect_all_ok(spawn(2, [](Group group) {
    Values expected;
    for (const char* scale : {"1024", "256"}) {
      auto engine = fp16_engine(group, {.fp16 = fmt::format(R"("loss_scale": {})", scale)});
      for (int i = 0; i < 5; ++i) step_once(engine, 2 * i + group.rank());
      EXPECT_EQ(engine.loss_scale(), std::stod(scale));
      if (expected.empty()) expected = trained_of(engine);
      EXPECT_EQ(differing(expected, trained_of(engine)), Names());
    }
  }));
}

TEST(Fp16, AProgramsOwnBackwardScalesItsLoss) {
  expect_all_ok(spawn(2, [](Group group) {
    Values values[2];
    for (const bool own : {false, true}) {
      auto engine = fp16_engine(group);
      for (int i = 0; i < 4; ++i) {
        const at::Tensor loss = loss_of(engine, 2 * i + group.rank());
        own ? engine.scale(loss).backward() : engine.backward(loss);
        engine.step();
      }
      values[own] = trained_of(engine);
    }
    EXPECT_EQ(differing(values[0], values[1]), Names());
  }));
}

TEST(Fp16, TheGuidesLoops) {
  expect_all_ok(spawn(2, [](Group group) {
    auto engine = fp16_engine(group);
    at::Tensor loss = loss_of(engine, group.rank());
    // [guide: backward]
    engine.backward(loss);  // scales it
    engine.step();          // unscales, or skips
    if (!engine.was_step_applied()) std::printf("skipped, %g from here on\n", engine.loss_scale());
    // [end]
    loss = loss_of(engine, group.rank());
    // [guide: scale]
    engine.scale(loss).backward();
    engine.step();
    // [end]
    EXPECT_TRUE(engine.was_step_applied());
  }));
}

TEST(Fp16, ALossThatWasNotScaledIsRefused) {
  expect_all_ok(spawn(2, [](Group group) {
    auto engine = fp16_engine(group);
    const Values before = trained_of(engine);
    expect_said([&] { loss_of(engine, 0).backward(); }, "a loss that was not scaled");
    engine.zero_grad();
    EXPECT_EQ(differing(before, trained_of(engine)), Names());
    engine.scale(loss_of(engine, 0)).backward();
    engine.step();
    EXPECT_TRUE(engine.was_step_applied());
    expect_said([&] { engine.backward(engine.scale(loss_of(engine, 0))); }, "would scale the loss twice");
    step_once(engine, 1);
    // A scaled loss does not vouch for the next.
    expect_said([&] { loss_of(engine, 0).backward(); }, "a loss that was not scaled");
  }));
}

TEST(Fp16, ConfigurationsAsArticlesPrintThemTrain) {
  const char* const printed[] = {
      R"({"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}, "train_batch_size": 32,
          "gradient_accumulation_steps": 1})",
      R"({"train_batch_size": 32,
          "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
                                "reduce_bucket_size": 5e8},
          "fp16": {"enabled": true}})",
      R"({"train_batch_size": 32, "zero_optimization": {"stage": 3, "cpu_offload": true}, "fp16": {"enabled": true}})"};
  expect_all_ok(spawn(2, [&](Group group) {
    for (const char* text : printed) {
      auto engine = layers_engine(group, 3, {}, text);
      const Values before = trained_of(engine);
      for (int i = 0; i < 4; ++i) step_once(engine, 2 * i + group.rank());
      EXPECT_EQ(engine.loss_scale(), 65536);
      EXPECT_EQ(engine.global_steps() - engine.skipped_steps(), 4);
      EXPECT_NE(differing(before, trained_of(engine)), Names());
    }
  }));
}

/// Puts `value` into the gradient of the first layer's weight, on one rank.
void poison(LayersEngine& engine, std::int64_t index, double value) {
  at::Tensor hidden = engine.typed_module()->first(input(index));
  hidden.register_hook([value](const at::Tensor& gradient) { return gradient.mul(value); });
  engine.backward(engine.typed_module()->second(at::tanh(hidden)).to(at::kFloat).square().mean());
}

TEST(Fp16, AnOverflowAnywhereSkipsTheStepEverywhere) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  for (int ranks = 1; ranks <= 3; ++ranks) {
    expect_all_ok(spawn(ranks, [kInf, kNaN](Group group) {
      const int ranks = group.size();
      for (const Setting& run :
           {Setting{0}, Setting{1}, Setting{2}, Setting{3, "copying"}, Setting{3, "node_shared"}}) {
        for (const double value : {kInf, kNaN}) {
          for (int bad = 0; bad < ranks; ++bad) {
            Setting setting = run;
            setting.fp16 = R"("initial_scale_power": 8, "hysteresis": 1, "loss_scale_window": 2)";
            auto engine = fp16_engine(group, setting);
            step_once(engine, group.rank());
            EXPECT_TRUE(engine.was_step_applied());
            const Values before = trained_of(engine);
            group.rank() == bad ? poison(engine, 1, value) : engine.backward(loss_of(engine, 2));
            engine.step();
            EXPECT_FALSE(engine.was_step_applied());
            EXPECT_EQ(engine.skipped_steps(), 1);
            EXPECT_EQ(engine.global_steps(), 2);
            EXPECT_EQ(engine.loss_scale(), 128);
            EXPECT_EQ(differing(before, trained_of(engine)), Names()) << run.stage << " " << run.store;
            // The step after it is as if there had been no overflow, but for the scale, which leaves no
            // trace.
            step_once(engine, 5 + group.rank());
            EXPECT_TRUE(engine.was_step_applied());
            EXPECT_NE(differing(before, trained_of(engine)), Names());
          }
        }
      }
    }));
  }
}

TEST(Fp16, AnOverflowInsideAWindowSkipsTheWholeWindow) {
  expect_all_ok(spawn(2, [](Group group) {
    auto engine = fp16_engine(group, {.accumulation = 3});
    const Values before = trained_of(engine);
    for (int i = 0; i < 3; ++i) {
      i == 1 && group.rank() == 1 ? poison(engine, i, std::numeric_limits<double>::infinity())
                                  : engine.backward(loss_of(engine, i));
      engine.step();
      EXPECT_FALSE(engine.was_step_applied());
    }
    EXPECT_EQ(engine.skipped_steps(), 1);
    EXPECT_EQ(differing(before, trained_of(engine)), Names());
  }));
}

TEST(Fp16, AtTheSmallestScaleAnOverflowIsAnErrorThatNamesTheParameter) {
  expect_all_ok(spawn(2, [](Group group) {
    auto engine = fp16_engine(group, {.fp16 = R"("initial_scale_power": 1, "hysteresis": 1)"});
    const auto overflow = [&] {
      group.rank() == 1 ? poison(engine, 1, std::numeric_limits<double>::quiet_NaN())
                        : engine.backward(loss_of(engine, 2));
      engine.step();
    };
    overflow();
    EXPECT_EQ(engine.loss_scale(), 1);
    expect_said(overflow, "the gradient of parameter 'first.weight' is not finite at a loss scale of 1");
    EXPECT_EQ(engine.skipped_steps(), 2);
    step_once(engine, group.rank());  // and on, if the program wants to
    EXPECT_TRUE(engine.was_step_applied());
  }));
}

TEST(Fp16, TheScaleGoesOnFromACheckpointAtOtherNumbersOfRanks) {
  const TemporaryFolder folder;
  const std::string scaler = R"("initial_scale_power": 8, "hysteresis": 2, "loss_scale_window": 3)";
  // Overflows by step; the global batch is the same for all numbers of ranks: four micro-batches.
  const std::vector<bool> overflows = {false, true, false, false, false, false, true, true, false, true, false, false};
  const auto run = [&](Group group, int stage, std::size_t begin, std::size_t end, LayersEngine& engine,
                       std::vector<double>& scales) {
    const int each = 4 / group.size();
    (void)stage;
    for (std::size_t step = begin; step < end; ++step) {
      for (int i = 0; i < each; ++i) {
        const auto index = static_cast<std::int64_t>(step) * 4 + i * group.size() + group.rank();
        overflows[step] && index % 4 == 2 ? poison(engine, index, std::numeric_limits<double>::infinity())
                                          : engine.backward(loss_of(engine, index));
        engine.step();
      }
      scales.push_back(engine.loss_scale());
    }
  };
  const auto setting = [&](Group& group, int stage) {
    return Setting{.stage = stage, .fp16 = scaler, .accumulation = 4 / group.size()};
  };
  expect_all_ok(spawn(1, [&](Group group) {
    std::vector<double> scales;
    auto engine = fp16_engine(group, setting(group, 0));
    run(group, 0, 0, overflows.size(), engine, scales);
    // Overflows in steps 1, 6, 7, 9: the first uses up hysteresis; four clean steps fill a window of three
    // once.
    EXPECT_EQ(scales, (std::vector<double>{256, 256, 256, 256, 256, 512, 512, 256, 256, 128, 128, 128}));
    engine.save_checkpoint(folder.path(), "end");
  }));
  for (std::size_t cut = 1; cut < overflows.size(); ++cut) {
    const std::string tag = fmt::format("cut{}", cut);
    expect_all_ok(spawn(2, [&](Group group) {
      std::vector<double> scales;
      auto engine = fp16_engine(group, setting(group, 2));
      run(group, 2, 0, cut, engine, scales);
      engine.save_checkpoint(folder.path(), tag);
    }));
    expect_all_ok(spawn(4, [&](Group group) {
      std::vector<double> scales;
      auto engine = fp16_engine(group, setting(group, 3));
      engine.load_checkpoint(folder.path(), tag);
      run(group, 3, cut, overflows.size(), engine, scales);
      auto straight = fp16_engine(group, setting(group, 1));
      straight.load_checkpoint(folder.path(), "end");
      EXPECT_EQ(engine.loss_scale(), straight.loss_scale());
      EXPECT_EQ(engine.skipped_steps(), straight.skipped_steps());
      EXPECT_EQ(differing(trained_of(straight), trained_of(engine)), Names()) << "cut at " << cut;
    }));
  }
}

TEST(Fp16, SumsOfAnOpenWindowFollowTheScaleOfTheEngineThatLoadsThem) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = fp16_engine(group, {.accumulation = 2});
    engine.backward(loss_of(engine, group.rank()));
    engine.step();
    engine.save_checkpoint(folder.path(), "open");
    engine.backward(loss_of(engine, 2 + group.rank()));
    engine.step();
    const Values wanted = trained_of(engine);
    auto other = fp16_engine(group, {.fp16 = R"("loss_scale": 1024)", .accumulation = 2});
    other.load_checkpoint(folder.path(), "open");
    EXPECT_EQ(other.loss_scale(), 1024);
    other.backward(loss_of(other, 2 + group.rank()));
    other.step();
    EXPECT_EQ(differing(wanted, trained_of(other)), Names());
  }));
}

TEST(Fp16, GradientsAreReadUnscaled) {
  expect_all_ok(spawn(2, [](Group group) {
    auto engine = fp16_engine(group);
    engine.backward(loss_of(engine, group.rank()));
    const at::Tensor whole = engine.full_gradient("first.weight");
    at::Tensor part = at::zeros_like(whole).view(-1);
    engine.for_each_gradient([&](const GradientPart& gradient) {
      if (gradient.name == "first.weight")
        part.narrow(0, gradient.begin, gradient.values.numel()).copy_(gradient.values);
    });
    for (std::int64_t i = 0; i < part.numel(); ++i) {
      const float mine = part[i].item<float>();
      if (mine != 0) {
        EXPECT_EQ(mine, whole.view(-1)[i].item<float>());
      }
    }
    EXPECT_LT(whole.abs().max().item<float>(), 2);  // not 256 times as much
    engine.step();
    EXPECT_LT(engine.grad_norm(), 4);
  }));
}

TEST(Fp16, AutoCastTurnsInputsIntoFp16) {
  expect_all_ok(spawn(1, [](Group group) {
    auto engine = fp16_engine(group, {.fp16 = R"("auto_cast": true)"});
    EXPECT_EQ(engine(at::zeros({2, 6})).scalar_type(), at::kHalf);
    auto plain = fp16_engine(group);
    EXPECT_THROW((void)plain(at::zeros({2, 6})), c10::Error);
  }));
}

TEST(Fp16, TwoNetworksWithBackwardsOfTheirOwn) {
  expect_all_ok(spawn(2, [](Group group) {
    for (const char* second : {R"("loss_scale": 64)", R"("loss_scale": 32)"}) {
      auto generator = fp16_engine(group, {.fp16 = R"("loss_scale": 64)"});
      auto critic = layers_engine(group, 4, {.out = 1, .added = false}, json({.fp16 = second}));
      const auto judged = [&](const at::Tensor& made) {
        return critic(at::cat({made, made.narrow(1, 0, 2)}, 1)).to(at::kFloat).square().mean();
      };
      for (int i = 0; i < 3; ++i) {
        critic.zero_grad();
        critic.scale(judged(generator(input(i)).detach())).backward();
        critic.step();
        EXPECT_TRUE(critic.was_step_applied());
        const Values before = trained_of(generator);
        generator.zero_grad();
        generator.scale(judged(generator(input(i)))).backward();
        generator.step();
        EXPECT_TRUE(generator.was_step_applied());
        EXPECT_NE(differing(before, trained_of(generator)), Names());
      }
    }
  }));
}

TEST(Fp16, ALossIsScaledOnce) {
  expect_all_ok(spawn(1, [](Group group) {
    auto engine = fp16_engine(group);
    const at::Tensor scaled = engine.scale(loss_of(engine, 0));
    expect_said([&] { (void)engine.scale(scaled); }, "this loss is scaled already");
    (engine.scale(loss_of(engine, 1)) + engine.scale(loss_of(engine, 2))).backward();
    engine.step();
    EXPECT_LT(engine.grad_norm(), 8);
  }));
}

TEST(Fp16, AnOverflowOfAnOpenWindowIsNotTakenByAnEngineThatDoesNotSkip) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = fp16_engine(group, {.accumulation = 2});
    poison(engine, 1, std::numeric_limits<double>::infinity());
    engine.step();
    engine.save_checkpoint(folder.path(), "overflow");
    auto plain = layers_engine(group, 3, {}, layers_json(false, 2));
    plain.load_checkpoint(folder.path(), "overflow");
    train(plain, 1);
    EXPECT_TRUE(std::isfinite(plain.grad_norm())) << plain.grad_norm();
    EXPECT_TRUE(plain.full_weight("first.weight").isfinite().all().item<bool>());
  }));
}

TEST(Fp16, EnginesWithOneLossNeedOneScale) {
  expect_all_ok(spawn(1, [](Group group) {
    auto a = fp16_engine(group, {.fp16 = R"("loss_scale": 64)"});
    auto b = fp16_engine(group, {.fp16 = R"("loss_scale": 64)"});
    backward(loss_of(a, 0) + loss_of(b, 1), {&a, &b});
    a.step();
    b.step();
    auto c = fp16_engine(group, {.fp16 = R"("loss_scale": 32)"});
    expect_said([&] { backward(loss_of(a, 0) + loss_of(c, 1), {&a, &c}); }, "their loss scales are 64 and 32");
  }));
}

TEST(CommunicationDtype, GivesTheSameBitsOnAnyNumberOfRanks) {
  const TemporaryFolder folder;
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    for (const char* travels : {"fp32", "bf16", "fp16"}) {
      for (int ranks = 1; ranks <= 4; ranks = ranks == 1 ? 2 : ranks + 2) {
        expect_all_ok(spawn(ranks, [&](Group group) {
          const std::string text = fmt::format(
              R"({{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "communication_data_type": "{}",
                  "bf16": {{"enabled": {}}}, "fp16": {{"enabled": {}, "loss_scale": 64}},
                  "zero_optimization": {{"stage": {}}}, "zerotorch": {{"seed": 5}}}})",
              travels, precision == std::string("bf16"), precision == std::string("fp16"), ranks - 1);
          auto engine = layers_engine(group, 3, {}, text);
          for (int i = 0; i < 8 / ranks; ++i) {
            at::Tensor x = input(i * ranks + group.rank());
            x = x.to(engine.module().parameters().front().scalar_type());
            engine.backward(engine(x).to(at::kFloat).square().mean());
            engine.step();
          }
          const std::string tag = fmt::format("{}_{}", precision, travels);
          if (group.size() == 1) return engine.save_checkpoint(folder.path(), tag), void();
          auto first = layers_engine(group, 4, {}, text);
          first.load_checkpoint(folder.path(), tag);
          EXPECT_EQ(differing(trained_of(first), trained_of(engine)), Names())
              << tag << ", " << group.size() << " ranks";
        }));
      }
    }
  }
}

TEST(CommunicationDtype, RoundsGradientsOnceWhereItIsNarrower) {
  expect_all_ok(spawn(2, [](Group group) {
    at::Tensor gradients[2];
    for (const bool narrow : {false, true}) {
      auto engine =
          layers_engine(group, 3, {},
                        fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": 2}}
                          {}}})",
                                    narrow ? R"(, "communication_data_type": "bf16")" : ""));
      engine.backward(engine(input(3).to(at::kFloat)).square().mean());
      gradients[narrow] = engine.full_gradient("first.weight");
      engine.step();
    }
    EXPECT_FALSE(at::equal(gradients[0], gradients[1]));
    EXPECT_TRUE(at::equal(gradients[0].to(at::kBFloat16).to(at::kFloat), gradients[1]));  // both ranks have the same
  }));
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Fp16, CsvMonitorHasDeepSpeedsFilesAndAResumedRunAppends) {
  const TemporaryFolder folder;
  const Setting setting{
      .fp16 = R"("loss_scale": 256)",
      .accumulation = 2,
      .more = fmt::format(R"(, "csv_monitor": {{"enabled": true, "output_path": "{}", "job_name": "job"}})",
                          folder.file("csv"))};
  std::vector<double> losses;
  const auto step = [&](LayersEngine& engine) {
    double sum = 0;
    for (int i = 0; i < 2; ++i) {
      const at::Tensor loss = loss_of(engine, i);
      sum += loss.item().toDouble();
      engine.backward(loss);
      engine.step();
    }
    losses.push_back(sum / 2);
  };
  const auto rows = [&](const char* name) { return lines_of(folder.file(fmt::format("csv/job/{}.csv", name))); };
  using Lines = std::vector<std::string>;
  expect_all_ok(spawn(1, [&](Group group) {
    {
      auto engine = fp16_engine(group, setting);
      step(engine);
      EXPECT_EQ(rows("Train_Samples_lr"), (Lines{"step,lr", "4,0.01"}));  // before the engine goes
      engine.save_checkpoint(folder.path(), "one");
      step(engine);
    }
    std::ofstream(folder.file("csv/job/Train_Samples_lr.csv"), std::ios::app) << "12,0.0";  // cut off by a power cut
    auto engine = fp16_engine(group, setting);
    engine.load_checkpoint(folder.path(), "one");
    step(engine);
    EXPECT_EQ(rows("Train_Samples_lr"), (Lines{"step,lr", "4,0.01", "8,0.01", "12,0.0", "8,0.01"}));
    EXPECT_EQ(rows("Train_Samples_loss_scale"), (Lines{"step,loss_scale", "4,256", "8,256", "8,256"}));
    EXPECT_EQ(rows("Train_Samples_grad_norm").size(), 4u);
    EXPECT_EQ(rows("Train_Samples_train_loss"),
              (Lines{"step,train_loss", fmt::format("4,{}", losses[0]), fmt::format("8,{}", losses[1]),
                     fmt::format("8,{}", losses[2])}));
  }));
  expect_all_ok(spawn(2, [&](Group group) {
    Setting other = setting;
    other.fp16 = R"("loss_scale": 64)";
    auto engine = fp16_engine(group, other);
    step(engine);
  }));
  EXPECT_EQ(rows("Train_Samples_loss_scale").back(), "8,64");  // of two ranks one writes, for both
  EXPECT_EQ(rows("Train_Samples_loss_scale").size(), 5u);
}

}  // namespace
}  // namespace zero::testing::fp16_test
