// flops_profiler: what operators compute, forward and backward, by module: PyTorch's own counter on the same model, the
// closed formula of a GPT, the same at every stage and in both stores, for the step that was asked for and no other.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/lm/models.h"
#include "zero/zero.h"

namespace zero::testing::flops_profiler_test {
namespace {

namespace nn = torch::nn;

/// As in scripts/make_flops_golden.py.
struct MixedImpl : nn::Module {
  MixedImpl() {
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).stride(2).padding(1)));
    up = register_module("up", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 4, 2).stride(2)));
    qkv = register_module("qkv", nn::Linear(100, 24));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
    body = register_module(
        "body", nn::Sequential(nn::Linear(4, 6), nn::Tanh(), nn::Linear(nn::LinearOptions(6, 5).bias(false))));
    head = register_module("head", nn::Linear(5, 3));
    mix = register_parameter("mix", at::zeros({4, 4}));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = qkv(up(at::tanh(conv(input))).flatten(2));
    std::vector<at::Tensor> parts = x.chunk(3, -1);
    for (auto& part : parts) part = part.view({2, 4, 2, 4}).transpose(1, 2);
    x = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = norm(x.transpose(1, 2).reshape({2, 4, 8}));
    x = at::baddbmm(mix.expand({2, 4, 4}), x, x.transpose(1, 2));
    return head(body->forward(x).mean(1));
  }
  nn::Conv2d conv{nullptr};
  nn::ConvTranspose2d up{nullptr};
  nn::Linear qkv{nullptr}, head{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Sequential body{nullptr};
  at::Tensor mix;
};
TORCH_MODULE(Mixed);

std::string json_of(int stage, int accumulation, const std::string& profiler, const std::string& store = "auto") {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
    "flops_profiler": {{"enabled": true, {}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"store": "{}"}}}})",
                     accumulation, profiler, stage, store);
}

std::map<std::string, ModuleFlops> by_name(const FlopsReport& report) {
  std::map<std::string, ModuleFlops> modules;
  for (const auto& module : report.modules) modules[module.name] = module;
  return modules;
}

TEST(FlopsProfiler, CountsWhatPyTorchsCounterCounts) {
  std::ifstream in(ZERO_SOURCE_DIR "/tests/data/flops_golden.json");
  const auto golden = nlohmann::json::parse(in);
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(
        ranks,
        [&](Group group) {
          at::set_num_threads(1);
          for (int stage = 0; stage <= 3; ++stage) {
            for (const char* store : {"copying", "node_shared"}) {
              auto engine = initialize(Mixed(), json_of(stage, 2, R"("profile_step": 1)", store), {.group = group});
              for (int i = 0; i < 6; ++i) {  // three steps of two micro-batches
                EXPECT_EQ(engine.flops_report().step, i < 4 ? -1 : 1);
                engine.backward(engine(at::rand({2, 3, 10, 10})).sum());
                engine.step();
              }
              const FlopsReport report = engine.flops_report();
              EXPECT_EQ(report.micro_batches, 2);
              EXPECT_EQ(report.forward_flops, 2 * golden.at("forward").get<std::int64_t>()) << stage << store;
              EXPECT_EQ(report.backward_flops, 2 * golden.at("backward").get<std::int64_t>()) << stage << store;
              const auto modules = by_name(report);
              for (const auto& [name, flops] : golden.at("modules").items()) {
                ASSERT_TRUE(modules.contains(name)) << name;
                const auto& ours = modules.at(name);
                EXPECT_EQ(ours.forward_flops + ours.backward_flops, 2 * flops.get<std::int64_t>()) << name;
              }
              EXPECT_EQ(modules.at("").parameters, report.parameters);
              EXPECT_EQ(modules.at("body").parameters, 4 * 6 + 6 + 6 * 5);
              EXPECT_EQ(modules.at("qkv").type, "Linear");
              EXPECT_GT(report.forward_seconds, 0);
              EXPECT_GT(report.backward_seconds, 0);
              EXPECT_GT(report.step_seconds, report.forward_seconds + report.backward_seconds);
              EXPECT_GT(report.peak_flops_per_second, 1e6);
              EXPECT_GT(report.utilization(), 0);
              EXPECT_LT(report.utilization(), 1);
            }
          }
        },
        {.timeout = std::chrono::minutes(3)}));
  }
}

