#include "zero/engine.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <bit>
#include <cmath>
#include <exception>

#include "base/check.h"
#include "base/log.h"
#include "engine/agreement.h"
#include "engine/engine_impl.h"
#include "engine/progress_log.h"
#include "intercept/gradient_hook.h"
#include "zero/errors.h"

namespace zero {

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

namespace detail {
Engine make_engine(std::shared_ptr<torch::nn::Module> module, Config config, InitializeOptions options) {
  return Engine(engine::build(std::move(module), std::move(config), std::move(options)));
}
}  // namespace detail

Engine::Impl::~Impl() {
  // Leaving by exception: tell the others now, they would wait for this rank.
  if (aborts_on_exception && std::uncaught_exceptions() > exceptions_at_start) {
    group.abort("its engine was destroyed by an exception");
  }
  if (model.hosts && group.failed()) {
    // Their destructors would wait for ranks that may never come.
    model.hosts->node.abort("the group of all ranks has failed");
    model.hosts->across.abort("the group of all ranks has failed");
  }
  hooks.clear();
  reducer.reset();  // what its last finish steps call is still there
  for (auto& parameter : model.parameters) {
    if (!parameter.handle) continue;
    parameter.handle->retire(
        parameter.tensor, store ? store->keep_alive(parameter.unit) : nullptr,
        fmt::format(
            "parameter '{}' was sharded and its engine is gone; take its values with Engine::full_weight or "
            "GatheredParameters before the engine is destroyed",
            parameter.name));
  }
}

double Engine::Impl::lr_of(std::size_t optimizer_group) const {
  if (lr_override) return *lr_override;
  const std::int64_t steps_before = config.scheduler.last_batch_iteration + 1;  // done before this run
  return optim::learning_rate_at(schedule, base_lr[optimizer_group],
                                 global_steps - skipped_steps + steps_before);
}

const std::vector<double>& Engine::Impl::learning_rates() {
  rates.resize(base_lr.size());
  for (std::size_t g = 0; g < base_lr.size(); ++g) rates[g] = lr_of(g);
  return rates;
}

void Engine::Impl::check_usable() const {
  if (failed) {
    throw CommError(
        "an earlier step of this engine failed half-way; its ranks may hold different values: make a "
        "new engine");
  }
  if (half_loaded) {
    throw CheckpointError(
        "loading a checkpoint failed after some values had been changed; load another one (or set "
        "LoadOptions::fall_back) before going on");
  }
}

void Engine::Impl::check_module() const {
  for (const auto& parameter : model.parameters) {
    if (parameter.handle->owns(parameter.tensor)) continue;
    throw ModelError(fmt::format(
        "parameter '{}' no longer has the memory the engine gave it (module->to(), torch::load(), "
        "set_data() or an assignment replaced it); convert and move the module before zero::initialize, load "
        "checkpoints with "
        "Engine::load_checkpoint, a plain state dict with Engine::load_full_weights and single whole tensors "
        "with Engine::set_full_weight",
        parameter.name));
  }
}

void Engine::Impl::reseed() const {
  if (!config.zerotorch.reseed_per_micro_batch) return;
  // Micro-batch i of the whole run, whatever rank it falls on: i = j*N + r.
  const auto index = static_cast<std::uint64_t>(micro_steps * group.size() + group.rank());
  std::uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  at::manual_seed(z ^ (z >> 31));
}

double Engine::Impl::compute_norm() {
  sharding::Stopwatch watch(times.norm);
  constexpr std::int64_t kHeader = 1;
  auto& counts = norm_counts;
  counts.assign(static_cast<std::size_t>(group.size()), kHeader);
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (!model.units[u].trainable) continue;
    for (int rank = 0; rank < group.size(); ++rank)
      counts[rank] += reducer->shard_blocks(static_cast<int>(u), rank);
  }
  const auto& mine = reducer->shard_block_sumsq();
  norm_send.assign(1, std::bit_cast<double>(store->order().hash()));
  norm_send.insert(norm_send.end(), mine.begin(), mine.end());
  std::int64_t total = 0;
  auto& offsets = norm_offsets;
  offsets.clear();
  for (auto count : counts) {
    offsets.push_back(total);
    total += count;
  }
  norm_receive.resize(total);
  // Also the barrier after which no rank reads this rank's old parameters.
  group.all_gather(norm_send.data(), norm_receive.data(), counts, DType::kFloat64, {.label = "gradient norm"})
      .wait();
  control_nbytes += (total - counts[group.rank()]) * 8;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (std::bit_cast<std::uint64_t>(norm_receive[offsets[rank]]) ==
        std::bit_cast<std::uint64_t>(norm_receive[offsets[0]]))
      continue;
    constexpr std::int64_t kText = 2048;
    std::string order = store->recent_order();
    order.resize(kText, '\0');
    std::string all(kText * group.size(), '\0');
    group
        .all_gather(order.data(), all.data(), std::vector<std::int64_t>(group.size(), kText), DType::kByte,
                    {.label = "unit orders"})
        .wait();
    engine::leave_together(group);
    throw ModelError(fmt::format(
        "ranks 0 and {} used the model's units in different orders, so their steps do not belong together. "
        "Last "
        "used on rank 0: {}; on rank {}: {}. Every rank must run the same layers; give a skipped layer's "
        "output a factor of zero instead",
        rank, all.substr(0, kText).c_str(), rank, all.substr(rank * kText, kText).c_str()));
  }
  // Block sums in the order of the flat layout, which does not depend on N.
  auto& next = offsets;
  for (auto& position : next) position += kHeader;
  double sum = 0;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (!model.units[u].trainable) continue;
    for (int rank = 0; rank < group.size(); ++rank) {
      const std::int64_t blocks = reducer->shard_blocks(static_cast<int>(u), rank);
      for (std::int64_t i = 0; i < blocks; ++i) sum += norm_receive[next[rank]++];
    }
  }
  return std::sqrt(sum) * averaging();
}

