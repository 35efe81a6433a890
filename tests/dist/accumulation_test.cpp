// Accumulation windows whose length changes, and whose end the program gives: the same bits for every stage, store,
// number of ranks and way to say it, libtorch's numbers, and an error where a window would be wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <bit>
#include <chrono>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "support/layers.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"

namespace zero::testing::accumulation_test {
namespace {

enum class Style : std::uint8_t {
  kCounted,  ///< by gradient_accumulation_steps
  kGiven,    ///< set_gradient_accumulation_boundary(), and a step() after every backward()
  kOneStep,  ///< the same with one step() a window
};

/// Micro-batches of all ranks in each window.
const std::vector<int> kWindows = {6, 12, 6, 18, 12};

std::string json_of(int stage, bool node_shared, bool bf16, int accumulation, bool clips = true) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
    "optimizer": {{"type": "SGD", "params": {{"lr": 0.05, "momentum": 0.9}}}},
    "gradient_clipping": {}, "bf16": {{"enabled": {}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 20}},
    "zerotorch": {{"seed": 5, "store": "{}"}}}})",
                     accumulation, clips ? 0.5 : 0.0, bf16, stage, node_shared ? "node_shared" : "copying");
}

at::Tensor input_of(std::int64_t index) {
  return at::sin(at::arange(12, at::kFloat).view({2, 6}).mul(0.7).add(static_cast<double>(index)));
}

at::Tensor loss_of(LayersEngine& engine) {
  const at::Tensor x = input_of(engine.micro_steps() * engine.world_size() + engine.rank());
  return engine(x.to(engine.module().parameters().front().scalar_type())).to(at::kFloat).square().sum();
}

/// The micro-batches of this rank from number `first` on of a window of `length`.
void train_window(LayersEngine& engine, int length, Style style, int first = 0) {
  for (int j = first; j < length; ++j) {
    const bool last = j + 1 == length;
    if (style != Style::kCounted) engine.set_gradient_accumulation_boundary(last);
    EXPECT_EQ(engine.is_gradient_accumulation_boundary(), last);
    engine.backward(loss_of(engine));
    if (style != Style::kOneStep || last) {
      engine.step();
      EXPECT_EQ(engine.was_step_applied(), last);
    }
  }
}

std::string bits_of(LayersEngine& engine) {
  std::uint64_t hash = std::bit_cast<std::uint64_t>(engine.grad_norm());
  for (const auto& item : engine.module().named_parameters()) {
    for (const at::Tensor& tensor :
         {engine.full_weight(item.key()), engine.full_optimizer_state(item.key(), "momentum_buffer")}) {
      const at::Tensor flat = tensor.contiguous();
      for (std::int64_t i = 0; i < flat.numel(); ++i)
        hash = (hash ^ std::bit_cast<std::uint32_t>(flat.const_data_ptr<float>()[i])) * 1099511628211ull;
    }
  }
  return fmt::format("{:016x}", hash);
}

/// Trains windows [begin, end) from their beginning.
void train_windows(LayersEngine& engine, std::size_t begin, std::size_t end, Style style) {
  for (std::size_t w = begin; w < end; ++w) {
    const int length = kWindows[w] / engine.world_size();
    if (style == Style::kCounted) {
      engine.set_train_batch_size(2 * kWindows[w]);
    } else {
      engine.set_gradient_accumulation_steps(length);
    }
    EXPECT_EQ(engine.config().train_batch_size, 2 * kWindows[w]);
    EXPECT_EQ(engine.config().gradient_accumulation_steps, length);
    train_window(engine, length, style);
    EXPECT_EQ(engine.global_steps(), static_cast<std::int64_t>(w) + 1);
  }
}

void expect_plain_weights(LayersEngine& engine) {
  at::manual_seed(3);
  Layers model{Shape()};
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::int64_t index = 0;
  for (const int window : kWindows) {
    optimizer.zero_grad();
    for (int i = 0; i < window; ++i) model(input_of(index++)).square().sum().backward();
    for (const auto& parameter : model->parameters()) parameter.mutable_grad().mul_(1.0 / window);
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
    optimizer.step();
  }
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(at::allclose(engine.full_weight(item.key()), item.value(), 1e-5, 1e-6)) << item.key();
}

