// Promise: routed models work. A mixture-of-experts transformer gives the same bits at every stage, store,
// number of ranks, bucket size and with overlap, progress thread and updates in backward, though ranks use other
// experts in each micro-batch; and the numbers of plain libtorch, in which an expert without tokens is left
// alone.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <chrono>
#include <map>
#include <thread>

#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing::routed_experts_test {
namespace {

using at::Tensor;

constexpr std::int64_t kVocab = 37, kDim = 24, kExperts = 8, kTokens = 12;
constexpr int kSteps = 4, kMicroBatches = 12;

/// Experts as modules of their own, or as one stacked parameter.
enum class Form { kModules, kStacked };

/// A token goes to its best one or two experts; only those run.
struct RoutedImpl : torch::nn::Module {
  RoutedImpl(Form form, int top) : form(form), top(top) {
    router = register_module("router", torch::nn::Linear(torch::nn::LinearOptions(kDim, kExperts).bias(false)));
    if (form == Form::kStacked) {
      stacked = register_parameter("stacked", at::randn({kExperts, kDim, kDim}).mul_(0.1));
      return;
    }
    for (std::int64_t e = 0; e < kExperts; ++e) {
      experts.push_back(register_module("expert" + std::to_string(e), torch::nn::Linear(kDim, kDim)));
    }
  }
  Tensor forward(const Tensor& x) {  // [T, D]
    const Tensor scores = router(x).softmax(-1);
    const auto [weights, chosen] = scores.to(at::kFloat).topk(top, -1);
    Tensor out = at::zeros_like(x);
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const Tensor where = at::nonzero(chosen.eq(e));  // [n, 2]: token, place
      if (where.size(0) == 0) continue;
      const Tensor tokens = where.select(1, 0);
      const Tensor input = x.index_select(0, tokens);
      const Tensor output = form == Form::kStacked ? at::matmul(input, stacked.select(0, e)) : experts[e](input);
      const Tensor gate = weights.index({tokens, where.select(1, 1)}).unsqueeze(1).to(x.scalar_type());
      out = out.index_add(0, tokens, output * gate);
    }
    return x + out;
  }
  Form form;
  int top;
  torch::nn::Linear router{nullptr};
  std::vector<torch::nn::Linear> experts;
  Tensor stacked;
};
TORCH_MODULE(Routed);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl(Form form, int top) {
    using namespace torch::nn;
    embedding = register_module("embedding", Embedding(kVocab, kDim));
    for (int i = 0; i < 2; ++i) {
      qkv.push_back(register_module("qkv" + std::to_string(i), Linear(kDim, 3 * kDim)));
      norm.push_back(register_module("norm" + std::to_string(i), LayerNorm(LayerNormOptions({kDim}))));
      routed.push_back(register_module("routed" + std::to_string(i), Routed(form, top)));
    }
  }
  Tensor loss(const Tensor& tokens) {  // [T + 1]
    Tensor x = embedding(tokens.narrow(0, 0, kTokens));
    for (std::size_t i = 0; i < qkv.size(); ++i) {
      const auto parts = qkv[i](norm[i](x)).chunk(3, -1);
      const Tensor mask = at::full({kTokens, kTokens}, -1e4, x.options()).triu(1);
      x = x + at::matmul((at::matmul(parts[0], parts[1].t()) * 0.2 + mask).softmax(-1), parts[2]);
      x = routed[i](x);
    }
    const Tensor logits = at::matmul(x, embedding->weight.t()).to(at::kFloat);
    return at::cross_entropy_loss(logits, tokens.narrow(0, 1, kTokens));
  }
  torch::nn::Embedding embedding{nullptr};
  std::vector<torch::nn::Linear> qkv;
  std::vector<torch::nn::LayerNorm> norm;
  std::vector<Routed> routed;
};
TORCH_MODULE(Transformer);

/// A micro-batch of few different tokens, so that few experts are used.
Tensor tokens_of(int index) {
  Tensor tokens = at::empty({kTokens + 1}, at::kLong);
  for (std::int64_t i = 0; i <= kTokens; ++i) tokens[i] = (index * 5 + i * (index % 3 + 1) * 7 % 3) % kVocab;
  return tokens;
}

