// The memory is what the plan says: for three models, every stage, store, number of ranks and precision, the
// ledger of every rank shows byte for byte what was predicted, by kind, after initialize() and at its peak.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string_view>

#include "support/odd_model.h"
#include "support/spawn.h"
#include "zero/lm/models.h"
#include "zero/plan.h"
#include "zero/zero.h"

namespace zero::testing::plan_agrees_test {
namespace {

constexpr int kSteps = 4, kLocalSteps = 2;

struct Case {
  int stage = 0;
  bool node_shared = false;
  bool bf16 = false;
  bool overlap = false;
  bool step_in_backward = false;
  bool measured = false;  ///< prefetch
  int hosts = 1;
  std::string optimizer = R"({"type": "AdamW"})";
  std::string of_bf16 = {};     ///< more of its section
  bool nvme = false;            ///< masters and states
  bool nvme_gradients = false;  ///< their sums
  bool nvme_parameters = false;
  bool delayed = false;   ///< updates
  bool blocks = false;    ///< gradients of two ranks are added first
  int islands = 1;        ///< that exchange after every second step
  bool small = false;     ///< small units, buckets and limits: several buckets to a unit, few units live at once
  std::string wire = {};  ///< more of zero_optimization

  std::string json(int ranks_per_island) const {
    return fmt::format(R"({{
      "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {}, "gradient_clipping": 0,
      "bf16": {{"enabled": {}, "check_grad_overflow": false{}}}, "optimizer": {},
      "zero_optimization": {{"stage": {}, "overlap_comm": {}, "reduce_bucket_size": {},
        "allgather_bucket_size": {}, "stage3_param_persistence_threshold": {}, "stage3_max_live_parameters": {},
        "stage3_max_reuse_distance": {}, "stage3_prefetch_bucket_size": {}, "sub_group_size": {},
        "offload_optimizer": {{"device": "{}", "nvme_path": "{}"}},
        "offload_param": {{"device": "{}", "nvme_path": "{}"}}{}}},
      "zerotorch": {{"store": "{}", "unit_numel": {}, "update": "{}",
        "measured_prefetch": {}, "offload_gradients": {{"device": "{}", "nvme_path": "{}"}},
        "hierarchical_reduce": {}, "local_steps": {{"steps": {}, "ranks_per_island": {}}}}}}})",
                       small || step_in_backward ? 1 : 2, bf16, of_bf16, optimizer, stage, overlap,
                       small ? 1500 : 500000000, small ? 3000 : 500000000, small ? 0 : 40, small ? 9000 : 1000000000,
                       small ? 0 : 5000, small ? 5000 : 50000000, small ? 2000 : 1000000000, nvme ? "nvme" : "none",
                       ::testing::TempDir(), nvme_parameters ? "nvme" : "none", ::testing::TempDir(), wire,
                       node_shared ? "node_shared" : "copying", small ? 2500 : 0,
                       step_in_backward ? "in_backward"
                       : delayed        ? "delayed"
                                        : "after_backward",
                       measured, nvme_gradients ? "nvme" : "none", ::testing::TempDir(), blocks ? 2 : 0,
                       islands > 1 ? kLocalSteps : 0, islands > 1 ? ranks_per_island : 0);
  }
  std::vector<int> possible_ranks() const {
    std::vector<int> possible;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      if (ranks % islands == 0 && (!blocks || ranks % 2 == 0)) possible.push_back(ranks);
    }
    return possible;
  }
  std::string name() const {
    return optimizer + of_bf16 +
           fmt::format(" stage {} {} {}{}{}{}{}{}", stage, node_shared ? "node-shared" : "copying",
                       bf16 ? "bf16" : "fp32", overlap ? " overlap" : "", small ? " small" : "",
                       step_in_backward ? " step in backward" : "", measured ? " measured" : "",
                       hosts > 1 ? " on hosts" : "") +
           (nvme ? " nvme" : "") + (nvme_gradients ? " nvme gradients" : "") +
           (nvme_parameters ? " nvme parameters" : "") + (delayed ? " delayed" : "") + (islands > 1 ? " islands" : "") +
           (blocks ? " blocks" : "") + wire;
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int stage = 0; stage <= 3; ++stage) {
    for (int bits = 0; bits < 16; ++bits) {
      cases.push_back({.stage = stage,
                       .node_shared = (bits & 1) != 0,
                       .bf16 = (bits & 2) != 0,
                       .overlap = (bits & 4) != 0,
                       .small = (bits & 8) != 0});
      if (stage == 3 && !cases.back().node_shared) {
        cases.push_back(cases.back());
        cases.back().nvme_parameters = true;
      }
      if (stage > 0 && (bits + stage) % 3 == 1) {
        cases.push_back(cases.back());
        cases.back().nvme_gradients = true;
        cases.back().nvme = bits % 2 == 1;
      }
      if ((bits + stage) % 3 != 0) continue;
      cases.push_back(cases.back());
      cases.back().nvme = true;
    }
    cases.push_back({.stage = stage, .node_shared = true, .bf16 = true, .hosts = 2});
    for (const bool bf16 : {false, true})
      cases.push_back({.stage = stage, .node_shared = bf16, .bf16 = bf16, .islands = 2});
    for (const bool small : {false, true})
      cases.push_back({.stage = stage, .node_shared = small, .bf16 = small, .blocks = true, .small = small});
    if (stage == 3) {
      cases.push_back({.stage = stage, .bf16 = true, .overlap = true, .measured = true});
      cases.push_back({.stage = stage, .bf16 = true, .overlap = true, .measured = true, .small = true});
    }
    for (const bool bf16 : {false, true}) {
      for (const char* optimizer :
           {R"({"type": "SGD"})", R"({"type": "RMSprop", "params": {"momentum": 0.9, "centered": true}})",
            R"({"type": "Adagrad"})", R"({"type": "AdamW", "params": {"amsgrad": true}})", R"({"type": "Lamb"})",
            R"({"type": "Muon"})", R"({"type": "Adafactor"})", R"({"type": "AdamW8bit"})", R"({"type": "AdEMAMix"})"})
        for (const bool nvme : {false, true}) {
          if (nvme && bf16 != (stage % 2 == 1)) continue;
          cases.push_back({.stage = stage, .node_shared = !bf16, .bf16 = bf16, .optimizer = optimizer, .nvme = nvme});
        }
    }
    for (const char* of_bf16 : {R"(, "bf16_optimizer_states": true)", R"(, "bf16_master_weights_and_grads": true)",
                                R"(, "bf16_optimizer_states": true, "bf16_master_weights_and_grads": true)"}) {
      for (const bool node_shared : {false, true})
        cases.push_back({.stage = stage, .node_shared = node_shared, .bf16 = true, .of_bf16 = of_bf16});
    }
    for (const bool small : {false, true}) {
      const std::string gradients = R"(, "zero_quantized_gradients": true)";
      const std::string loco = gradients + R"(, "zeropp_loco_param": {"reset_T": 3})";
      const std::string weights = R"(, "zero_quantized_weights": true)";
      cases.push_back({.stage = stage, .bf16 = small, .small = small, .wire = gradients});
      cases.push_back({.stage = stage, .bf16 = !small, .overlap = small, .small = small, .wire = loco});
      if (stage < 3) continue;
      for (const bool bf16 : {false, true})
        cases.push_back({.stage = stage, .bf16 = bf16, .overlap = bf16, .small = small, .wire = weights + loco});
      cases.push_back({.stage = stage, .small = small, .wire = R"(, "zero_quantized_nontrainable_weights": true)"});
    }
    if (stage == 0) continue;
    for (const bool small : {false, true}) {
      cases.push_back({.stage = stage, .node_shared = small, .bf16 = small, .step_in_backward = true, .small = small});
      cases.push_back({.stage = stage, .bf16 = true, .step_in_backward = true, .small = small});
      cases.push_back({.stage = stage, .node_shared = !small, .bf16 = small, .delayed = true, .small = small});
      cases.push_back({.stage = stage, .bf16 = true, .nvme = small, .nvme_gradients = true, .delayed = true});
    }
  }
  return cases;
}

