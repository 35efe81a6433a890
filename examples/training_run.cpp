// A whole training program: it starts its own two ranks (under a launcher it is one of that launcher's), saves when its
// JSON says so, stops on SIGTERM with a checkpoint, and goes on where it was when it is started again.
//   build/release/examples/training_run examples/training_run.json runs/example
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <zero/launch.h>
#include <zero/train.h>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

struct MyModelImpl : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(32, 256));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(256, 10));
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
};
TORCH_MODULE(MyModel);

/// Micro-batch `index` of the data, counted over all ranks: depends on nothing else.
std::pair<at::Tensor, at::Tensor> data(std::int64_t index) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(index));
  const at::Tensor inputs = at::randn({8, 32}, generator);
  return {inputs.to(at::kBFloat16), inputs.slice(1, 0, 10).argmax(1)};
}

// [guide: program]
int train_rank(const std::string& config_file, const std::string& folder) {
  auto group = zero::init_distributed();
  const auto config = zero::Config::from_file(config_file);
  zero::set_up_process(group, config);  // threads, cores, allocator, seed, stop signals
  MyModel model;
  auto engine = zero::initialize(model, config, {.group = group});
  zero::TrainingRun run(engine, {.folder = folder});
  run.resume();  // from the newest checkpoint, if there is one
  while (engine.global_steps() < 1000 && !run.should_stop()) {
    auto [inputs, labels] = data(engine.micro_steps() * engine.world_size() + engine.rank());
    auto loss = torch::nn::functional::cross_entropy(engine(inputs).to(torch::kFloat), labels);
    engine.backward(loss);
    engine.step();
    run.after_step(loss.item<double>());  // the ranks agree on the loss, and on whether to stop
    run.save_if_due();
  }
  run.finish();  // the last checkpoint
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    return zero::run_on_ranks(2, [&] { return train_rank(argv[1], argv[2]); }, {.grace_ms = 60'000});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
// [end]
