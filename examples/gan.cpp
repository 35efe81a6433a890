// A GAN as libtorch's tutorial writes it, with an engine for each network: a cloud of points is learnt from noise.
//   zero launch -n 2 -- build/release/examples/gan 3        (the number: the ZeRO stage)
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <zero/zero.h>

#include <cstdio>
#include <string>

namespace nn = torch::nn;

constexpr int kBatch = 64, kNoise = 4, kSteps = 600;

/// Points around (2, -1), wider to the sides than up and down.
at::Tensor real_points(std::int64_t count) {
  return torch::randn({count, 2}) * torch::tensor({0.8, 0.3}) + torch::tensor({2.0, -1.0});
}

/// How far the centre and the spread of points are from those of real ones.
double distance(const at::Tensor& points) {
  const at::Tensor real = real_points(10'000);
  return (points.mean(0) - real.mean(0)).norm().item<double>() + (points.std(0) - real.std(0)).norm().item<double>();
}

int main(int argc, char** argv) {
  const std::string json = R"({"train_micro_batch_size_per_gpu": 64, "gradient_clipping": 0,
    "zero_optimization": {"stage": )" +
                           std::string(argc > 1 ? argv[1] : "3") + R"(},
    "zerotorch": {"seed": 1}})";
  auto group = zero::init_distributed();
  torch::manual_seed(1);
  nn::Sequential generator(nn::Linear(kNoise, 64), nn::ReLU(), nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 2));
  nn::Sequential discriminator(nn::Linear(2, 64), nn::LeakyReLU(), nn::Linear(64, 64), nn::LeakyReLU(),
                               nn::Linear(64, 1));
  const auto adam = torch::optim::AdamOptions(1e-3).betas({0.5, 0.9});
  torch::optim::Adam generator_optimizer(generator->parameters(), adam);
  torch::optim::Adam discriminator_optimizer(discriminator->parameters(), adam);
  // One engine for each network; the optimizers go on giving the rates.
  auto g_engine = zero::initialize(generator, json, {.group = group, .optimizer = &generator_optimizer});
  auto d_engine = zero::initialize(discriminator, json, {.group = group, .optimizer = &discriminator_optimizer});

  const auto loss = [](const at::Tensor& scores, double label) {
    return nn::functional::binary_cross_entropy_with_logits(scores, torch::full_like(scores, label));
  };
  const auto evaluate = [&] {  // on every rank alike
    torch::NoGradGuard no_grad;
    return distance(generator->forward(torch::randn({10'000, kNoise})));
  };
  const double before = evaluate();
  for (int i = 0; i < kSteps; ++i) {
    discriminator_optimizer.zero_grad();  // takes back what the generator's loss has left here
    const at::Tensor fake = generator->forward(torch::randn({kBatch, kNoise}));
    d_engine.backward(loss(discriminator->forward(real_points(kBatch)), 0.9) +
                      loss(discriminator->forward(fake.detach()), 0));
    d_engine.step();

    generator_optimizer.zero_grad();
    const at::Tensor g_loss = loss(discriminator->forward(fake), 1);  // goes through the other network
    g_engine.backward(g_loss);
    g_engine.step();
    if (g_engine.rank() == 0 && i % 200 == 0) std::printf("step %d: generator's loss %.3f\n", i, g_loss.item<float>());
  }
  const double after = evaluate();
  if (g_engine.rank() == 0) std::printf("distance from the real points fell from %.2f to %.2f\n", before, after);
  return after < 0.5 * before ? 0 : 1;
}