/// Of one micro-batch of B sequences of T tokens: a token takes two FLOPs for every weight of a matrix and, in each
/// layer, 4 T dim for its attention; backward twice that of the matrices, and five products for attention's two.
TEST(FlopsProfiler, AGPTTakesWhatTheFormulaSays) {
  constexpr std::int64_t kBatch = 2, kSeq = 16;
  for (const bool tied : {false, true}) {
    for (const bool bf16 : {false, true}) {
      const GPTOptions options{.layers = 3, .dim = 32, .heads = 4, .vocab = 50, .seq = kSeq, .tied = tied};
      Config config = Config::from_text(json_of(3, 1, R"("profile_step": 0)"));
      config.bf16.enabled = bf16;
      GPT model(options);
      auto engine = initialize(model, config);
      const at::Tensor tokens = at::randint(50, {kBatch, kSeq}, at::kLong);
      engine.backward(model->loss(tokens, tokens));
      engine.step();
      const FlopsReport report = engine.flops_report();
      const std::int64_t dim = options.dim, tokens_numel = kBatch * kSeq;
      const std::int64_t weights = options.layers * 12 * dim * dim + options.vocab * dim;
      const std::int64_t matrices = 2 * tokens_numel * weights;
      const std::int64_t attention = options.layers * 4 * tokens_numel * kSeq * dim;
      EXPECT_EQ(report.forward_flops, matrices + attention) << tied << bf16;
      EXPECT_EQ(report.backward_flops, 2 * matrices + attention / 2 * 5) << tied << bf16;
      EXPECT_EQ(report.parameters, gpt_numel(options));
      const auto modules = by_name(report);
      EXPECT_EQ(modules.at("h.1").forward_flops, (matrices + attention - 2 * tokens_numel * options.vocab * dim) / 3);
      EXPECT_EQ(modules.at("h.1.fc").forward_flops, 2 * tokens_numel * 4 * dim * dim);
      EXPECT_EQ(modules.at("h.1.fc").backward_flops, 4 * tokens_numel * 4 * dim * dim);
      EXPECT_EQ(modules.at("h.2").backward_flops, modules.at("h.0").backward_flops);
    }
  }
}

TEST(FlopsProfiler, CountsWhatIsComputedAgainAndNotWhatWasKept) {
  constexpr std::int64_t kBatch = 2, kSeq = 16, kTokens = kBatch * kSeq;
  for (const KeptResults keep : {KeptResults::kNone, KeptResults::kAttention, KeptResults::kProducts}) {
    const GPTOptions options{
        .layers = 3, .dim = 32, .heads = 4, .vocab = 50, .seq = kSeq, .recompute_every = 1, .recompute_keep = keep};
    GPT model(options);
    auto engine = initialize(model, Config::from_text(json_of(3, 1, R"("profile_step": 0)")));
    const at::Tensor tokens = at::randint(50, {kBatch, kSeq}, at::kLong);
    engine.backward(model->loss(tokens, tokens));
    engine.step();
    const std::int64_t dim = options.dim, head = 2 * kTokens * options.vocab * dim;
    const std::int64_t layers = 2 * kTokens * options.layers * 12 * dim * dim;
    const std::int64_t attention = options.layers * 4 * kTokens * kSeq * dim;
    const std::int64_t again = keep == KeptResults::kNone        ? layers + attention
                               : keep == KeptResults::kAttention ? layers
                                                                 : 0;
    const FlopsReport report = engine.flops_report();
    EXPECT_EQ(report.forward_flops, head + layers + attention) << static_cast<int>(keep);
    EXPECT_EQ(report.backward_flops, 2 * (head + layers) + attention / 2 * 5 + again) << static_cast<int>(keep);
  }
}

struct OddImpl : nn::Module {
  OddImpl() {
    grouped = register_module("grouped", nn::Conv1d(nn::Conv1dOptions(6, 4, 3).groups(2).dilation(2)));
    linear = register_module("linear", nn::Linear(8, 5));
  }
  nn::Conv1d grouped{nullptr};
  nn::Linear linear{nullptr};
};
TORCH_MODULE(Odd);

