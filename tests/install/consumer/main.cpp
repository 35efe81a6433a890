// A training program as a user writes it: a module of their own, the JSON they have, four calls.
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <zero/zero.h>

#include <cstdio>

struct MyNetImpl : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  MyNetImpl() {
    in = register_module("in", torch::nn::Linear(16, 64));
    out = register_module("out", torch::nn::Linear(64, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::nn::functional::gelu(in(x))); }
};
TORCH_MODULE(MyNet);

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  auto group = zero::init_distributed();
  MyNet model;
  auto engine = zero::initialize(model, zero::Config::from_file(argv[1]), {.group = group});
  float first = 0, last = 0;
  for (int i = 0; i < 400; ++i) {
    const auto inputs = torch::randn({2, 16}).to(torch::kBFloat16);
    const auto labels = inputs.slice(1, 0, 4).argmax(1);
    const auto loss = torch::nn::functional::cross_entropy(engine(inputs).to(torch::kFloat), labels);
    engine.backward(loss);
    engine.step();
    (i < 40 ? first : last) += i < 40 || i >= 360 ? loss.item<float>() / 40 : 0;
  }
  const bool down = last < 0.7f * first && engine.global_steps() == 200;
  std::printf("rank %d of %d: loss %s (%.3f to %.3f)\n", engine.rank(), engine.world_size(),
              down ? "went down" : "stayed", first, last);
  return down ? 0 : 1;
}
