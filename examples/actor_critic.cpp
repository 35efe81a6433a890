// An actor and a critic with a shared encoder: one engine over a module that holds both, a parameter group for each.
// An episode lasts as long as it lasts, on each rank for itself.
//   zero launch -n 2 -- build/release/examples/actor_critic 3        (the number: the ZeRO stage)
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <zero/zero.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

constexpr int kCells = 8, kMostSteps = 40, kEpisodes = 300;

struct ActorCriticImpl : torch::nn::Module {
  torch::nn::Linear encoder = register_module("encoder", torch::nn::Linear(kCells, 32));
  torch::nn::Linear actor = register_module("actor", torch::nn::Linear(32, 2));
  torch::nn::Linear critic = register_module("critic", torch::nn::Linear(32, 1));
  /// Logits of the two actions and the value of where the walker is.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& seen) {
    const at::Tensor hidden = torch::tanh(encoder(seen));
    return {actor(hidden), critic(hidden).squeeze(-1)};
  }
};
TORCH_MODULE(ActorCritic);

/// A corridor: from a random cell, by steps to the left and to the right, to the last one.
struct Corridor {
  int cell = static_cast<int>(torch::randint(kCells - 1, {1}).item<std::int64_t>());
  at::Tensor observe() const { return torch::one_hot(torch::tensor(cell), kCells).to(torch::kFloat); }
  float act(int action) {
    cell = std::clamp(cell + (action == 1 ? 1 : -1), 0, kCells - 1);
    return done() ? 1.0F : -0.1F;
  }
  bool done() const { return cell == kCells - 1; }
};

struct Episode {
  std::vector<at::Tensor> log_probabilities, values;
  std::vector<float> rewards;
};

int main(int argc, char** argv) {
  const std::string json = R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
    "optimizer": {"type": "Adam", "params": {"lr": 3e-3}},
    "zero_optimization": {"stage": )" +
                           std::string(argc > 1 ? argv[1] : "3") + R"(},
    "zerotorch": {"seed": 1}})";
  auto group = zero::init_distributed();
  torch::manual_seed(1);
  ActorCritic net;
  enum : int { kCritic = 0, kRest = 1 };  // the last group: all that no other names
  auto engine =
      zero::initialize(net, json, {.group = group, .parameter_groups = {{.names = {"critic.*"}, .lr = 1e-2}}});

  double early = 0, late = 0;  // this rank's mean steps to the end, in the first and the last 50 episodes
  for (int i = 0; i < kEpisodes; ++i) {
    Corridor corridor;
    Episode episode;
    while (!corridor.done() && episode.rewards.size() < kMostSteps) {
      const auto [logits, value] = net->forward(corridor.observe());
      const int action = static_cast<int>(torch::multinomial(logits.detach().softmax(0), 1).item<std::int64_t>());
      episode.log_probabilities.push_back(logits.log_softmax(0)[action]);
      episode.values.push_back(value);
      episode.rewards.push_back(corridor.act(action));
    }
    float sum = 0;
    std::vector<float> returns(episode.rewards.size());
    for (std::size_t t = returns.size(); t-- > 0;) returns[t] = sum = episode.rewards[t] + 0.95F * sum;

    const at::Tensor wanted = torch::tensor(returns), values = torch::stack(episode.values);
    const at::Tensor advantage = (wanted - values).detach();
    const at::Tensor actor_loss = -(torch::stack(episode.log_probabilities) * advantage).mean();
    const at::Tensor critic_loss = torch::nn::functional::smooth_l1_loss(values, wanted);
    engine.backward(actor_loss + critic_loss);
    // At first the critic alone, so that the actor has something to go by.
    if (i < 20) {
      engine.step({kCritic});
    } else {
      engine.step({kCritic, kRest});
    }
    const double steps = static_cast<double>(returns.size());
    if (i < 50) early += steps / 50;
    if (i >= kEpisodes - 50) late += steps / 50;
  }
  if (engine.rank() == 0) std::printf("steps to the end of the corridor fell from %.1f to %.1f\n", early, late);
  return late < 0.7 * early ? 0 : 1;
}
