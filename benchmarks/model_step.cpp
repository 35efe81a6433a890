// A Hugging Face folder trained by this library's own model, for python_peers.py, which trains the same weights on the
// same tokens under other libraries.
//
//   model_step FOLDER TOKENS --config FILE --seq N --batch N --steps N --warmup N [--recompute N]
//
// On ranks that a launcher has started. TOKENS: uint32, little-endian; micro-batch i = step * ranks + rank begins at
// token i * batch * seq. Prints "RESULT {json}" on rank 0: the fastest step after the warm-up, and all its losses.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/clock.h"
#include "zero/lm/causal_lm.h"
#include "zero/zero.h"

namespace {

std::vector<std::uint32_t> read_tokens(const std::string& path, std::int64_t first, std::int64_t count) {
  std::vector<std::uint32_t> tokens(static_cast<std::size_t>(count));
  std::ifstream file(path, std::ios::binary);
  file.seekg(first * 4);
  if (!file.read(reinterpret_cast<char*>(tokens.data()), count * 4))
    throw std::runtime_error(fmt::format("{}: has no {} tokens from {} on", path, count, first));
  return tokens;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string folder, tokens, config;
  std::int64_t seq = 256, batch = 2, steps = 4, warmup = 2, recompute = 0;
  CLI::App app("A step of a Hugging Face model.");
  app.add_option("folder", folder)->required();
  app.add_option("tokens", tokens)->required();
  app.add_option("--config", config)->required();
  app.add_option("--seq", seq);
  app.add_option("--batch", batch);
  app.add_option("--steps", steps);
  app.add_option("--warmup", warmup);
  app.add_option("--recompute", recompute);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  zero::Group group = zero::init_distributed();
  zero::models::CausalLMConfig shape = zero::models::read_config(folder + "/config.json");
  shape.recompute_every = recompute;
  shape.embedding_dropout = shape.attention_dropout = shape.residual_dropout = 0;
  auto model = zero::deferred_init([&] { return zero::models::CausalLM(shape); }, {.without_values = true});
  auto engine = zero::initialize(model, zero::Config::from_file(config), {.group = group});
  zero::models::load_weights(engine, model, folder);
  std::vector<double> seconds, losses;
  for (std::int64_t step = 0; step < warmup + steps; ++step) {
    const std::int64_t first = (step * group.size() + group.rank()) * batch * seq;
    const auto read = read_tokens(tokens, first, batch * seq);
    const at::Tensor all = at::tensor(std::vector<std::int64_t>(read.begin(), read.end())).view({batch, seq});
    const double begin = zero::base::seconds_now();
    // As transformers: the last token has no target, and counts as none.
    at::Tensor targets = at::full({batch, seq}, -100, at::kLong);
    targets.narrow(1, 0, seq - 1).copy_(all.narrow(1, 1, seq - 1));
    const at::Tensor loss = model->loss(all, targets);
    engine.backward(loss);
    engine.step();
    losses.push_back(loss.item<double>());
    seconds.push_back(zero::base::seconds_now() - begin);
  }
  if (group.rank() == 0) {
    const nlohmann::json result = {{"seconds", *std::min_element(seconds.begin() + warmup, seconds.end())},
                                   {"losses", losses}};
    std::cout << "RESULT " << result.dump() << std::endl;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "model_step: " << error.what() << "\n";
  return 1;
}