/// One use per operator of OddModel::forward.
plan::ModelShape odd_shape(const std::shared_ptr<torch::nn::Module>& module) {
  plan::ModelShape shape = plan::shape_of(ModelView::of(module));
  std::map<std::string, int> index;
  for (std::size_t i = 0; i < shape.parameters.size(); ++i) index[shape.parameters[i].name] = static_cast<int>(i);
  const auto use = [&](std::vector<std::string> names, bool in_backward = true) {
    plan::Use operation{{}, in_backward};
    for (const auto& name : names) operation.parameters.push_back(index.at(name));
    shape.uses.push_back(operation);
  };
  use({"embedding.weight"}, /*in_backward=*/false);
  // Backward ends with the input's weights: their product is one operator over all time steps.
  use({"lstm.weight_ih_l0", "lstm.bias_ih_l0", "lstm.weight_hh_l0", "lstm.bias_hh_l0"});
  use({"norm.weight", "norm.bias"});
  use({"up.weight", "up.bias"});
  use({"frozen.weight", "frozen.bias"});
  use({"twice.weight"});
  use({"twice.weight"});
  use({"batch_norm.weight", "batch_norm.bias"});
  use({"down.weight", "down.bias"});
  use({"scale"});
  use({"shift"}, /*in_backward=*/false);
  use({"transposed"});
  use({"transposed"});
  use({"empty"}, /*in_backward=*/false);
  use({"embedding.weight"});
  return shape;
}

