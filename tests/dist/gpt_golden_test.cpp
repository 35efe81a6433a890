// Promise: the numbers are PyTorch's. Logits, loss, every gradient, norms and three clipped steps of AdamW of a tiny
// GPT, as scripts/make_gpt_golden.py computed them in Python in float64: what is left between them is our rounding in
// fp32.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "checkpoint/weight_files.h"
#include "support/spawn.h"
#include "zero/lm/models.h"
#include "zero/zero.h"

namespace zero::testing::gpt_golden_test {
namespace {

using at::Tensor;

std::map<std::string, Tensor> read_golden() {
  const std::string path = ZERO_SOURCE_DIR "/tests/data/gpt_golden.safetensors";
  checkpoint::WeightFiles files(io::system_files(), path);
  std::map<std::string, Tensor> tensors;
  for (std::size_t i = 0; i < files.entries().size(); ++i) {
    const auto& entry = files.entries()[i];
    Tensor tensor = at::empty(entry.shape, entry.dtype == checkpoint::ElementType::kI64 ? at::kLong : at::kFloat);
    files.read(i, {static_cast<std::byte*>(tensor.mutable_data_ptr()), files.nbytes(i)});
    tensors.emplace(entry.name, std::move(tensor));
  }
  return tensors;
}

/// Within fp32's rounding over a few hundred additions, of the tensor's largest value.
void expect_near(const Tensor& got, const Tensor& want, const std::string& name) {
  ASSERT_EQ(got.sizes(), want.sizes()) << name;
  const double largest = want.abs().max().item<double>();
  const double difference = (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(difference, 1e-5 * largest + 1e-7) << name << ", of values up to " << largest;
}

constexpr const char* kJson = R"({"train_batch_size": 4, "gradient_clipping": 0.5,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-3, "weight_decay": 0.1}},
  "zero_optimization": {"stage": STAGE, "stage3_param_persistence_threshold": 0},
  "zerotorch": {"unit_numel": 2000}})";

/// Norms of units against the golden gradients of the parameters in them, by name.
void check_unit_norms(const std::vector<UnitNorm>& norms, GPT model, const std::map<std::string, Tensor>& golden) {
  std::map<std::string, double> squares;
  for (const auto& item : model->named_parameters()) {
    std::string unit;
    for (const UnitNorm& one : norms) {
      if (item.key().starts_with(one.name) && one.name.size() >= unit.size()) unit = one.name;
    }
    squares[unit] += golden.at("gradient/" + item.key()).square().sum().item<double>();
  }
  EXPECT_GT(norms.size(), 3u);
  ASSERT_EQ(squares.size(), norms.size());
  for (const UnitNorm& one : norms) {
    const double want = std::sqrt(squares[one.name]);
    EXPECT_NEAR(one.norm, want, 1e-5 * want) << one.name;
  }
}

void check(Group group, int stage) {
  at::set_num_threads(1);
  const auto golden = read_golden();
  const Tensor tokens = golden.at("tokens");  // [steps, samples, T + 1]
  const std::int64_t length = tokens.size(2) - 1;
  GPT model(GPTOptions{.layers = 2, .dim = 16, .heads = 2, .vocab = 13, .seq = length});
  {
    at::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(golden.at("start/" + item.key()));
  }
  std::string json = kJson;
  json.replace(json.find("STAGE"), 5, std::to_string(stage));
  auto engine = initialize(model, json, InitializeOptions{.group = group});
  const std::int64_t each = tokens.size(1) / group.size(), first = group.rank() * each;
  EXPECT_TRUE(engine.unit_grad_norms().empty());
  for (std::int64_t step = 0; step < tokens.size(0); ++step) {
    const Tensor mine = tokens[step].narrow(0, first, each);
    const Tensor input = mine.narrow(1, 0, length), target = mine.narrow(1, 1, length);
    if (step == 0) expect_near(model->forward(input).detach(), golden.at("logits").narrow(0, first, each), "logits");
    Tensor loss = model->loss(input, target);
    engine.backward(loss);
    double mean = loss.item<double>() / group.size();
    group.all_reduce(&mean, 1, DType::kFloat64).wait();
    EXPECT_NEAR(mean, golden.at("losses")[step].item<double>(), 2e-6) << "step " << step;
    for (const auto& item : model->named_parameters()) {
      if (step == 0) expect_near(engine.full_gradient(item.key()), golden.at("gradient/" + item.key()), item.key());
    }
    engine.step();
    const double norm = golden.at("norms")[step].item<double>();
    EXPECT_NEAR(engine.grad_norm(), norm, 1e-5 * norm) << "step " << step;
    if (step == 0) check_unit_norms(engine.unit_grad_norms(), model, golden);
  }
  for (const auto& item : model->named_parameters())
    expect_near(engine.full_weight(item.key()), golden.at("after/" + item.key()), item.key() + " after three steps");
}

TEST(GptGolden, OnOneRankAndOverRanks) {
  for (const auto& [ranks, stage] : {std::pair(1, 0), {2, 1}, {4, 3}}) {
    SCOPED_TRACE(::testing::Message() << ranks << " ranks, stage " << stage);
    expect_all_ok(spawn(ranks, [stage = stage](Group group) { check(group, stage); }));
  }
}

}  // namespace
}  // namespace zero::testing::gpt_golden_test
