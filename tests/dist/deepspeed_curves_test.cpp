// DeepSpeed's own engine and this one train the same model from the same JSON text to the same losses: golden curves of
// scripts/make_deepspeed_curves.py, for every optimizer and schedule that both have.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::deepspeed_curves_test {
namespace {

// As in the script.
constexpr std::int64_t kBatch = 12, kMicro = 3, kInputs = 7, kHidden = 13, kOutputs = 5;

/// Whole 128ths: the same bits in every language.
void fill(const at::Tensor& tensor, std::int64_t salt) {
  at::NoGradGuard no_grad;
  const at::Tensor index = at::arange(tensor.numel(), at::kLong);
  tensor.copy_((index * 37 + salt * 101).remainder(97).sub(48).to(at::kFloat).div(128).view(tensor.sizes()));
}

struct OddImpl : torch::nn::Module {
  OddImpl() {
    first = register_module("first", torch::nn::Linear(kInputs, kHidden));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})));
    second = register_module("second", torch::nn::Linear(kHidden, kOutputs));
    std::int64_t salt = 0;
    for (const auto& tensor : {first->weight, first->bias, second->weight, second->bias}) fill(tensor, salt++);
  }
  at::Tensor forward(const at::Tensor& x) { return second(norm(at::tanh(first(x)))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Odd);

/// Inputs and targets of kMicro samples; after four steps they come again.
std::pair<at::Tensor, at::Tensor> samples(std::int64_t step, std::int64_t micro) {
  const std::int64_t first = (step % 4 * kBatch + micro * kMicro) * kInputs;
  const at::Tensor index = at::arange(first, first + kMicro * kInputs, at::kLong);
  const at::Tensor x = (index * 29).remainder(61).sub(30).to(at::kFloat).div(32).view({kMicro, kInputs});
  return {x, x.slice(1, 0, kOutputs) - x.slice(1, kInputs - kOutputs) * 0.5};
}

std::vector<double> losses_of(const Group& group, const std::string& json, std::size_t steps) {
  auto engine = initialize(Odd(), json, {.group = group});
  const at::ScalarType dtype = engine.typed_module()->first->weight.scalar_type();
  std::vector<double> losses;
  for (std::size_t step = 0; step < steps; ++step) {
    double total = 0;
    for (std::int64_t part = 0; part < kBatch / kMicro / group.size(); ++part) {
      const auto [x, target] = samples(static_cast<std::int64_t>(step), part * group.size() + group.rank());
      const at::Tensor loss = (engine(x.to(dtype)).to(at::kFloat) - target).square().mean();
      engine.backward(loss);
      engine.step();
      total += loss.item<double>();
    }
    Group(group).all_reduce(&total, 1, DType::kFloat64).wait();
    losses.push_back(total * kMicro / kBatch);
  }
  return losses;
}

/// "fp32", "bf16" or "fp16".
std::string precision_of(const nlohmann::json& config) {
  for (const char* name : {"bf16", "fp16"}) {
    if (config.contains(name)) return name;
  }
  return "fp32";
}

/// Largest relative difference of a loss, by precision. fp32: the kernels round at other places than torch.optim's.
/// bf16 and fp16: DeepSpeed adds the gradients of micro-batches in 16 bits, this engine in fp32, and a weight that so
/// ends on the other side of a rounding differs by a 256th (bf16) or a 2048th (fp16) of itself.
const std::map<std::string, double> kMostAway = {{"fp32", 1e-5}, {"bf16", 2e-2}, {"fp16", 2e-3}};

TEST(DeepSpeedCurves, LossesAreThoseOfDeepSpeedsEngineFromTheSameJson) {
  std::ifstream in(ZERO_SOURCE_DIR "/tests/data/deepspeed_curves.json");
  const auto curves = nlohmann::json::parse(in);
  const TemporaryFolder folder;
  for (const int ranks : {1, 2}) {
    expect_all_ok(spawn(ranks,
                        [&](Group group) {
                          at::set_num_threads(1);
                          std::ofstream out;
                          if (group.rank() == 0) out.open(folder.file("differences"), std::ios::app);
                          for (const auto& curve : curves) {
                            if (curve.at("ranks") != group.size()) continue;
                            const auto& theirs = curve.at("losses");
                            const auto ours = losses_of(group, curve.at("config").dump(), theirs.size());
                            if (group.rank() != 0) continue;
                            double away = 0, way = 0;
                            for (std::size_t i = 0; i < ours.size(); ++i) {
                              const double loss = theirs[i];
                              ASSERT_TRUE(std::isfinite(ours[i])) << curve.at("config");
                              away = std::max(away, std::abs(ours[i] - loss) / loss);
                              way = std::max(way, std::abs(loss - theirs[0].get<double>()) / loss);
                            }
                            const std::string precision = precision_of(curve.at("config"));
                            EXPECT_LE(away, kMostAway.at(precision)) << curve.at("config");
                            EXPECT_GT(way, 10 * away) << "a curve that says nothing: " << curve.at("config");
                            out << precision << ' ' << away << ' ' << curve.at("config") << '\n';
                          }
                        },
                        {.timeout = std::chrono::minutes(4)}));
  }
  std::map<std::string, std::pair<double, std::string>> largest;
  std::map<std::string, int> count;
  std::ifstream differences(folder.file("differences"));
  std::string precision, config;
  for (double away = 0; differences >> precision >> away && std::getline(differences, config);) {
    ++count[precision];
    largest[precision] = std::max(largest[precision], {away, config});
  }
  for (const auto& [name, one] : largest) {
    fmt::print("{}: {} curves, largest relative difference of a loss {:.3g}, of{}\n", name, count[name], one.first,
               one.second);
  }
  EXPECT_EQ(count["fp32"] + count["bf16"] + count["fp16"], static_cast<int>(curves.size()));
  EXPECT_GE(count["fp32"], 100);
}

}  // namespace
}  // namespace zero::testing::deepspeed_curves_test