struct Case {
  int ranks, stage;
  const char* store;
  bool tiny, overlap, thread, in_backward;
  std::string text() const {
    return fmt::format("{} ranks, stage {}, {}{}{}{}{}", ranks, stage, store, tiny ? ", tiny buckets" : "",
                       overlap ? ", overlap" : "", thread ? ", progress thread" : "",
                       in_backward ? ", in backward" : "");
  }
};

std::string json_of(const Case& c, bool bf16) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {},
    "gradient_clipping": 0, "bf16": {{"enabled": {}, "check_grad_overflow": false}},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1}}}},
    "zero_optimization": {{"stage": {}, "overlap_comm": {}, "reduce_bucket_size": {},
      "stage3_max_live_parameters": 4000, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}},
    "zerotorch": {{"store": "{}", "unit_numel": 2000, "timeout_s": 30, "progress_thread": "{}",
      "update": "{}"}}}})",
                     c.in_backward ? 1 : kMicroBatches / c.ranks, bf16, c.stage, c.overlap, c.tiny ? 1100 : 500000000,
                     c.store, c.thread ? "always" : "never", c.in_backward ? "in_backward" : "after_backward");
}

Transformer make(Form form, int top) {
  at::set_num_threads(1);
  at::manual_seed(3);
  return Transformer(form, top);
}

/// Losses by global micro-batch, then a hash of every weight and state.
std::vector<double> train(Group group, const Case& c, Form form, int top, bool bf16) {
  Transformer model = make(form, top);
  auto engine = initialize(model, json_of(c, bf16), InitializeOptions{.group = group});
  std::vector<double> mine;
  const int per_step = c.in_backward ? c.ranks : kMicroBatches;
  for (int i = group.rank(); i < kSteps * per_step; i += group.size()) {
    const Tensor loss = model->loss(tokens_of(i));
    engine.backward(loss);
    engine.step();
    mine.push_back(loss.item<double>());
  }
  std::vector<double> result(mine.size() * static_cast<std::size_t>(group.size()));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()),
                                         static_cast<std::int64_t>(mine.size()));
  group.all_gather(mine.data(), result.data(), counts, DType::kFloat64).wait();
  std::vector<double> ordered;
  for (std::size_t j = 0; j < mine.size(); ++j) {
    for (int r = 0; r < group.size(); ++r) ordered.push_back(result[static_cast<std::size_t>(r) * mine.size() + j]);
  }
  for (const auto& item : model->named_parameters()) {
    for (const Tensor& values :
         {engine.full_weight(item.key()), engine.full_optimizer_state(item.key(), "exp_avg_sq")}) {
      double hash = 0;
      const Tensor flat = values.flatten();
      for (std::int64_t i = 0; i < flat.numel(); ++i)
        hash = std::fmod(hash * 31 + flat.const_data_ptr<float>()[i] * 1e6, 1e9);
      ordered.push_back(hash);
    }
  }
  return ordered;
}

const Case kCases[] = {
    {1, 0, "copying", false, false, false, false},    {1, 3, "copying", true, true, false, false},
    {2, 0, "copying", true, false, false, false},     {2, 1, "copying", false, true, true, false},
    {2, 2, "copying", true, true, false, false},      {2, 3, "copying", true, true, true, false},
    {2, 3, "node_shared", false, true, false, false}, {3, 2, "node_shared", true, true, true, false},
    {3, 3, "copying", false, false, false, false},    {4, 1, "copying", true, true, false, false},
    {4, 3, "copying", true, true, true, false},       {4, 3, "node_shared", true, false, false, false},
};

void expect_same_bits(Form form, int top, bool bf16) {
  std::map<std::string, std::vector<double>> results;
  const std::string path = fmt::format("/tmp/zero_routed_{}.bin", getpid());
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.text());
    expect_all_ok(spawn(c.ranks,
                        [&](Group group) {
                          const auto result = train(group, c, form, top, bf16);
                          if (group.rank() != 0) return;
                          std::FILE* out = std::fopen(path.c_str(), "wb");
                          std::fwrite(result.data(), sizeof(double), result.size(), out);
                          std::fclose(out);
                        },
                        {.timeout = std::chrono::seconds(120)}));
    std::vector<double> result(100'000);
    std::FILE* in = std::fopen(path.c_str(), "rb");
    ASSERT_NE(in, nullptr);
    result.resize(std::fread(result.data(), sizeof(double), result.size(), in));
    std::fclose(in);
    std::remove(path.c_str());
    const auto [expected, is_first] = results.try_emplace("", result);
    ASSERT_GT(result.size(), static_cast<std::size_t>(kSteps * kMicroBatches));
    EXPECT_EQ(expected->second, result);
  }
}

