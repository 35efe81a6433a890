// The README's example: any module, the DeepSpeed JSON, four calls.
//   zero launch -n 2 -- build/release/examples/minimal examples/ds_config.json
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <zero/zero.h>

#include <cstdio>
#include <exception>

struct MyModelImpl : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(32, 256));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(256, 10));
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
};
TORCH_MODULE(MyModel);

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s ds_config.json\n", argv[0]);
    return 2;
  }
  // [readme]
  auto group = zero::init_distributed();  // from the launcher's environment; alone: a group of one
  MyModel model;                          // any torch::nn::Module
  auto engine = zero::initialize(model, zero::Config::from_file(argv[1]), {.group = group});
  float first = 0, last = 0;
  for (int i = 0; i < 400; ++i) {
    auto inputs = torch::randn({8, 32}).to(torch::kBFloat16);
    auto labels = inputs.slice(1, 0, 10).argmax(1);
    auto loss = torch::nn::functional::cross_entropy(engine(inputs).to(torch::kFloat), labels);
    engine.backward(loss);  // gradients go to their owners as they appear
    engine.step();          // updates at accumulation boundaries
    if (i == 0) first = loss.item<float>();
    last = loss.item<float>();
  }
  if (engine.rank() == 0) std::printf("loss fell from %.2f to %.2f\n", first, last);
  // [readme]
  return last < first ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
