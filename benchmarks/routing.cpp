// What routing costs: a mixture-of-experts model whose ranks use other experts, beside the same model whose ranks all
// use the same ones.
//
//   routing [--ranks 2] [--experts 8] [--modes stage2,stage3,stage3-copying] [--routings even,learned,apart]
//
// A routing says which expert a token of a layer goes to: `even` to token mod E on every rank, which needs no decision;
// `learned` to the router's best; `apart` so that no two ranks use one expert. Every (mode, routing) trains interleaved
// with its baseline, forward and backward alone of the same model under the same routing. Verified while measured: all
// modes of a routing must have the same losses. One JSON line each on rank 0.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/clock.h"
#include "bench_support.h"
#include "storage/cpu_allocator.h"
#include "zero/zero.h"

namespace {

using bench::median;

using at::Tensor;
using torch::nn::Linear;
using zero::base::seconds_now;

struct Options {
  int ranks = 2, steps = 8, warmup = 3;
  std::int64_t layers = 4, dim = 512, experts = 8, tokens = 512;
  std::string modes = "stage1,stage2,stage3,stage3-copying";
  std::string routings = "even,learned,apart";
};

/// Which expert each token goes to, [T].
using Route = std::function<Tensor(const Tensor& scores)>;

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const Options& options) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.dim})));
    router = register_module("router", Linear(torch::nn::LinearOptions(options.dim, options.experts).bias(false)));
    for (std::int64_t e = 0; e < options.experts; ++e) {
      up.push_back(register_module(fmt::format("up{}", e), Linear(options.dim, 4 * options.dim)));
      down.push_back(register_module(fmt::format("down{}", e), Linear(4 * options.dim, options.dim)));
    }
  }
  Tensor forward(const Tensor& x, const Route& route) {  // [T, D]
    const Tensor input = norm(x);
    const Tensor scores = router(input).softmax(-1);
    const Tensor chosen = route(scores);
    const Tensor gates = scores.gather(1, chosen.unsqueeze(1));
    Tensor out = x;
    for (std::size_t e = 0; e < up.size(); ++e) {
      const Tensor tokens = at::nonzero(chosen.eq(static_cast<std::int64_t>(e))).flatten();
      if (tokens.numel() == 0) continue;
      const Tensor hidden = at::gelu(up[e](input.index_select(0, tokens)));
      out = out.index_add(0, tokens, down[e](hidden) * gates.index_select(0, tokens));
    }
    return out;
  }
  torch::nn::LayerNorm norm{nullptr};
  Linear router{nullptr};
  std::vector<Linear> up, down;
};
TORCH_MODULE(Layer);

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const Options& options) {
    for (std::int64_t i = 0; i < options.layers; ++i)
      layers.push_back(register_module(fmt::format("layer{}", i), Layer(options)));
  }
  Tensor loss(Tensor x, const Route& route) {
    const Tensor target = x.roll(1, -1);
    for (auto& layer : layers) x = layer(x, route);
    return (x - target).to(at::kFloat).pow(2).mean();
  }
  std::vector<Layer> layers;
};
TORCH_MODULE(Model);

Route route_of(const std::string& routing, const Options& options, const zero::Group& group) {
  if (routing == "learned") return [](const Tensor& scores) { return scores.argmax(-1); };
  const Tensor tokens = at::arange(options.tokens);
  if (routing == "even") return [chosen = tokens.remainder(options.experts)](const Tensor&) { return chosen; };
  if (routing != "apart") throw std::invalid_argument("--routings: even, learned or apart, not '" + routing + "'");
  const std::int64_t own = options.experts / group.size();
  if (own == 0) throw std::invalid_argument("--routings apart needs an expert for each rank");
  return [chosen = tokens.remainder(own) + group.rank() * own](const Tensor&) { return chosen; };
}

std::string json_of(const std::string& mode) {
  const bool copying = mode.find("copying") != std::string::npos;
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {{"enabled": true}},
           "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}},
           "zero_optimization": {{"stage": {}}}, "zerotorch": {{"store": "{}"}}}})",
      mode.substr(5, 1), copying ? "copying" : "auto");
}

int run_rank(const Options& options) {
  zero::storage::keep_freed_memory();
  at::set_num_threads(1);
  zero::Group group = zero::init_distributed();
  bench::pin_to_core(group.local_rank());
  const auto tokens_of = [&](int step) {
    at::manual_seed(1000 + step * options.ranks + group.rank());
    return at::randn({options.tokens, options.dim}).to(at::kBFloat16);
  };
  int failures = 0;
  std::stringstream routings(options.routings);
  for (std::string routing; std::getline(routings, routing, ',');) {
    const Route route = route_of(routing, options, group);
    std::map<std::string, double> losses;
    std::stringstream modes(options.modes);
    for (std::string mode; std::getline(modes, mode, ',');) {
      at::manual_seed(1);
      Model plain(options);
      plain->to(at::kBFloat16);
      at::manual_seed(1);
      Model model(options);
      auto engine = zero::initialize(model, json_of(mode), {.group = group});
      std::vector<double> alone, steps;
      double last = 0;
      for (int i = 0; i < options.warmup + options.steps; ++i) {
        const Tensor x = tokens_of(i);
        group.barrier().wait();
        double begin = seconds_now();
        plain->loss(x, route).backward();
        for (auto& parameter : plain->parameters()) parameter.mutable_grad().reset();
        group.barrier().wait();
        const double baseline = seconds_now() - begin;
        begin = seconds_now();
        const Tensor loss = model->loss(x, route);
        engine.backward(loss);
        engine.step();
        group.barrier().wait();
        if (i >= options.warmup) {
          alone.push_back(baseline);
          steps.push_back(seconds_now() - begin);
        }
        last = loss.item<double>();
      }
      losses[mode] = last;
      if (group.rank() == 0) {
        const nlohmann::json line = {{"routing", routing},
                                     {"mode", mode},
                                     {"ranks", group.size()},
                                     {"baseline_ms", std::round(median(alone) * 1e4) / 10},
                                     {"step_ms", std::round(median(steps) * 1e4) / 10},
                                     {"ratio", std::round(median(steps) / median(alone) * 1000) / 1000},
                                     {"loss", last}};
        std::cout << line.dump() << std::endl;
        if (last != losses.begin()->second) {
          std::cerr << fmt::format("{} {}: loss {}, {} had {}\n", routing, mode, last, losses.begin()->first,
                                   losses.begin()->second);
          ++failures;
        }
      }
      group.barrier().wait();
    }
  }
  return failures > 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What routing costs: ranks that use other experts, beside ranks that use the same ones.");
  app.add_option("--ranks", options.ranks);
  app.add_option("--layers", options.layers);
  app.add_option("--dim", options.dim);
  app.add_option("--experts", options.experts);
  app.add_option("--tokens", options.tokens, "of a rank's micro-batch");
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  app.add_option("--modes", options.modes);
  app.add_option("--routings", options.routings);
  CLI11_PARSE(app, argc, argv);
  return bench::run_on_ranks("routing", options.ranks, [&] { return run_rank(options); });
}