/// Everything that `write` lines say, by their first word: each must say one thing only.
void expect_one_of_each(const std::string& file, std::size_t curves, int lines) {
  std::map<std::string, std::set<std::string>> said;
  std::ifstream in(file);
  std::string curve, bits;
  int count = 0;
  for (; in >> curve >> bits; ++count) said[curve].insert(bits);
  EXPECT_EQ(count, lines);
  EXPECT_EQ(said.size(), curves);
  for (const auto& [name, all] : said) EXPECT_EQ(all.size(), 1u) << name;
}

TEST(Accumulation, WindowsOfAnyLengthGiveTheSameBitsHoweverTheyAreSaid) {
  const TemporaryFolder folder;

  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      std::ofstream out;
      if (group.rank() == 0) out.open(folder.file("bits"), std::ios::app);
      for (int stage = 0; stage <= 3; ++stage) {
        for (const Style style : {Style::kCounted, Style::kGiven, Style::kOneStep}) {
          const bool node_shared = (stage + static_cast<int>(style)) % 2 == 0;
          for (const bool bf16 : {false, true}) {
            auto engine = layers_engine(group, 3, {}, json_of(stage, node_shared, bf16, 1));
            train_windows(engine, 0, kWindows.size(), style);
            const std::string bits = bits_of(engine);
            if (group.rank() == 0) out << (bf16 ? "bf16 " : "fp32 ") << bits << '\n';
            if (!bf16) expect_plain_weights(engine);
          }
        }
      }
    }));
  }
  expect_one_of_each(folder.file("bits"), 2, 3 * 4 * 3 * 2);
}

TEST(Accumulation, ACheckpointInsideAWindowOfAnotherLengthGoesOnOnAnyNumberOfRanks) {
  const TemporaryFolder folder;
  const auto json = [](int stage) { return json_of(stage, stage == 3, false, 1); };
  for (const Style style : {Style::kCounted, Style::kOneStep}) {
    const std::string tag = style == Style::kCounted ? "counted" : "given";
    expect_all_ok(spawn(2, [&](Group group) {
      auto engine = layers_engine(group, 3, {}, json(2));
      train_windows(engine, 0, 3, style);
      engine.set_gradient_accumulation_steps(9);
      if (style == Style::kCounted) {
        for (int j = 0; j < 3; ++j) {
          engine.backward(loss_of(engine));
          engine.step();
        }
      } else {
        engine.set_gradient_accumulation_boundary(false);
        for (int j = 0; j < 3; ++j) engine.backward(loss_of(engine));
      }
      engine.save_checkpoint(folder.path(), tag);
      train_window(engine, 9, style, 3);
      train_windows(engine, 4, 5, style);
      const std::string bits = bits_of(engine);
      if (group.rank() == 0) std::ofstream(folder.file("bits"), std::ios::app) << tag << ' ' << bits << '\n';
    }));
    for (const int ranks : {1, 2, 3}) {
      expect_all_ok(spawn(ranks, [&](Group group) {
        auto engine = layers_engine(group, 8, {}, json(ranks == 3 ? 3 : 1));
        const LoadReport report = engine.load_checkpoint(folder.path(), tag);
        const int length = 18 / ranks, first = 6 / ranks;
        EXPECT_TRUE(any_mentions(report.notices, fmt::format("gradient_accumulation_steps is {} again", length)));
        EXPECT_EQ(engine.config().gradient_accumulation_steps, length);
        EXPECT_EQ(engine.config().train_batch_size, 36);
        EXPECT_EQ(report.micro_batches, 24 + 6);
        train_window(engine, length, style, first);
        train_windows(engine, 4, 5, style);
        const std::string bits = bits_of(engine);
        if (group.rank() == 0) std::ofstream(folder.file("bits"), std::ios::app) << tag << ' ' << bits << '\n';
      }));
    }
  }
  expect_one_of_each(folder.file("bits"), 2, 8);
}