TEST(FlopsProfiler, GroupsAndVectorsTakeWhatTheyTake) {
  Odd model;
  auto engine = initialize(model, json_of(2, 1, R"("profile_step": 0)"));
  const at::Tensor x = at::rand({2, 6, 10}).requires_grad_();
  at::Tensor loss = model->grouped(x).sum();                         // 6 places of 2 samples
  loss = loss + at::mv(model->linear->weight, at::rand({8})).sum();  // a vector
  loss = loss + at::einsum("ij,kj->ik", {at::rand({3, 8}), model->linear->weight}).sum();
  {
    const at::NoGradGuard no_grad;  // an evaluation in between
    (void)model->linear(at::rand({7, 8}));
  }
  engine.backward(loss);
  engine.step();
  const auto modules = by_name(engine.flops_report());
  const std::int64_t conv = 2 * 2 * 6 * 4 * (6 / 2) * 3;
  EXPECT_EQ(modules.at("grouped").forward_flops, conv);
  EXPECT_EQ(modules.at("grouped").backward_flops, 2 * conv);
  EXPECT_EQ(modules.at("linear").forward_flops, 2 * 8 * 5 + 2 * 3 * 8 * 5);
  EXPECT_EQ(modules.at("linear").backward_flops, 2 * 3 * 8 * 5);  // the vector's gradient is no product that is added
}

TEST(FlopsProfiler, TwoEnginesCountTheirOwn) {
  Odd first, second;
  auto one = initialize(first, json_of(1, 1, R"("profile_step": 0)"));
  auto other = initialize(second, json_of(3, 1, R"("profile_step": 0)"));
  const at::Tensor loss = second->linear(at::rand({1, 8})).sum() + first->linear(at::rand({4, 8})).sum();
  backward(loss, {&one, &other});
  one.step();
  other.step();
  EXPECT_EQ(one.flops_report().forward_flops, 2 * 4 * 8 * 5);
  EXPECT_EQ(one.flops_report().backward_flops, 2 * 4 * 8 * 5);
  EXPECT_EQ(other.flops_report().forward_flops, 2 * 1 * 8 * 5);
  EXPECT_EQ(other.flops_report().backward_flops, 2 * 1 * 8 * 5);
}

TEST(FlopsProfiler, WritesTheTableThatWasAskedFor) {
  const TemporaryFolder folder;
  const std::string file = folder.file("table");
  const auto table_of = [&](const std::string& keys) {
    const std::string all_keys = fmt::format(R"("profile_step": 0, "output_file": "{}", {})", file, keys);
    auto engine = initialize(Mixed(), json_of(0, 1, all_keys));
    engine.backward(engine(at::rand({2, 3, 10, 10})).sum());
    engine.step();
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  };
  const std::string all = table_of(R"("top_modules": 2)");
  EXPECT_NE(all.find("FLOPs of step 0 on this rank: 1 micro-batches"), std::string::npos) << all;
  EXPECT_NE(all.find("depth 1: qkv 115.2 k (2.424 k parameters) conv 43.2 k"), std::string::npos) << all;
  EXPECT_NE(all.find("    0 (Linear)"), std::string::npos) << all;  // body.0
  const std::string shallow = table_of(R"("module_depth": 1)");
  EXPECT_NE(shallow.find("  body (Sequential)"), std::string::npos) << shallow;
  EXPECT_EQ(shallow.find("    0 (Linear)"), std::string::npos) << shallow;
  EXPECT_EQ(shallow.find("depth 2"), std::string::npos) << shallow;
  const std::string brief = table_of(R"("detailed": false)");
  EXPECT_EQ(brief.find("body (Sequential)"), std::string::npos) << brief;
  EXPECT_NE(brief.find("by operator:"), std::string::npos) << brief;
}

TEST(FlopsProfiler, WatchesNothingInOtherStepsAndIsAnErrorWhenOff) {
  auto engine = initialize(Mixed(), json_of(0, 1, R"("profile_step": 1)"));
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(at::hasThreadLocalCallbacks(), step == 1) << step;
    engine.backward(engine(at::rand({2, 3, 10, 10})).sum());
    engine.step();
  }
  auto off = initialize(Mixed(), R"({"train_batch_size": 2, "flops_profiler": {"enabled": false, "profile_step": 0}})");
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  EXPECT_EQ(error_of<ConfigError>([&] { (void)off.flops_report(); }),
            "flops_report(): nothing is counted; set flops_profiler.enabled to true");
}

}  // namespace
}  // namespace zero::testing::flops_profiler_test
