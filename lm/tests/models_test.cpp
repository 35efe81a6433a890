#include "zero/lm/models.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "zero/errors.h"

namespace zero::models_test {
namespace {

TEST(Models, PresetsHaveTheNumberOfParametersTheySay) {
  for (const auto& name : gpt_presets()) EXPECT_GT(gpt_numel(gpt_preset(name)), 0) << name;
  EXPECT_THROW(gpt_preset("gpt-7"), ConfigError);
  GPT model(gpt_preset("gpt-tiny"));
  std::int64_t numel = 0;
  for (const auto& parameter : model->parameters()) numel += parameter.numel();
  EXPECT_EQ(numel, gpt_numel(gpt_preset("gpt-tiny")));
  EXPECT_EQ(gpt_numel(gpt_preset("gpt-152m")), 151943168);
}

TEST(Models, UntrainedLossIsThatOfAUniformGuess) {
  at::manual_seed(1);
  GPT model(gpt_preset("gpt-tiny"));
  const at::Tensor tokens = at::randint(0, 256, {4, 33}, at::kLong);
  const float loss = model->loss(tokens.narrow(1, 0, 32), tokens.narrow(1, 1, 32).contiguous()).item<float>();
  EXPECT_NEAR(loss, std::log(256.0), 0.2);
}

TEST(Models, AttentionIsCausal) {
  at::manual_seed(1);
  at::NoGradGuard no_grad;
  GPT model(gpt_preset("gpt-tiny"));
  const at::Tensor a = at::randint(0, 256, {1, 20}, at::kLong);
  at::Tensor b = a.clone();
  b.narrow(1, 15, 5).fill_(3);
  EXPECT_TRUE(at::equal(model->forward(a).narrow(1, 0, 15), model->forward(b).narrow(1, 0, 15)));
}

TEST(Models, GenerationIsReproducible) {
  at::manual_seed(1);
  GPT model(gpt_preset("gpt-tiny"));
  const auto forward = [&](const at::Tensor& tokens) { return model->forward(tokens); };
  GenerateOptions options;
  options.length = 20;
  options.seed = 4;
  const std::string first = generate(forward, "import", options);
  EXPECT_EQ(first.size(), 20u);
  EXPECT_EQ(first, generate(forward, "import", options));
}

/// How often each of four tokens with probabilities 0.15, 0.5, 0.05 and 0.3 is drawn.
std::array<int, 4> draws(GenerateOptions options) {
  const at::Tensor logits = at::tensor({0.15, 0.5, 0.05, 0.3}).log();
  options.length = 4000;
  options.context = 1;
  std::array<int, 4> counts{};
  for (const std::int64_t token : generate_tokens(
           [&](const at::Tensor&) {
             return logits.view({1, 1, 4});
           },
           {0}, options))
    ++counts[static_cast<std::size_t>(token)];
  return counts;
}

TEST(Models, TokensAreDrawnAmongTheLikeliest) {
  const auto all = draws({.temperature = 1});
  EXPECT_NEAR(all[0], 600, 100);
  EXPECT_NEAR(all[1], 2000, 150);
  EXPECT_NEAR(all[2], 200, 70);
  const auto nucleus = draws({.temperature = 1, .top_p = 0.7});  // the second one crosses the 0.7
  EXPECT_EQ(nucleus[0] + nucleus[2], 0);
  EXPECT_NEAR(nucleus[1], 2500, 150);
  EXPECT_EQ(draws({.temperature = 1, .top_p = 0.4})[1], 4000);
  // Of the three that top_k leaves, two have 0.84 of the probability.
  const auto both = draws({.temperature = 1, .top_k = 3, .top_p = 0.83});
  EXPECT_EQ(both[0] + both[2], 0);
  EXPECT_GT(both[3], 0);
  // A low temperature makes the likeliest one likelier: 0.25 / (0.25 + 0.09 + 0.0225 + 0.0025) is above 0.6.
  EXPECT_EQ(draws({.temperature = 0.5, .top_p = 0.6})[1], 4000);
  EXPECT_GT(draws({.temperature = 1, .top_p = 0.6})[3], 0);
}

TEST(Models, GenerationStopsAndIsHeard) {
  const auto forward = [&](const at::Tensor& tokens) {  // counts on
    return at::zeros({1, tokens.size(1), 300}).index_fill(2, tokens.select(1, -1).add(1), 1.0);
  };
  std::vector<std::int64_t> heard;
  GenerateOptions options{.length = 9, .temperature = 0, .stop = {6, 40}};
  options.on_token = [&](std::int64_t token) { heard.push_back(token); };
  EXPECT_EQ(generate_tokens(forward, {2}, options), (std::vector<std::int64_t>{3, 4, 5}));
  EXPECT_EQ(heard, (std::vector<std::int64_t>{3, 4, 5}));
  options.on_token = [](std::int64_t) { throw std::runtime_error("enough"); };
  EXPECT_THROW(generate_tokens(forward, {2}, options), std::runtime_error);
}

}  // namespace
}  // namespace zero::models_test