at::Tensor tokens_of(std::int64_t vocab) { return at::arange(24).remainder(vocab).view({2, 12}).to(at::kLong); }

template <class Engine>
void train(Engine& engine, const std::function<at::Tensor()>& loss, int steps) {
  const std::int64_t until = engine.global_steps() + steps;
  while (engine.global_steps() < until) {
    engine.backward(loss());
    engine.step();
  }
}

constexpr MemoryKind kEngineKinds[] = {MemoryKind::kParameters, MemoryKind::kGather,    MemoryKind::kMaster,
                                       MemoryKind::kOptimizer,  MemoryKind::kGradients, MemoryKind::kBuckets,
                                       MemoryKind::kStaging,    MemoryKind::kOffload};

void expect_states(const MemoryReport& planned, const MemoryReport& seen, const std::string& where) {
  EXPECT_EQ(seen.nvme_nbytes, planned.nvme_nbytes) << where;
  for (const MemoryKind kind : kEngineKinds) {
    EXPECT_EQ(seen[kind].current_nbytes, planned[kind].current_nbytes) << where << ", " << memory_kind_name(kind);
  }
}

void expect_peaks(const MemoryReport& planned, const MemoryReport& seen, const plan::Plan& whole,
                  const std::string& where) {
  for (const MemoryKind kind : kEngineKinds) {
    if (kind == MemoryKind::kGather && whole.gather_is_bound) {
      EXPECT_LE(seen[kind].peak_nbytes, planned[kind].peak_nbytes) << where;
      continue;
    }
    if (kind == MemoryKind::kBuckets && whole.buckets_are_bound) {
      EXPECT_LE(seen[kind].peak_nbytes, planned[kind].peak_nbytes) << where;
      EXPECT_GT(seen[kind].peak_nbytes, 0) << where;
      continue;
    }
    EXPECT_EQ(seen[kind].peak_nbytes, planned[kind].peak_nbytes) << where << ", " << memory_kind_name(kind);
  }
}

std::int64_t sum_over_ranks(Group group, std::int64_t value) {
  group.all_reduce(&value, 1, DType::kInt64).wait();
  return value;
}

/// `unused_whole_numel`: of tensors that no step uses, in which Muon and Adafactor leave them where they are.
void expect_traffic(const plan::Traffic& planned, const CommunicationReport& before, const CommunicationReport& after,
                    double unused_whole_numel, Group group, const std::string& where) {
  const auto expect = [&](double mean_numel, std::int64_t mine, const char* what) {
    EXPECT_EQ(std::llround(mean_numel * group.size()), sum_over_ranks(group, mine)) << where << ", " << what;
  };
  expect(planned.gathered_numel, after.gathered_numel - before.gathered_numel, "gathered");
  expect(planned.reduced_numel, after.reduced_numel - before.reduced_numel, "reduced");
  // Below stage 3 the node-shared store has nothing to send either: parameters are published by a barrier.
  expect(kLocalSteps * planned.islands_numel, after.islands_numel - before.islands_numel, "from other islands");
  expect(planned.published_numel, after.published_numel - before.published_numel, "published");
  expect(planned.whole_numel - unused_whole_numel, after.whole_numel - before.whole_numel, "whole tensors");
}

template <class Holder>
void compare(Holder module, const plan::ModelShape& shape, const Case& test_case, Group group,
             const std::function<at::Tensor()>& loss) {
  Config config = Config::from_text(test_case.json(group.size() / test_case.islands));
  config.resolve_batch(group.size());
  const int per_node = group.size() / test_case.hosts;
  const MemoryReport planned = plan::engine_memory(shape, config, group.size(), group.rank(), per_node);
  const plan::Plan whole = plan::plan_memory(shape, config, {.ranks = group.size(), .ranks_per_node = per_node});
  const std::string where =
      fmt::format("{}, {}, rank {} of {}", shape.name, test_case.name(), group.rank(), group.size());
  auto engine = initialize(module, config, InitializeOptions{.group = group});
  expect_states(planned, engine.memory_report(), where + ", initialized");
  train(engine, loss, kSteps - 1);
  const CommunicationReport before = engine.communication_report();
  train(engine, loss, 1);
  const CommunicationReport after = engine.communication_report();
  expect_peaks(planned, engine.memory_report(), whole, where + ", trained");
  const bool brings_unused = shape.name == "odd" && test_case.stage == 0 && whole.traffic.whole_numel > 0;
  const double unused = brings_unused ? 7 * 3.0 * (group.size() - 1) / group.size() : 0;  // OddModel::unused
  expect_traffic(whole.traffic, before, after, unused, group, where);
  EXPECT_EQ(whole.padded_numel, after.padded_numel) << where;
  EXPECT_EQ(whole.parameters_numel, after.parameters_numel) << where;
}

