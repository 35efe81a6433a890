#include "zero/models.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "zero/errors.h"

namespace zero {
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

}  // namespace
}  // namespace zero
