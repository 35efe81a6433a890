// Where initialize() puts a module of a device: it takes it there, and keeps its parameters there or in host memory.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "dist/accelerator.h"
#include "support/bits.h"
#include "support/errors.h"
#include "support/to_device.h"
#include "zero/zero.h"

namespace zero::testing::accelerator_place_test {
namespace {

/// Layers that are large enough to be deferred, and buffers.
struct WideImpl : torch::nn::Module {
  WideImpl() {
    for (int i = 0; i < 3; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i), torch::nn::Linear(190, 190)));
      norms.push_back(register_module(fmt::format("norm{}", i), torch::nn::BatchNorm1d(190)));
    }
  }
  at::Tensor loss(const at::Tensor& in) {
    at::Tensor x = in;
    for (std::size_t i = 0; i < layers.size(); ++i) x = at::tanh(norms[i](layers[i](x)));
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> layers;
  std::vector<torch::nn::BatchNorm1d> norms;
};
TORCH_MODULE(Wide);

TEST(Accelerator, InitializeTakesAModuleThere) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const auto lines = lines_of(ranks, [&](Group group) {
      std::vector<std::string> results;
      for (const int stage : {0, 1, 2, 3}) {
        for (const char* states : {"cpu", "none"}) {
          const auto device = device_with(static_cast<std::uint64_t>(7 + group.rank()));
          use_kernels(true);
          const std::string json = json_of({.stage = stage, .accumulation = 1, .states = states});
          const auto train_with = [&](bool moved, bool deferred) {
            at::set_num_threads(1);
            at::manual_seed(3);
            Wide model = deferred ? deferred_init([] { return Wide(); }) : Wide();
            if (moved) to_device(*model, device);
            InitializeOptions options{.group = group};
            if (!moved) options.device = at::Device(device.type());
            auto engine = initialize(model, json, options);
            EXPECT_EQ(engine.device(), device);
            for (const auto& tensor : model->parameters()) EXPECT_EQ(tensor.device(), device);
            for (const auto& tensor : model->buffers()) EXPECT_EQ(tensor.device(), device);
            EXPECT_LT(engine.memory_before_initialize()[MemoryKind::kParameters].current_nbytes,
                      deferred ? 10'000 : 1'000'000);
            for (int step = 0; step < 3; ++step) {
              const at::Tensor x = at::arange(8 * 190, at::kFloat).view({8, 190}).add(group.rank() + 3 * step).sin();
              engine.backward(model->loss(x.to(device)));
              engine.step();
            }
            std::uint64_t hash = kNoBits;
            for (const auto& item : model->named_parameters())
              hash = hash_with(hash, engine.full_weight(item.key()).cpu());
            for (const auto& item : model->named_buffers()) hash = hash_with(hash, item.value().to(at::kFloat).cpu());
            finish();
            return fmt::format("{:x}", hash);
          };
          const std::string expected = train_with(/*moved=*/true, /*deferred=*/false);
          results.push_back(fmt::format("{} {} {}", stage, states, expected == train_with(false, false)));
          results.push_back(fmt::format("{} {} {}", stage, states, expected == train_with(false, true)));
        }
      }
      return results;
    });
    ASSERT_EQ(lines.size(), 16u);
    for (const auto& line : lines) EXPECT_TRUE(mentions(line, "true")) << line << ", " << ranks << " ranks";
  }
}

/// Also of a program without a launcher.
TEST(Accelerator, ASingleRankMayKeepParametersInHostMemory) {
  const auto lines = lines_of(1, [&](const Group& launched) {
    std::vector<std::string> results;
    for (const Group& group : {launched, Group()}) {
      for (const std::string zero : {"", kParametersOnHost}) {
        const auto device = device_with(3);
        use_kernels(true);
        at::set_num_threads(1);
        at::manual_seed(3);
        Wide model;
        std::int64_t whole = 0;
        for (const auto& parameter : model->parameters()) whole += 4 * parameter.numel();
        const Setting setting{.zero = zero, .accumulation = 1};
        auto engine = initialize(model, json_of(setting), {.group = group, .device = device});
        std::uint64_t hash = kNoBits;
        for (int step = 0; step < 3; ++step) {
          const at::Tensor x = at::arange(8 * 190, at::kFloat).view({8, 190}).add(3 * step).sin();
          const at::Tensor loss = model->loss(x.to(device));
          engine.backward(loss);
          engine.step();
          hash = hash_with(hash, loss.cpu());
        }
        for (const auto& item : model->named_parameters()) hash = hash_with(hash, engine.full_weight(item.key()).cpu());
        finish();
        const MemoryReport held = engine.memory_report();
        const std::int64_t most =
            held[MemoryKind::kParameters].peak_device_nbytes + held[MemoryKind::kGather].peak_device_nbytes;
        if (zero.empty() ? most < whole : most > whole / 2)
          throw std::logic_error(fmt::format("{} of {} on the device{}", most, whole, zero));
        results.push_back(fmt::format("{:x}", hash));
      }
    }
    return results;
  });
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 1u);
  EXPECT_EQ(lines.size(), 4u);
}

}  // namespace
}  // namespace zero::testing::accelerator_place_test
