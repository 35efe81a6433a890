// A language model of characters that carries its LSTM's state from batch to batch, with gradients clipped by norm.
//   zero launch -n 2 -- build/release/examples/carried_state_lm 3        (the number: the ZeRO stage)
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <zero/zero.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

constexpr int kHidden = 64, kLayers = 2, kStreams = 8, kLength = 16, kSteps = 250;
constexpr const char* kLetters = " .abcdefghijklmnopqrstuvwxyz";

using State = std::tuple<at::Tensor, at::Tensor>;

struct LanguageModelImpl : torch::nn::Module {
  explicit LanguageModelImpl(std::int64_t letters)
      : embedding(register_module("embedding", torch::nn::Embedding(letters, kHidden))),
        lstm(register_module(
            "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(kHidden, kHidden).num_layers(kLayers).batch_first(true)))),
        head(register_module("head", torch::nn::Linear(kHidden, letters))) {}
  std::pair<at::Tensor, State> forward(const at::Tensor& letters, const State& state) {
    const auto [hidden, next] = lstm(embedding(letters), state);
    return {head(hidden), next};
  }
  torch::nn::Embedding embedding;
  torch::nn::LSTM lstm;
  torch::nn::Linear head;
};
TORCH_MODULE(LanguageModel);

/// Sentences about a few animals, as numbers of letters.
at::Tensor make_text(std::size_t letters) {
  const char* animals[] = {"cat", "dog", "owl", "frog", "horse", "heron"};
  const char* verbs[] = {"sees", "follows", "wakes", "greets"};
  const std::string alphabet = kLetters;
  std::string text;
  for (std::size_t i = 0; text.size() < letters; ++i) {
    text += std::string("the ") + animals[i * 5 % 6] + " " + verbs[i * 3 % 4] + " the " + animals[i * 7 % 6] + ". ";
  }
  std::vector<std::int64_t> numbers;
  for (const char letter : text) numbers.push_back(static_cast<std::int64_t>(alphabet.find(letter)));
  return torch::tensor(numbers);
}

int main(int argc, char** argv) {
  const std::string json = R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0,
    "zero_optimization": {"stage": )" +
                           std::string(argc > 1 ? argv[1] : "3") + "}}";
  auto group = zero::init_distributed();
  torch::manual_seed(1);
  LanguageModel model(static_cast<std::int64_t>(std::string(kLetters).size()));
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(3e-3));
  auto engine = zero::initialize(model, json, {.group = group, .optimizer = &optimizer});
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/100, /*gamma=*/0.5);

  // Each rank reads its own part of the text, in streams that go on from batch to batch.
  const std::int64_t per_stream = kSteps * kLength + 1;
  const at::Tensor text = make_text(static_cast<std::size_t>(per_stream * kStreams * group.size()));
  const at::Tensor streams =
      text.narrow(0, group.rank() * kStreams * per_stream, kStreams * per_stream).view({kStreams, per_stream});
  State state{torch::zeros({kLayers, kStreams, kHidden}), torch::zeros({kLayers, kStreams, kHidden})};
  double first = 0, last = 0, largest_norm = 0;
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor letters = streams.narrow(1, i * kLength, kLength);
    const at::Tensor next_letters = streams.narrow(1, i * kLength + 1, kLength);
    const auto [logits, next_state] = model->forward(letters, state);
    state = {std::get<0>(next_state).detach(), std::get<1>(next_state).detach()};
    const at::Tensor loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), next_letters.flatten());
    engine.backward(loss);
    largest_norm = std::max(largest_norm, engine.clip_grad_norm(0.5));
    engine.step();
    scheduler.step();
    if (i == 0) first = loss.item<double>();
    last = loss.item<double>();
  }
  if (engine.rank() == 0) {
    std::printf("loss fell from %.2f to %.2f, largest gradient norm %.2f, rate at the end %g\n", first, last,
                largest_norm, engine.learning_rate());
  }
  return last < 0.5 * first ? 0 : 1;
}