TEST(RoutedExperts, Top1InModulesOfTheirOwn) { expect_same_bits(Form::kModules, 1, false); }
TEST(RoutedExperts, Top2InModulesOfTheirOwnBf16) { expect_same_bits(Form::kModules, 2, true); }
TEST(RoutedExperts, Top1InOneStackedParameterBf16) { expect_same_bits(Form::kStacked, 1, true); }
TEST(RoutedExperts, Top2InOneStackedParameter) { expect_same_bits(Form::kStacked, 2, false); }

TEST(RoutedExperts, StepInBackwardGivesTheSameWeights) {
  for (const char* store : {"copying", "node_shared"}) {
    expect_all_ok(spawn(3, [&](Group group) {
      const Case in_backward{3, 3, store, true, true, false, true};
      const auto ours = train(group, in_backward, Form::kModules, 1, false);
      Transformer model = make(Form::kModules, 1);
      Case plain = in_backward;
      plain.in_backward = false;
      std::string json = json_of(plain, false);
      const std::string accumulation = "\"gradient_accumulation_steps\": 4";
      json.replace(json.find(accumulation), accumulation.size(), "\"gradient_accumulation_steps\": 1");
      auto engine = initialize(model, json, InitializeOptions{.group = group});
      std::vector<double> losses;
      for (int step = 0; step < kSteps; ++step) {
        const Tensor loss = model->loss(tokens_of(step * 3 + group.rank()));
        engine.backward(loss);
        engine.step();
        EXPECT_EQ(loss.item<double>(), ours[static_cast<std::size_t>(step * 3 + group.rank())]) << step;
      }
    }));
  }
}

// In its first micro-batch nobody knows yet that the ranks use different parts.
TEST(RoutedExperts, AnEngineThatGoesWithoutAStepWaitsForNobody) {
  for (const Case& c : kCases) {
    if (c.ranks < 3) continue;
    SCOPED_TRACE(c.text());
    expect_all_ok(spawn(c.ranks,
                        [&](Group group) {
                          for (const bool all_have_a_backward : {true, false}) {
                            Transformer model = make(Form::kModules, 1);
                            auto engine = initialize(model, json_of(c, false), InitializeOptions{.group = group});
                            if (all_have_a_backward || group.rank() != 1) {
                              engine.backward(model->routed[0](at::full({1, kDim}, group.rank() - 1.0)).sum());
                            }
                            std::this_thread::sleep_for(std::chrono::milliseconds(40 * group.rank()));
                          }
                          train(group, c, Form::kModules, 1, false);  // the group is as good as new
                        },
                        {.timeout = std::chrono::seconds(25)}));  // less than the group's own
  }
}

TEST(RoutedExperts, AgreeWithPlainLibtorch) {
  for (const Form form : {Form::kModules, Form::kStacked}) {
    expect_all_ok(spawn(2, [form](Group group) {
      Transformer plain = make(form, 1), model = make(form, 1);
      torch::optim::AdamW optimizer(plain->parameters(), torch::optim::AdamWOptions(0.01).eps(1e-3).weight_decay(0.1));
      auto engine = initialize(model, json_of({2, 3, "copying", true, true, false, false}, false), {.group = group});
      std::size_t left_alone = 0;
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        for (int i = 0; i < kMicroBatches; ++i)
          (plain->loss(tokens_of(step * kMicroBatches + i)) / kMicroBatches).backward();
        for (auto& parameter : plain->parameters()) left_alone += !parameter.grad().defined();
        optimizer.step();
        for (int i = group.rank(); i < kMicroBatches; i += 2) {
          engine.backward(model->loss(tokens_of(step * kMicroBatches + i)));
          engine.step();
        }
      }
      if (form == Form::kModules) {
        EXPECT_GT(left_alone, 0u);  // else nothing is shown
      }
      for (const auto& item : plain->named_parameters()) {
        EXPECT_TRUE(at::allclose(engine.full_weight(item.key()), item.value(), 1e-3, 1e-4)) << item.key();
      }
    }));
  }
}

}  // namespace
}  // namespace zero::testing::routed_experts_test