TEST(Accumulation, TheDataGoesOnFromAnEndOfAWindowThatTheRanksCannotShareOut) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(1, [&](Group group) {
    auto engine = layers_engine(group, 3, {}, json_of(2, false, false, 1));
    train_window(engine, 1, Style::kCounted);
    engine.set_gradient_accumulation_steps(4);
    train_window(engine, 4, Style::kCounted);
    engine.save_checkpoint(folder.path(), "a");
  }));
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 3, {}, json_of(2, false, false, 1));
    const LoadReport report = engine.load_checkpoint(folder.path(), "a");
    EXPECT_EQ(report.micro_batches, 6);
    EXPECT_TRUE(any_mentions(report.notices, "had come to micro-batch 5, goes on at 6"));
    EXPECT_EQ(engine.config().gradient_accumulation_steps, 2);
    train_window(engine, 2, Style::kCounted);
    EXPECT_EQ(engine.global_steps(), 3);
  }));
  expect_all_ok(spawn(3, [&](Group group) {
    auto engine = layers_engine(group, 3, {}, json_of(2, false, false, 2));
    const LoadReport report = engine.load_checkpoint(folder.path(), "a");
    EXPECT_EQ(report.micro_batches, 6);
    EXPECT_TRUE(any_mentions(report.notices, "gradient_accumulation_steps stays 2: the program had set 4 for 1 ranks"));
    train_window(engine, 2, Style::kCounted);
    EXPECT_EQ(engine.global_steps(), 3);
  }));
}

// The definition, from gradients of plain libtorch: of every micro-batch alone, and of their mean.
TEST(Accumulation, GradientNoiseIsThatOfTheMicroBatches) {
  for (const int ranks : {1, 2, 4}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      const int each = 4 / group.size();
      for (const int stage : {0, 2, 3}) {
        auto engine = layers_engine(group, 3, {}, json_of(stage, false, false, each, /*clips=*/stage == 2));
        Layers model{Shape()};
        engine.measure_gradient_noise();
        for (int step = 0; step < 2; ++step) {
          {
            at::NoGradGuard no_grad;
            for (const auto& item : model->named_parameters()) item.value().copy_(engine.full_weight(item.key()));
          }
          double micro = 0;
          std::vector<at::Tensor> mean;
          for (int i = 0; i < 4; ++i) {
            model->zero_grad();
            model(input_of(i)).square().sum().backward();
            std::size_t p = 0;
            for (const auto& parameter : model->parameters()) {
              micro += parameter.grad().square().sum().item<double>() / 4;
              if (i == 0) mean.push_back(at::zeros_like(parameter));
              mean[p++] += parameter.grad() / 4;
            }
          }
          double batch = 0;
          for (const at::Tensor& one : mean) batch += one.square().sum().item<double>();
          EXPECT_EQ(step > 0, engine.gradient_noise().has_value());
          for (int j = 0; j < each; ++j) {
            engine.backward(engine(input_of(j * group.size() + group.rank())).square().sum());
            if (j + 1 < each) {
              EXPECT_THROW(engine.measure_gradient_noise(), ConfigError);
            }
            engine.step();
          }
          const auto noise = engine.gradient_noise();
          ASSERT_TRUE(noise.has_value());
          EXPECT_EQ(noise->micro_batches, 4);
          EXPECT_NEAR(noise->micro_batch_sumsq, micro, 1e-5 * micro) << "stage " << stage;
          EXPECT_NEAR(noise->batch_sumsq, batch, 1e-5 * batch) << "stage " << stage;
          EXPECT_NEAR(noise->noise() / 4 + noise->signal(), noise->batch_sumsq, 1e-9 * batch);
          EXPECT_NEAR(noise->noise() + noise->signal(), noise->micro_batch_sumsq, 1e-9 * micro);
        }
        // What is dropped does not count; what is not measured is not there.
        engine.backward(engine(input_of(7)).square().sum());
        engine.zero_grad();
        engine.measure_gradient_noise(false);
        for (int j = 0; j < each; ++j) {
          engine.backward(engine(input_of(j)).square().sum());
          engine.step();
        }
        EXPECT_FALSE(engine.gradient_noise().has_value());
      }
    }));
  }
}

