// What a step costs, counted and not timed: heap allocations, page faults, bytes copied, collectives. A
// change that makes steps slower on every machine shows here; one that only this machine feels is for
// benchmarks/.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/allocation_counter.h"
#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing::work_guard_test {
namespace {

constexpr std::int64_t kWidth = 192;
constexpr int kLayers = 6, kParametersOfALayer = 2;
constexpr int kWarmup = 60, kSteps = 5;

torch::nn::Sequential make_model() {
  at::manual_seed(3);
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::ReLU());
  }
  return model;
}

struct Setting {
  int stage;
  const char* store;
  bool bf16;
  int accumulation = 1;
};

std::string json(const Setting& run) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": {},
    "gradient_clipping": 1.0, "optimizer": {{"type": "AdamW", "params": {{"lr": 0.001}}}}, "bf16": {{"enabled": {}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0,
                           "stage3_max_live_parameters": 100000}},
    "zerotorch": {{"store": "{}", "unit_numel": 40000}}}})",
                     run.accumulation, run.bf16, run.stage, run.store);
}

std::int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// Of one micro-batch.
struct Work {
  std::int64_t step_allocations = 0;   ///< inside step()
  std::int64_t other_allocations = 0;  ///< in forward and backward
  std::int64_t page_faults = 0;
  CommunicationReport sent;
};

Work least(const Work& a, const Work& b) {
  return {std::min(a.step_allocations, b.step_allocations), std::min(a.other_allocations, b.other_allocations),
          std::min(a.page_faults, b.page_faults), b.sent};
}

CommunicationReport minus(CommunicationReport a, const CommunicationReport& b) {
  a.gathered_numel -= b.gathered_numel;
  a.reduced_numel -= b.reduced_numel;
  a.published_numel -= b.published_numel;
  a.whole_numel -= b.whole_numel;
  a.gathers -= b.gathers;
  a.reductions -= b.reductions;
  a.copied_nbytes -= b.copied_nbytes;
  return a;
}

/// The least over some steps: what happens once in a while (a table that grows) is not what a step costs.
template <class MicroBatch>
Work measure(MicroBatch micro_batch) {
  Work best;
  for (int i = 0; i < kWarmup + kSteps; ++i) {
    const Work work = micro_batch();
    best = i <= kWarmup ? work : least(best, work);
  }
  return best;
}

at::Tensor inputs(bool bf16) { return at::ones({4, kWidth}, bf16 ? at::kBFloat16 : at::kFloat); }

Work plain_work(bool bf16) {
  auto model = make_model();
  if (bf16) model->to(at::kBFloat16);
  const at::Tensor x = inputs(bf16);
  return measure([&] {
    Work work;
    const std::int64_t allocations = allocations_of_this_thread(), faults = page_faults();
    model->forward(x).sum().backward();
    for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
    work.other_allocations = allocations_of_this_thread() - allocations;
    work.page_faults = page_faults() - faults;
    return work;
  });
}

Work engine_work(Group group, const Setting& run) {
  auto model = make_model();
  auto engine = initialize(model, json(run), InitializeOptions{.group = group});
  const at::Tensor x = inputs(run.bf16);
  return measure([&] {
    Work work;
    const auto before = engine.communication_report();
    const std::int64_t allocations = allocations_of_this_thread(), faults = page_faults();
    engine.backward(engine(x).sum());
    work.other_allocations = allocations_of_this_thread() - allocations;
    const std::int64_t at_step = allocations_of_this_thread();
    engine.step();
    work.step_allocations = allocations_of_this_thread() - at_step;
    work.page_faults = page_faults() - faults;
    work.sent = minus(engine.communication_report(), before);
    return work;
  });
}

const Setting kSettings[] = {{0, "copying", true},     {1, "copying", true}, {2, "copying", true},
                             {3, "node_shared", true}, {3, "copying", true}, {3, "node_shared", false},
                             {3, "copying", false}};

std::int64_t numel_of_model() {
  std::int64_t numel = 0;
  for (const auto& parameter : make_model()->parameters()) numel += parameter.numel();
  return numel;
}

void expect_little_work(const Group& group, const Setting& run) {
  const std::string where =
      fmt::format("{} ranks, stage {}, {}, {}", group.size(), run.stage, run.store, run.bf16 ? "bf16" : "fp32");
  const Work plain = plain_work(run.bf16), work = engine_work(group, run);
  // Where a parameter is released libtorch itself copies the message that its next reader would see.
  const bool releases = work.sent.gathers > 0;
  EXPECT_LE(work.step_allocations, releases ? kParametersOfALayer : 0) << where;
  EXPECT_LE(work.other_allocations, plain.other_allocations + (releases ? kParametersOfALayer * kLayers : 0)) << where;
  EXPECT_LE(work.page_faults, plain.page_faults + 2) << where;

  // One copy between autograd and the owner; a gather copies what the rank itself has of it.
  const std::int64_t element = run.bf16 ? 2 : 4, numel = numel_of_model();
  const auto& sent = work.sent;
  const std::int64_t gathered_whole = sent.gathered_numel == 0 ? 0 : sent.padded_numel;
  const std::int64_t gathers_of_all = gathered_whole == 0 ? 0 : sent.gathers / kLayers;
  EXPECT_GE(sent.copied_nbytes, numel * element) << where;
  EXPECT_LE(sent.copied_nbytes, numel * element + gathers_of_all * gathered_whole * element) << where;
  if (run.stage < 3 || run.store == std::string("node_shared")) {
    EXPECT_EQ(sent.copied_nbytes, numel * element) << where;
    EXPECT_EQ(sent.gathers, 0) << where;
  }
  EXPECT_EQ(sent.reductions, kLayers) << where;  // a unit a layer, a bucket a unit
}

TEST(WorkGuard, AMicroBatchTakesNothingFromTheHeapAndCopiesOnce) {
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [](Group group) {
      at::set_num_threads(1);
      for (const Setting& run : kSettings) expect_little_work(group, run);
    }));
  }
}

/// The counters count: what is known to allocate, fault and copy is seen.
TEST(WorkGuard, SeesWork) {
  const std::int64_t allocations = allocations_of_this_thread(), faults = page_faults();
  const std::vector<char> block(16 << 20, 1);
  EXPECT_GE(allocations_of_this_thread() - allocations, 1);
  EXPECT_GE(page_faults() - faults, 1);
  EXPECT_EQ(block.back(), 1);
}

}  // namespace
}  // namespace zero::testing::work_guard_test
