#pragma once
// Four layers of odd sizes, each a unit of its own, and the precisions that tests of whole trainings go through.
#include <ATen/ops/tanh.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>
#include <vector>

namespace zero::testing {

struct DeepNetImpl : torch::nn::Module {
  explicit DeepNetImpl(std::int64_t width = 130) {
    const std::int64_t sizes[] = {24, 61, width, 37, 24};
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module(fmt::format("layer{}", i), torch::nn::Linear(sizes[i], sizes[i + 1])));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = at::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(DeepNet);

inline const std::string kFp32 = R"("fp16": {"enabled": false})";
inline const std::string kBf16 = R"("bf16": {"enabled": true})";
inline const std::string kFp16 = R"("fp16": {"enabled": true, "initial_scale_power": 10, "loss_scale_window": 3})";

}  // namespace zero::testing