/// Windows that the caller ends: of the mean of the micro-batches, whatever the average's divisor is.
TEST(Accumulation, TheNoiseIsThatOfTheMeanInWindowsOfAnyLength) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 3, {}, json_of(2, false, false, 2, /*clips=*/false));
    engine.measure_gradient_noise();
    double first = 0;
    for (const int length : {2, 1, 3}) {
      Layers model{Shape()};
      {
        at::NoGradGuard no_grad;
        for (const auto& item : model->named_parameters()) item.value().copy_(engine.full_weight(item.key()));
      }
      model(input_of(0)).square().sum().backward();
      double want = 0;
      for (const auto& parameter : model->parameters()) want += parameter.grad().square().sum().item<double>();
      for (int j = 0; j < length; ++j) {
        engine.set_gradient_accumulation_boundary(j + 1 == length);
        engine.backward(engine(input_of(0)).square().sum());
      }
      engine.step();
      const auto noise = engine.gradient_noise();
      ASSERT_TRUE(noise.has_value());
      EXPECT_EQ(noise->micro_batches, 2 * length);
      EXPECT_NEAR(noise->micro_batch_sumsq, want, 1e-4 * want) << length;
      EXPECT_NEAR(noise->batch_sumsq, want, 1e-4 * want) << length;
      first += want;
    }
    EXPECT_GT(first, 0);
  }));
}

TEST(Accumulation, TheNoiseOfSeveralBackwardsIsRefused) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 3, {}, json_of(2, false, false, 2));
    engine.measure_gradient_noise();
    const at::Tensor output = engine(input_of(group.rank()));
    engine.backward(output.square().sum(), {.retain_graph = true});
    EXPECT_NE(testing::error_of<ModelError>([&] { engine.backward(output.sum()); }).find("several backwards"),
              std::string::npos);
    engine.zero_grad();
    engine.measure_gradient_noise(false);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor again = engine(input_of(group.rank()));
      engine.backward(again.square().sum(), {.retain_graph = true});
      engine.backward(again.sum());
      engine.step();
    }
    EXPECT_EQ(engine.global_steps(), 1);
    // Those of the program's own making are seen at their end.
    engine.measure_gradient_noise();
    for (int backward = 0; backward < 2; ++backward) engine(input_of(group.rank())).square().sum().backward();
    EXPECT_NE(testing::error_of<ModelError>([&] { engine.step(); }).find("several backwards"), std::string::npos);
  }));
}

// As in DeepSpeed 0.19.8, whose backward() divides every loss by gradient_accumulation_steps.
TEST(Accumulation, TheAverageDividesByTheAccumulationThatIsSet) {
  expect_all_ok(spawn(2, [&](Group group) {
    for (const int length : {1, 2, 3}) {
      auto engine = layers_engine(group, 3, {}, json_of(2, false, false, 2, /*clips=*/false));
      Layers model{Shape()};
      {
        at::NoGradGuard no_grad;
        for (const auto& item : model->named_parameters()) item.value().copy_(engine.full_weight(item.key()));
      }
      for (int i = 0; i < 2 * length; ++i) model(input_of(i)).square().sum().backward();
      for (int j = 0; j < length; ++j) {
        engine.set_gradient_accumulation_boundary(j + 1 == length);
        engine.backward(loss_of(engine));
      }
      const at::Tensor want = model->first->weight.grad() / 4;
      EXPECT_TRUE(at::allclose(engine.full_gradient("first.weight"), want, 1e-5, 1e-6)) << length;
      engine.step();
      EXPECT_TRUE(engine.was_step_applied());
      double squares = 0;
      for (const auto& parameter : model->parameters()) squares += (parameter.grad() / 4).square().sum().item<double>();
      EXPECT_NEAR(engine.grad_norm(), std::sqrt(squares), 1e-4 * std::sqrt(squares)) << length;
    }
  }));
}

