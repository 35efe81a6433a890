#include "support/resume.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <bit>

#include "support/engine_hash.h"
#include "support/odd_model.h"
#include "zero/zero.h"

namespace zero::testing {
namespace {

void train(Engine& engine, OddModel& model, Group group, const ResumePlace& place, std::int64_t end,
           Trajectory& trajectory) {
  const int ranks = group.size();
  std::vector<double> all(ranks);
  const std::vector<std::int64_t> ones(ranks, 1);
  for (std::int64_t first = engine.micro_steps() * ranks; first < end; first += ranks) {
    const at::Tensor loss = model->loss(micro_batch_tokens(first + group.rank(), 1, 5));
    engine.backward(loss);
    engine.step();
    const double mine = loss.item<float>();
    group.all_gather(&mine, all.data(), ones, DType::kFloat64).wait();
    for (int r = 0; r < ranks; ++r) trajectory.losses[first + r] = all[r];
    if ((first + ranks) % place.window == 0) trajectory.norms[(first + ranks) / place.window] = engine.grad_norm();
  }
}

}  // namespace

std::string ResumePlace::name() const {
  return fmt::format("{} rank{} stage {} {} {}", ranks, ranks == 1 ? "" : "s", stage,
                     node_shared ? "node-shared" : "copying", bf16 ? "bf16" : "fp32");
}

std::string resume_json(const ResumePlace& place) {
  return fmt::format(R"({{
    "train_batch_size": {}, "train_micro_batch_size_per_gpu": 1,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}}}},
    "scheduler": {{"type": "WarmupLR",
                   "params": {{"warmup_min_lr": 0.002, "warmup_max_lr": 0.01, "warmup_num_steps": 4}}}},
    "gradient_clipping": 0.5,
    "bf16": {{"enabled": {}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 40, "stage3_max_reuse_distance": 0,
                           "reduce_bucket_size": 1500}},
    "zerotorch": {{"store": "{}", "seed": 77}}
  }})",
                     place.window, place.bf16, place.stage, place.node_shared ? "node_shared" : "copying");
}

std::string Trajectory::difference(const Trajectory& later) const {
  for (const auto& [index, loss] : later.losses) {
    const auto found = losses.find(index);
    if (found == losses.end()) return fmt::format("micro-batch {} was not in the other run", index);
    if (std::bit_cast<std::uint64_t>(found->second) != std::bit_cast<std::uint64_t>(loss)) {
      return fmt::format("loss of micro-batch {}: {:.9g} and {:.9g}", index, found->second, loss);
    }
  }
  for (const auto& [step, norm] : later.norms) {
    const auto found = norms.find(step);
    if (found == norms.end() || std::bit_cast<std::uint64_t>(found->second) != std::bit_cast<std::uint64_t>(norm)) {
      return fmt::format("norm of step {}", step);
    }
  }
  if (later.norms.empty() || later.norms.rbegin()->first != kResumeSteps) return "the last step is missing";
  return final_hash == later.final_hash ? "" : "the final weights and states";
}

Trajectory train_and_save(const ResumePlace& place, Group group, std::int64_t end, const std::string& folder,
                          const std::string& tag, const SaveOptions& options) {
  at::set_num_threads(1);
  at::manual_seed(17);
  OddModel model;
  auto engine = initialize(model, resume_json(place), InitializeOptions{.group = group});
  Trajectory trajectory;
  train(engine, model, group, place, end, trajectory);
  if (!folder.empty()) {
    engine.save_checkpoint(folder, tag, fmt::format(R"({{"end": {}}})", end), options);
    engine.wait_checkpoint();
  }
  trajectory.final_hash = hash_of(engine);
  return trajectory;
}

Trajectory load_and_train(const ResumePlace& place, Group group, const std::string& folder, const std::string& tag,
                          const LoadOptions& options) {
  at::set_num_threads(1);
  at::manual_seed(991);  // other initial weights and streams: all must come from the checkpoint
  OddModel model;
  auto engine = initialize(model, resume_json(place), InitializeOptions{.group = group});
  engine.load_checkpoint(folder, tag, options);
  Trajectory trajectory;
  train(engine, model, group, place, place.steps * place.window, trajectory);
  trajectory.final_hash = hash_of(engine);
  return trajectory;
}

}  // namespace zero::testing