void Engine::Impl::apply_step(double norm) {
  double scale = averaging();
  const double bound = config.gradient_clipping;
  if (bound > 0 && norm > bound) scale *= bound / (norm + 1e-6);
  if (config.zerotorch.step_in_backward) {
    optimizer->end_step();
  } else {
    reducer->replicate();
    sharding::Stopwatch watch(times.update);
    optimizer->update(*reducer, learning_rates(), scale);
  }
  store->publish(/*frozen_too=*/false);
  for (const auto& parameter : model.parameters) intercept::bump_version(parameter.tensor);
}

void Engine::backward(const at::Tensor& loss) {
  impl_->check_usable();
  impl_->check_module();
  if (!loss.defined() || loss.numel() != 1) {
    throw ModelError(
        fmt::format("backward needs a scalar loss, got {}; reduce it first, for example with mean()",
                    loss.defined() ? fmt::format("{} elements", loss.numel()) : "an undefined tensor"));
  }
  if (impl_->monitor) impl_->monitor->add_loss(loss);
  try {
    loss.backward();
  } catch (...) {
    // Half of a step may be taken. The same on all ranks, however far their reductions are.
    impl_->failed = impl_->config.zerotorch.step_in_backward && !impl_->reducer->window_is_empty();
    throw;
  }
}

void Engine::step() {
  auto& impl = *impl_;
  impl.check_usable();
  if (impl.gathered_scopes > 0) {
    throw ModelError(
        "step() inside a zero::GatheredParameters: close it first, its parameters would be stale");
  }
  impl.failed = true;  // until the end: a throw on the way leaves the ranks apart
  if (impl.debug_observer) {
    if (const auto seen = impl.debug_observer->take_violations(); !seen.empty()) {
      throw InternalError(
          fmt::format("{} operators saw a released parameter; the first: {}", seen.size(), seen[0]));
    }
  }
  const bool boundary = is_gradient_accumulation_boundary();
  const double lr = impl.lr_of(0);
  impl.reducer->finish_micro_batch();
  if (const auto& unused = impl.reducer->unused_parameters();
      !unused.empty() && !impl.config.zero_optimization.ignore_unused_parameters) {
    throw ModelError(fmt::format(
        "parameter '{}' ({} in all) got no gradient in this micro-batch; remove it, freeze it, or "
        "set zero_optimization.ignore_unused_parameters to true",
        impl.model.parameters[unused.front()].name, unused.size()));
  }
  if (boundary) {
    impl.store->quiesce();
    impl.grad_norm = impl.compute_norm();
    if (!std::isfinite(impl.grad_norm) && impl.config.bf16.enabled && impl.config.bf16.check_grad_overflow) {
      ++impl.skipped_steps;
      if (impl.group.rank() == 0) {
        base::log_warning("step {}: the gradient norm is {}; the step is skipped on all ranks",
                          impl.global_steps, impl.grad_norm);
      }
      impl.group.barrier({.label = "skipped step"}).wait();
    } else {
      impl.apply_step(impl.grad_norm);
    }
    impl.reducer->start_window();
    ++impl.global_steps;
    impl.last_times = std::exchange(impl.times, {});
    engine::log_step(impl);
    if (impl.monitor) {
      impl.monitor->add_step(impl.global_steps * impl.config.train_batch_size, lr, impl.grad_norm);
    }
  }
  // Ranks whose forward wrote buffers meet here, before the next forward.
  impl.buffers->synchronise_changed(impl.group);
  ++impl.micro_steps;
  impl.reseed();
  impl.failed = false;
}

int Engine::rank() const { return impl_->group.rank(); }
int Engine::world_size() const { return impl_->group.size(); }
int Engine::local_rank() const { return impl_->group.local_rank(); }
at::Device Engine::device() const { return impl_->model.device; }
const Group& Engine::group() const { return impl_->group; }
const Config& Engine::config() const { return impl_->config; }
std::int64_t Engine::global_steps() const { return impl_->global_steps; }
std::int64_t Engine::skipped_steps() const { return impl_->skipped_steps; }
std::int64_t Engine::micro_steps() const { return impl_->micro_steps; }
bool Engine::is_gradient_accumulation_boundary() const {
  return (impl_->micro_steps + 1) % impl_->config.gradient_accumulation_steps == 0;
}
double Engine::learning_rate() const { return impl_->lr_of(0); }
void Engine::set_learning_rate(double lr) {
  if (!(lr >= 0))
    throw ConfigError(fmt::format("set_learning_rate({:g}): a learning rate is not negative", lr));
  impl_->lr_override = lr;
}
double Engine::grad_norm() const { return impl_->grad_norm; }
double Engine::loss_scale() const { return 1.0; }
torch::nn::Module& Engine::module() const { return *impl_->module; }
void Engine::check_module() const { impl_->check_module(); }

}  // namespace zero