TEST(Accumulation, ABoundaryThatIsGivenLateCounts) {
  expect_all_ok(spawn(2, [&](Group group) {
    for (int stage = 0; stage <= 3; ++stage) {
      const std::string json = json_of(stage, false, false, 3);
      auto counted = layers_engine(group, 3, {}, json_of(stage, false, false, 1));
      counted.set_gradient_accumulation_steps(3);
      counted.set_gradient_accumulation_boundary(true);
      counted.backward(loss_of(counted));
      counted.step();
      const std::string want = bits_of(counted);

      auto between = layers_engine(group, 3, {}, json);
      between.backward(loss_of(between));
      between.set_gradient_accumulation_boundary(true);
      between.step();
      EXPECT_EQ(bits_of(between), want);
      EXPECT_EQ(between.micro_steps(), 1);

      auto after = layers_engine(group, 3, {}, json);
      after.set_gradient_accumulation_boundary(false);
      after.backward(loss_of(after));
      EXPECT_EQ(after.micro_steps(), 1);
      after.step();  // nothing more
      EXPECT_FALSE(after.was_step_applied());
      EXPECT_EQ(after.micro_steps(), 1);
      after.zero_grad();
      after.backward(loss_of(after));  // of micro-batch 1
      after.zero_grad();

      auto late = layers_engine(group, 3, {}, json);
      late.set_gradient_accumulation_boundary(false);
      late.backward(loss_of(late));
      late.set_gradient_accumulation_boundary(true);
      late.step();
      EXPECT_TRUE(late.was_step_applied());
      EXPECT_EQ(late.micro_steps(), 1);
      EXPECT_EQ(bits_of(late), want);

      // Counted again: from the window's beginning.
      late.set_gradient_accumulation_boundary({});
      train_window(late, 3, Style::kCounted);
      EXPECT_EQ(late.global_steps(), 2);
    }
  }));
}

TEST(Accumulation, ALossOfTheProgramsOwnBackwardIsPartOfItsMicroBatch) {
  expect_all_ok(spawn(2, [&](Group group) {
    const std::string json = json_of(2, false, false, 2);
    auto engine = layers_engine(group, 3, {}, json), other = layers_engine(group, 3, {}, json);
    for (int j = 0; j < 2; ++j) {
      engine.set_gradient_accumulation_boundary(j == 1);
      loss_of(engine).backward();
      engine.step();
      EXPECT_EQ(engine.micro_steps(), j + 1);
      other.backward(loss_of(other));
      other.step();
    }
    EXPECT_EQ(bits_of(engine), bits_of(other));
  }));
}

TEST(Accumulation, ChangesInsideAWindowAndImpossibleLengthsAreErrors) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 3, {}, json_of(2, false, false, 2));
    expect_said([&] { engine.set_gradient_accumulation_steps(0); }, "at least one micro-batch");
    expect_said([&] { engine.set_gradient_accumulation_steps(std::int64_t{1} << 62); }, "too large");
    expect_said([&] { engine.set_train_batch_size(6); }, "set_train_batch_size(6): a multiple of 4 is needed");
    expect_said([&] { engine.set_train_batch_size(-4); }, "a multiple of 4");
    EXPECT_EQ(engine.config().gradient_accumulation_steps, 2);
    EXPECT_EQ(engine.config().train_batch_size, 8);
    engine.backward(loss_of(engine));
    expect_said([&] { engine.set_gradient_accumulation_steps(3); }, "inside an accumulation window");
    engine.step();
    expect_said([&] { engine.set_train_batch_size(4); }, "inside an accumulation window, 1 of whose 2");
    engine.backward(loss_of(engine));
    engine.step();
    engine.set_train_batch_size(4);
    train_window(engine, 1, Style::kCounted);
    EXPECT_EQ(engine.global_steps(), 2);

    auto json = nlohmann::json::parse(json_of(2, false, false, 1, /*clips=*/false));
    json["zerotorch"]["update"] = "in_backward";
    auto in_backward = layers_engine(group, 3, {}, json.dump());
    expect_said([&] { in_backward.set_gradient_accumulation_steps(2); }, "in_backward");
    expect_said([&] { in_backward.set_gradient_accumulation_boundary(false); }, "in_backward");
    in_backward.set_gradient_accumulation_steps(1);
    in_backward.set_gradient_accumulation_boundary(true);
    train_window(in_backward, 1, Style::kCounted);
  }));
}

TEST(Accumulation, RanksThatDifferLearnItAtTheMicroBatchsEnd) {
  for (const bool steps : {true, false}) {
    for (const int stage : {0, 3}) {
      const auto results = spawn(2, [&](Group group) {
        auto engine = layers_engine(group, 3, {}, json_of(stage, false, false, 2));
        if (steps) {
          engine.set_gradient_accumulation_steps(2 + group.rank());
        } else {
          engine.set_gradient_accumulation_boundary(group.rank() == 0);
        }
        expect_said(
            [&] {
              engine.backward(loss_of(engine));
              engine.step();
            },
            steps ? "gradient_accumulation_steps 3" : "at an accumulation boundary");
      });
      expect_all_ok(results);
      for (const auto& result : results) EXPECT_LT(result.seconds, 20);
    }
  }
}

