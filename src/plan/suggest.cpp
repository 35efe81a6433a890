// The smallest change that makes a plan fit.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "config/exclusions.h"
#include "config/update_kind.h"
#include "layout/sharding.h"
#include "plan/sizes.h"
#include "sharding/plan/sharding_plan.h"
#include "zero/errors.h"
#include "zero/memory.h"
#include "zero/plan.h"

namespace zero::plan {
namespace {

constexpr std::int64_t kSmallBucketNumel = 1'000'000;
constexpr int kMostSuggestedRanks = 131'072;
constexpr const char* kOtherCurve = " (another curve)";
constexpr const char* kNvmePath = " (nvme_path on a local disk)";

struct Candidate {
  std::vector<std::string> changes;
  ModelShape model;
  Config config;
  Cluster cluster;
  Changes allowed;
};

/// Plans a candidate; nothing when it contradicts itself (batch sizes that do not divide) or does not fit.
std::optional<Suggestion> try_out(const Candidate& candidate) {
  try {
    Plan plan = plan_memory(candidate.model, candidate.config, candidate.cluster);
    if (!fits(plan, candidate.cluster)) return {};
    Config::from_text(candidate.config.to_json());  // keys that exclude each other
    return Suggestion{candidate.changes, candidate.model, candidate.config, candidate.cluster, plan};
  } catch (const ConfigError&) {
    return {};
  }
}

using Change = std::function<std::vector<Candidate>(const Candidate&)>;

/// `from` with one more change.
Candidate with(Candidate from, std::string words, const std::function<void(Candidate&)>& apply) {
  from.changes.push_back(std::move(words));
  apply(from);
  return from;
}

std::vector<Candidate> smaller_buckets(const Candidate& from) {
  const bool pooled = layout::sharding_of_stage(from.config.zero_optimization.stage, from.cluster.ranks).gradients;
  if (!pooled || from.config.zero_optimization.reduce_bucket_size <= kSmallBucketNumel) return {};
  return {with(from, fmt::format("zero_optimization.reduce_bucket_size {}", kSmallBucketNumel),
               [](Candidate& c) { c.config.zero_optimization.reduce_bucket_size = kSmallBucketNumel; })};
}

std::vector<Candidate> higher_stage(const Candidate& from) {
  std::vector<Candidate> candidates;
  for (int next = from.config.zero_optimization.stage + 1; next <= 3; ++next) {
    candidates.push_back(with(from, fmt::format("zero_optimization.stage {}", next),
                              [next](Candidate& c) { c.config = at_stage(c.config, next); }));
  }
  return candidates;
}

std::vector<Candidate> node_shared(const Candidate& from) {
  using Store = Config::Zerotorch::Store;
  if (from.config.zerotorch.store != Store::kCopying) return {};
  return {with(from, "zerotorch.store \"node_shared\"",
               [](Candidate& c) { c.config.zerotorch.store = Store::kNodeShared; })};
}

/// Gradients that are used up as they come: the same bits, where nothing is clipped or accumulated.
std::vector<Candidate> no_gradients(const Candidate& from) {
  const auto update = config::update_without_gradients();
  if (from.config.zerotorch.update != Config::Zerotorch().update) return {};
  const bool is_bf16 = from.config.param_dtype() == DType::kBFloat16;
  return {with(from,
               fmt::format("zerotorch.update \"{}\"{}", config::kind_of(update).name,
                           is_bf16 ? " (bf16.check_grad_overflow false)" : ""),
               [update](Candidate& c) {
                 c.config.zerotorch.update = update;
                 c.config.bf16.check_grad_overflow = false;
               })};
}

/// The same global batch in smaller pieces.
std::vector<Candidate> smaller_micro_batches(const Candidate& from) {
  std::vector<Candidate> candidates;
  const std::int64_t micro = from.config.train_micro_batch_size_per_gpu;
  for (std::int64_t part = 2; part <= micro; part *= 2) {
    if (micro % part != 0) break;
    const std::int64_t steps = from.config.gradient_accumulation_steps * part;
    candidates.push_back(with(
        from, fmt::format("train_micro_batch_size_per_gpu {} (gradient_accumulation_steps {})", micro / part, steps),
        [&](Candidate& c) {
          c.config.train_micro_batch_size_per_gpu = micro / part;
          c.config.gradient_accumulation_steps = steps;
        }));
  }
  return candidates;
}

std::vector<Candidate> bf16(const Candidate& from) {
  if (from.config.param_dtype() != DType::kFloat32) return {};
  const bool checks = config::kind_of(from.config.zerotorch.update).keeps_gradients;
  const char* const unchecked = checks ? "" : ", bf16.check_grad_overflow false";
  return {with(from, fmt::format("bf16{}{}", unchecked, kOtherCurve), [&](Candidate& c) {
    c.config.bf16.enabled = true;
    if (!checks) c.config.bf16.check_grad_overflow = false;
  })};
}

std::vector<Candidate> checkpointing(const Candidate& from) {
  if (!from.model.transformer || from.model.transformer->checkpointing) return {};
  return {with(from, "activation checkpointing (zero train --recompute 1)",
               [](Candidate& c) { c.model.transformer->checkpointing = true; })};
}

std::vector<Candidate> deferred_init(const Candidate& from) {
  if (from.model.deferred_init) return {};
  return {with(from, "the module built by zero::deferred_init", [](Candidate& c) { c.model.deferred_init = true; })};
}

/// Of parameters in bf16: states in bf16, in 8 bits, then also no masters; of those in fp16: states in 8 bits. The last
/// one is the smallest.
std::vector<Candidate> fewer_bits(const Candidate& from) {
  const Config& config = from.config;
  const auto& optimizer = config.optimizer;
  const bool is_bf16 = config.param_dtype() == DType::kBFloat16;
  if (!is_bf16 && config.param_dtype() != DType::kFloat16) return {};
  std::vector<std::string> changes;
  Candidate narrow = from;
  std::vector<Candidate> candidates;
  const auto add = [&](std::string change) {
    changes.push_back(std::move(change));
    candidates.push_back(narrow);
    candidates.back().changes.push_back(fmt::format("{}{}", fmt::join(changes, ", "), kOtherCurve));
  };
  if (is_bf16 && !config.bf16.optimizer_states && !optimizer.type.ends_with("8bit")) {
    narrow.config.bf16.optimizer_states = true;
    add("bf16.bf16_optimizer_states");
  }
  if ((optimizer.type == "Adam" || optimizer.type == "AdamW") && !optimizer.amsgrad) {
    narrow.config.bf16.optimizer_states = false;
    narrow.config.optimizer.type += "8bit";
    changes.clear();
    if (config.bf16.optimizer_states) changes.push_back("no bf16.bf16_optimizer_states");
    add(fmt::format("optimizer.type \"{}\"", narrow.config.optimizer.type));
  }
  if (is_bf16 && !config.bf16.master_weights_and_grads) {
    narrow.config.bf16.master_weights_and_grads = narrow.config.zerotorch.stochastic_rounding = true;
    add("bf16.bf16_master_weights_and_grads, zerotorch.stochastic_rounding");
  }
  return candidates;
}

constexpr const char* kParametersOnHost = "stage 3, zero_optimization.offload_param.device \"cpu\"";
constexpr const char* kStatesOnHost = "zero_optimization.offload_optimizer.device \"cpu\"";

/// A part of the states on the device no more.
std::vector<Candidate> without_ratio(const Candidate& from) {
  if (!from.cluster.gpus || from.config.zero_optimization.offload_optimizer.ratio >= 1) return {};
  return {with(from, "zero_optimization.offload_optimizer.ratio 1",
               [](Candidate& c) { c.config.zero_optimization.offload_optimizer.ratio = 1; })};
}

/// The same bits, at the speed of the host's cores and memory.
std::vector<Candidate> states_in_host_memory(const Candidate& from) {
  using Device = Config::OffloadDevice;
  if (!from.cluster.gpus || from.config.zero_optimization.offload_optimizer.device != Device::kNone) return {};
  return {with(from, kStatesOnHost, [](Candidate& c) {
    c.config.zero_optimization.offload_optimizer.device = Device::kCpu;
    c.config.zerotorch.device_transport = Config::Zerotorch::DeviceTransport::kAuto;
  })};
}

/// Of a single rank, whose GPU otherwise has all of them; those of several are there with their states at stage 3.
std::vector<Candidate> parameters_in_host_memory(const Candidate& from) {
  using Device = Config::OffloadDevice;
  if (!from.cluster.gpus || from.cluster.ranks > 1 ||
      from.config.zero_optimization.offload_param.device != Device::kNone)
    return {};
  const auto states_there = states_in_host_memory(from);
  return {with(states_there.empty() ? from : states_there.front(), kParametersOnHost, [](Candidate& c) {
    c.config = at_stage(c.config, 3);
    c.config.zero_optimization.offload_param.device = Device::kCpu;
  })};
}

/// The same bits, at the speed of the disk.
std::vector<Candidate> states_on_nvme(const Candidate& from) {
  using Device = Config::OffloadDevice;
  // What is saved of a host is of no use to GPUs, whose hosts have room.
  if (from.cluster.gpus && from.cluster.node_memory_nbytes <= 0) return {};
  if (from.config.zero_optimization.offload_optimizer.device == Device::kNvme) return {};
  const auto all_on_host = without_ratio(from);
  Candidate start = all_on_host.empty() ? from : all_on_host.front();
  std::erase(start.changes, kStatesOnHost);  // in its place
  return {
      with(start, fmt::format("zero_optimization.offload_optimizer.device \"nvme\"{}", kNvmePath), [](Candidate& c) {
        c.config.zero_optimization.offload_optimizer.device = Device::kNvme;
        c.config.zero_optimization.offload_optimizer.nvme_path = c.allowed.nvme_path;
      })};
}

/// Parameters of a single rank need no disk, where states do.
std::vector<Candidate> parameters_beside_states_on_nvme(const Candidate& from) {
  const auto states_there = states_on_nvme(from);
  return states_there.empty() ? states_there : parameters_in_host_memory(states_there.front());
}

/// With the states, which take more and move as often.
std::vector<Candidate> gradients_on_nvme(const Candidate& from) {
  using Device = Config::OffloadDevice;
  const Config& config = from.config;
  if (config.zerotorch.offload_gradients.device == Device::kNvme) return {};
  auto on_disk = from.allowed.states_on_nvme ? states_on_nvme(from) : std::vector<Candidate>();
  const Candidate& start = on_disk.empty() ? from : on_disk.front();
  const char* const path = start.config.zero_optimization.offload_optimizer.nvme_path.empty() ? kNvmePath : "";
  return {with(start, fmt::format("zerotorch.offload_gradients.device \"nvme\"{}", path), [](Candidate& c) {
    c.config.zerotorch.offload_gradients.device = Device::kNvme;
    c.config.zerotorch.offload_gradients.nvme_path = c.allowed.nvme_path;
  })};
}

int ranks_per_node_of(const Cluster& cluster) {
  return cluster.ranks_per_node > 0 ? std::min(cluster.ranks_per_node, cluster.ranks) : cluster.ranks;
}

std::vector<Candidate> parameters_on_nvme(const Candidate& from) {
  using Device = Config::OffloadDevice;
  auto on_disk = from.allowed.states_on_nvme ? states_on_nvme(from) : std::vector<Candidate>();
  if (from.cluster.ranks > ranks_per_node_of(from.cluster)) return {};
  if (from.config.zero_optimization.offload_param.device == Device::kNvme) return {};
  Candidate start = on_disk.empty() ? from : on_disk.front();
  std::erase(start.changes, kParametersOnHost);  // in its place
  const bool moves = start.config.zerotorch.store == Config::Zerotorch::Store::kNodeShared;
  const std::string words = fmt::format("stage 3, zero_optimization.offload_param.device \"nvme\"{}{}", kNvmePath,
                                        moves ? ", zerotorch.store \"auto\"" : "");
  return {with(start, words, [](Candidate& c) {
    c.config.zero_optimization.stage = 3;
    c.config.zerotorch.store = Config::Zerotorch::Store::kAuto;
    c.config.zero_optimization.offload_param.device = Device::kNvme;
    c.config.zero_optimization.offload_param.nvme_path = c.allowed.nvme_path;
  })};
}

/// `hosts` hosts like those there are; the micro-batch stays, so the global batch grows.
Candidate on_hosts(const Candidate& from, int hosts, int ranks_per_node) {
  const int ranks = hosts * ranks_per_node;
  const std::int64_t batch =
      from.config.train_micro_batch_size_per_gpu * from.config.gradient_accumulation_steps * ranks;
  const std::string larger = ranks == from.cluster.ranks ? "" : fmt::format(" (train_batch_size {})", batch);
  const std::string change = fmt::format("{} {} on {} host{}, {} each{}", ranks, from.cluster.gpus ? "GPUs" : "ranks",
                                         hosts, hosts == 1 ? "" : "s", ranks_per_node, larger);
  return with(from, change, [&](Candidate& c) {
    c.cluster.ranks = ranks;
    c.cluster.ranks_per_node = ranks_per_node;
    c.config.train_batch_size = 0;
  });
}

/// The fewest hosts that do, more than `too_few`. By bisection: more hosts never need more memory each.
std::optional<Suggestion> more_hosts(const Candidate& from, int ranks_per_node, int too_few) {
  const int most = kMostSuggestedRanks / ranks_per_node;
  int enough = too_few;
  std::optional<Suggestion> found;
  while (!found && enough < most) {
    too_few = enough;
    enough = std::min(std::max(1, enough * 2), most);
    found = try_out(on_hosts(from, enough, ranks_per_node));
  }
  while (found && enough - too_few > 1) {
    const int middle = too_few + (enough - too_few) / 2;
    auto fewer = try_out(on_hosts(from, middle, ranks_per_node));
    (fewer ? enough : too_few) = middle;
    if (fewer) found = std::move(fewer);
  }
  return found;
}

/// As many ranks on a host as there are now, or half as many, and so on; never fewer ranks in all.
std::optional<Suggestion> more_hosts(const Candidate& from) {
  const int now = ranks_per_node_of(from.cluster);
  for (int ranks_per_node = now; ranks_per_node >= 1; ranks_per_node /= 2) {
    const int hosts = (from.cluster.ranks + ranks_per_node - 1) / ranks_per_node;
    const int too_few = ranks_per_node == now ? hosts : hosts - 1;
    if (auto found = more_hosts(from, ranks_per_node, too_few)) return found;
  }
  return {};
}

/// From least to most trouble.
struct NamedChange {
  bool Changes::*allowed;
  Change change;
};
const NamedChange kChanges[] = {{&Changes::buckets, smaller_buckets},
                                {&Changes::stage, higher_stage},
                                {&Changes::store, node_shared},
                                {&Changes::update, no_gradients},
                                {&Changes::micro_batch, smaller_micro_batches},
                                {&Changes::dtype, bf16},
                                {&Changes::recompute, checkpointing},
                                {&Changes::deferred_init, deferred_init},
                                {&Changes::fewer_bits, fewer_bits},
                                {&Changes::ratio, without_ratio},
                                {&Changes::states_in_host_memory, states_in_host_memory},
                                {&Changes::states_in_host_memory, parameters_in_host_memory},
                                {&Changes::states_on_nvme, states_on_nvme},
                                {&Changes::states_on_nvme, parameters_beside_states_on_nvme},
                                {&Changes::gradients_on_nvme, gradients_on_nvme},
                                {&Changes::parameters_on_nvme, parameters_on_nvme}};

bool is_excluded(const Candidate& candidate) {
  const Cluster& cluster = candidate.cluster;
  const int ranks_per_node = ranks_per_node_of(cluster);
  return !config::violations({.config = candidate.config,
                              .module_on_gpu = cluster.gpus,
                              .shards_on_gpu = cluster.gpus && !config::wants_host_memory(candidate.config),
                              .hosts = (cluster.ranks + ranks_per_node - 1) / ranks_per_node})
              .empty();
}

/// Nothing where it is not allowed.
std::vector<Candidate> candidates_of(const NamedChange& named, const Candidate& from) {
  if (!(from.allowed.*named.allowed)) return {};
  std::vector<Candidate> candidates = named.change(from);
  std::erase_if(candidates, is_excluded);
  return candidates;
}

/// Each of them as far as it goes, one after the other.
Candidate with_these(Candidate from, std::span<const NamedChange* const> changes) {
  for (const NamedChange* const named : changes) {
    if (const auto candidates = candidates_of(*named, from); !candidates.empty()) from = candidates.back();
  }
  return from;
}

/// As small as they get, whatever it costs: to say what is needed at least.
Candidate with_all(const Candidate& from) {
  std::vector<const NamedChange*> all;
  for (const NamedChange& named : kChanges) all.push_back(&named);
  return with_these(from, all);
}

/// What fits with all of `changes`, with fewer of them if it does with fewer.
Suggestion without_the_needless(const Candidate& start, std::vector<const NamedChange*> changes, Suggestion found) {
  for (std::size_t i = 0; i < changes.size();) {
    std::vector<const NamedChange*> fewer = changes;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    const Candidate candidate = with_these(start, fewer);
    auto smaller = candidate.changes.size() < found.changes.size() ? try_out(candidate) : std::nullopt;
    if (!smaller) {
      ++i;
      continue;
    }
    changes = std::move(fewer);
    found = std::move(*smaller);
  }
  return found;
}

Candidate start_of(const ModelShape& model, const Config& config, const Cluster& cluster, const Changes& allowed) {
  const Plan as_is = plan_memory(model, config, cluster);
  Candidate start{{}, model, config, cluster, allowed};
  start.config.train_micro_batch_size_per_gpu = as_is.micro_batch;
  start.config.gradient_accumulation_steps = as_is.accumulation_steps;
  start.config.train_batch_size = 0;
  return start;
}

std::string with_and(const std::vector<std::string>& changes) { return fmt::format("{}", fmt::join(changes, " and ")); }

}  // namespace

std::optional<Suggestion> suggest(const ModelShape& model, const Config& config, const Cluster& cluster,
                                  const Changes& allowed) {
  const Candidate start = start_of(model, config, cluster, allowed);
  if (auto found = try_out(start)) return found;
  for (const NamedChange& named : kChanges) {
    for (const Candidate& candidate : candidates_of(named, start)) {
      if (auto found = try_out(candidate)) return found;
    }
  }
  // Many more machines are no small change.
  constexpr int kFewTimes = 4;
  const auto hosts = allowed.hosts ? more_hosts(start) : std::nullopt;
  if (hosts && hosts->plan.ranks <= kFewTimes * cluster.ranks) return hosts;
  std::vector<const NamedChange*> made;
  for (const NamedChange& named : kChanges) {
    made.push_back(&named);
    if (auto found = try_out(with_these(start, made))) return without_the_needless(start, made, std::move(*found));
  }
  return hosts || !allowed.hosts ? hosts : more_hosts(with_these(start, made));
}

std::optional<Suggestion> suggest_in_place(const ModelShape& model, const Config& config, const Cluster& cluster,
                                           Changes allowed) {
  allowed.fewer_bits = true;
  allowed.states_in_host_memory = allowed.states_on_nvme = allowed.gradients_on_nvme = allowed.parameters_on_nvme =
      allowed.hosts = false;
  return suggest(model, config, cluster, allowed);
}

Suggestion fit(const ModelShape& model, const Config& config, const Cluster& cluster, Changes allowed) {
  constexpr double kComfortable = 0.9;
  allowed.dtype = allowed.fewer_bits = allowed.hosts = false;
  // In backward nobody can skip a step whose gradients are not finite.
  if (config.param_dtype() == DType::kBFloat16 && config.bf16.check_grad_overflow) allowed.update = false;
  for (const double share : {kComfortable, 1.0}) {
    Cluster part = cluster;
    part.node_memory_nbytes = static_cast<std::int64_t>(share * static_cast<double>(cluster.node_memory_nbytes));
    part.gpu_memory_nbytes = static_cast<std::int64_t>(share * static_cast<double>(cluster.gpu_memory_nbytes));
    auto found = suggest(model, config, part, allowed);
    if (!found) continue;
    found->cluster = cluster;
    return *found;
  }
  const Candidate all = with_all(start_of(model, config, cluster, allowed));
  throw ConfigError(fmt::format("nothing that may be changed makes the run fit: with {} {}",
                                all.changes.empty() ? "nothing changed" : with_and(all.changes),
                                needs(plan_memory(all.model, all.config, all.cluster), all.cluster)));
}

}  // namespace zero::plan
