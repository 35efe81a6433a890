// Trains a small GPT in C++ and prints every loss exactly, for tests that do the same in Python.
// Usage: gpt_trainer <configuration> <first step> <last step> <load folder or "-"> <save folder or "-">
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "zero/lm/models.h"
#include "zero/zero.h"

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  at::set_num_threads(1);
  at::manual_seed(7);
  const zero::GPTOptions options{.layers = 2, .dim = 24, .heads = 3, .vocab = 31, .seq = 11};
  zero::GPT model(options);
  auto engine = zero::initialize(model, zero::Config::from_file(argv[1]));
  if (std::string(argv[4]) != "-") engine.load_checkpoint(argv[4]);
  for (int step = std::atoi(argv[2]); step < std::atoi(argv[3]); ++step) {
    const at::Tensor flat = at::arange(4 * 12) * (step + 3) + engine.rank();
    const at::Tensor tokens = flat.square().remainder(options.vocab).view({4, 12});
    const at::Tensor logits = engine(tokens.slice(1, 0, 11)).to(at::kFloat).view({-1, options.vocab});
    const at::Tensor loss = at::cross_entropy_loss(logits, tokens.slice(1, 1, 12).reshape({-1}));
    engine.backward(loss);
    engine.step();
    std::printf("%a\n", loss.item<double>());
  }
  if (std::string(argv[5]) != "-") engine.save_checkpoint(argv[5]);
  return 0;
}
