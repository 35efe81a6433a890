#pragma once
// What the tests of plain training loops share: places to run in, small modules, a configuration.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <string>

#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing {

using at::Tensor;
using torch::nn::Linear;

struct Where {
  int ranks, stage;
  const char* store;
  std::string text() const { return fmt::format("{} ranks, stage {}, {}", ranks, stage, store); }
};
inline constexpr Where kWhere[] = {{1, 0, "auto"},    {1, 3, "copying"}, {2, 0, "auto"},        {2, 1, "auto"},
                                   {2, 2, "copying"}, {2, 3, "copying"}, {3, 3, "node_shared"}, {3, 3, "copying"}};

inline std::string json_of(const Where& where, const std::string& more = "", const std::string& own = "") {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"store": "{}", "unit_numel": 1000, "timeout_s": 20{}}}{}}})",
                     where.stage, where.store, own, more);
}
inline const std::string kAdam = R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "eps": 1e-3}})";

inline torch::optim::AdamWOptions plain_options() { return torch::optim::AdamWOptions(0.1).weight_decay(0).eps(1e-3); }

/// Runs `check(group, where)` in every place.
inline void everywhere(const std::function<void(Group, const Where&)>& check) {
  for (const Where& where : kWhere) {
    SCOPED_TRACE(where.text());
    expect_all_ok(spawn(where.ranks,
                        [&](Group group) {
                          at::set_num_threads(1);
                          at::manual_seed(5);
                          check(group, where);
                        },
                        {.timeout = std::chrono::seconds(60)}));
  }
}

struct TwoImpl : torch::nn::Module {
  Tensor a, b;
  explicit TwoImpl(std::int64_t size = 8) {
    a = register_parameter("a", at::ones({size}));
    b = register_parameter("b", at::ones({size}));
  }
};
TORCH_MODULE(Two);

/// A unit for each of x and y, gathered when it is used: what a module holds itself is in one.
struct ApartImpl : torch::nn::Module {
  Two x = register_module("x", Two(1500)), y = register_module("y", Two(1500));
};
TORCH_MODULE(Apart);

inline double first(const Tensor& tensor) { return tensor.flatten()[0].item<double>(); }

/// Throws in backward.
struct Breaks : torch::autograd::Function<Breaks> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("out of memory, say");
  }
};

}  // namespace zero::testing