/// Three backwards before a step, on ranks that are late at other places each time: which gradients are rounded before
/// they are sent must not depend on it.
TEST(Accumulation, SeveralBackwardsAreTheSameHoweverLateRanksAre) {
  expect_all_ok(spawn(3, [](Group group) {
    for (const bool node_shared : {true, false}) {
      for (int stage = 0; stage <= 3; ++stage) {
        std::set<std::string> bits;
        for (unsigned run = 0; run < 4; ++run) {
          LayersEngine engine = layers_engine(group, 3, {}, json_of(stage, node_shared, /*bf16=*/true, 1));
          std::minstd_rand random(run * 16 + static_cast<unsigned>(group.rank()) + 1);
          for (int step = 0; step < 3; ++step) {
            for (int k = 0; k < 4; ++k) {
              if (run > 0 && random() % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
              const at::Tensor x = input_of((step * 4 + k) * 3 + group.rank()).to(at::kBFloat16);
              engine.backward(engine(x).to(at::kFloat).square().sum());
            }
            engine.step();
          }
          bits.insert(bits_of(engine));
        }
        EXPECT_EQ(bits.size(), 1u) << "stage " << stage << (node_shared ? " node-shared" : " copying");
      }
    }
  }));
}

/// Two parameters of one unit, of which a backward reaches only the first, or both.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    for (const char* name : {"first", "second"}) {
      const at::Tensor values = at::arange(300, at::kFloat).mul(name[0] == 'f' ? 0.37 : 0.11).sin();
      register_parameter(name, values);
    }
  }
  at::Tensor loss(double seed, bool both) {
    const at::Tensor weights = at::arange(300, at::kFloat).add(seed).mul(1.3).cos();
    const auto all = parameters();
    const at::Tensor of_first = (all[0].to(at::kFloat) * weights).square().sum();
    return both ? of_first + (all[1].to(at::kFloat) * weights).square().sum() : of_first;
  }
};
TORCH_MODULE(Pair);

/// Sums of two backwards are fp32's, whatever else the bucket of a parameter waits for, and however large it is.
TEST(Accumulation, ASecondBackwardThroughAPartOfAUnitIsNotRounded) {
  for (const int ranks : {1, 2}) {
    expect_all_ok(spawn(ranks, [](Group group) {
      for (const char* precision : {"bf16", "fp16"}) {
        for (int stage = 0; stage <= 3; ++stage) {
          for (const int bucket : {64, 100'000}) {
            SCOPED_TRACE(fmt::format("{}, stage {}, buckets of {}", precision, stage, bucket));
            const std::string json = fmt::format(
                R"({{"train_micro_batch_size_per_gpu": 1, "optimizer": {{"type": "SGD", "params": {{"lr": 0.1}}}},
                "{}": {{"enabled": true{}}}, "zero_optimization": {{"stage": {}, "reduce_bucket_size": {},
                "stage3_param_persistence_threshold": 0}}, "zerotorch": {{"unit_numel": 100000}}}})",
                precision, precision[0] == 'f' ? R"(, "loss_scale": 4)" : "", stage, bucket);
            Pair model;
            auto engine = initialize(model, json, InitializeOptions{.group = group});
            at::Tensor want = at::zeros({300});
            for (const double seed : {0.0, 1.0}) {
              for (int rank = 0; rank < group.size(); ++rank) {
                const at::Tensor first =
                    engine.full_weight("first").to(precision[0] == 'f' ? at::kHalf : at::kBFloat16).requires_grad_();
                const at::Tensor weights = at::arange(300, at::kFloat).add(seed + 10 * rank).mul(1.3).cos();
                ((first.to(at::kFloat) * weights).square().sum() * engine.loss_scale()).backward();
                want += first.grad().to(at::kFloat) / engine.loss_scale();
              }
            }
            for (const double seed : {0.0, 1.0}) engine.backward(model->loss(seed + 10 * group.rank(), false));
            EXPECT_TRUE(at::equal(engine.full_gradient("first") * group.size(), want));
            engine.step();
            engine.backward(model->loss(2, true));
            engine.step();
          }
        }
      }
    }));
  }
}

}  // namespace
}  // namespace zero::testing::accumulation_test