void compare_on(int ranks, int hosts, const std::function<void(const Case&, Group)>& one) {
  expect_all_ok(spawn(ranks,
                      [&](Group group) {
                        at::set_num_threads(1);
                        // Each at one number of ranks, or at all where the whole matrix is wanted.
                        const char* const matrix = std::getenv("ZERO_PARITY");
                        const bool all = hosts > 1 || (matrix && std::string_view(matrix) == "full");
                        int index = 0;
                        for (const Case& test_case : all_cases()) {
                          if (test_case.hosts != hosts) continue;
                          const std::vector<int> possible = test_case.possible_ranks();
                          const int chosen = possible[static_cast<std::size_t>(index + index / 4) % possible.size()];
                          ++index;
                          if (all ? std::ranges::find(possible, ranks) != possible.end() : ranks == chosen)
                            one(test_case, group);
                        }
                      },
                      {.timeout = std::chrono::minutes(4)}));
}

void compare_everywhere(const std::function<void(const Case&, Group)>& one) {
  for (int ranks = 1; ranks <= 4; ++ranks) compare_on(ranks, 1, one);
  setenv("ZERO_RANKS_PER_NODE", "2", 1);
  compare_on(4, 2, one);
  unsetenv("ZERO_RANKS_PER_NODE");
}

TEST(PlanAgrees, OddShapes) {
  compare_everywhere([](const Case& test_case, Group group) {
    at::manual_seed(1);
    OddModel model;
    plan::ModelShape shape = odd_shape(model.ptr());
    shape.name = "odd";
    compare(model, shape, test_case, group, [&] { return model->loss(micro_batch_tokens(group.rank(), 2)); });
  });
}

TEST(PlanAgrees, Gpt) {
  compare_everywhere([](const Case& test_case, Group group) {
    at::manual_seed(1);
    for (const bool tied : {false, true}) {
      GPTOptions options{.layers = 3, .dim = 36, .heads = 2, .vocab = 53, .seq = 12, .tied = tied};
      GPT model(options);
      const auto shape = plan::transformer({.layers = 3, .dim = 36, .heads = 2, .vocab = 53, .seq = 12, .tied = tied},
                                           tied ? "tied gpt" : "gpt");
      compare(model, shape, test_case, group, [&] { return model->loss(tokens_of(53), tokens_of(53)); });
    }
  });
}

TEST(PlanAgrees, MlpByItsNamesAlone) {
  compare_everywhere([](const Case& test_case, Group group) {
    at::manual_seed(1);
    DeepModel model(9, 44);
    plan::ModelShape shape = plan::shape_of(ModelView::of(model.ptr()));
    shape.name = "mlp";
    // Requires a gradient, so that backward reads the first layer too.
    const at::Tensor input = at::ones({2, 44}, test_case.bf16 ? at::kBFloat16 : at::kFloat).requires_grad_();
    compare(model, shape, test_case, group, [&] { return model->forward(input).to(at::kFloat).square().mean(); });
  });
}

TEST(PlanAgrees, GptsParametersAreListedAsTheModuleHasThem) {
  for (const bool tied : {false, true}) {
    GPTOptions options{.layers = 2, .dim = 24, .heads = 3, .vocab = 31, .seq = 9, .tied = tied};
    GPT model(options);
    const auto expected = plan::shape_of(ModelView::of(model.ptr())).parameters;
    const auto listed =
        plan::transformer({.layers = 2, .dim = 24, .heads = 3, .vocab = 31, .seq = 9, .tied = tied}).parameters;
    ASSERT_EQ(listed.size(), expected.size());
    for (std::size_t i = 0; i < listed.size(); ++i) {
      EXPECT_EQ(listed[i].name, expected[i].name);
      EXPECT_EQ(listed[i].numel, expected[i].numel);
    }
  }
}

}  // namespace
}  // namespace zero::testing::plan_agrees_test
