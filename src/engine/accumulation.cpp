// Accumulation windows: how many micro-batches make an update, and who says where a window ends.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "zero/errors.h"

namespace zero {
namespace {

bool is_scale(double scale) { return scale > 0 && std::isfinite(scale); }

}  // namespace

void engine::Accumulation::check_length(std::int64_t micro_batches) {
  const std::int64_t length = micro_batches / groups_.data_parallel.size(),
                     divisor = config_.gradient_accumulation_steps;
  if (length == divisor || std::exchange(warned_of_length_, true) || !groups_.is_first()) return;
  base::log_warning(
      "an update was made of {} micro-batches, and their average divides by gradient_accumulation_steps, {}, as "
      "DeepSpeed's does: where the mean of them is meant, call set_gradient_accumulation_steps({}) before the first",
      length, divisor, length);
}

void engine::Accumulation::set_steps(std::int64_t steps) {
  Config batch;
  batch.train_micro_batch_size_per_gpu = config_.train_micro_batch_size_per_gpu;
  batch.gradient_accumulation_steps = steps;
  batch.resolve_batch(groups_.data_parallel.size());
  config_.gradient_accumulation_steps = steps;
  config_.train_batch_size = batch.train_batch_size;
  training_.accumulation_steps = steps;
}

void Engine::set_gradient_accumulation_steps(std::int64_t steps) {
  auto& impl = *impl_;
  impl.check_usable();
  if (steps < 1) {
    throw ConfigError(
        fmt::format("set_gradient_accumulation_steps({}): an update is made of at least one micro-batch", steps));
  }
  if (const auto why = impl.without_gradients("set_gradient_accumulation_steps()"); steps != 1 && !why.empty())
    throw ConfigError(why);
  if (impl.accumulation.window_micro_batches() > 0 || impl.sharded.reducer->micro_batch_has_gradients()) {
    throw ModelError(
        fmt::format("set_gradient_accumulation_steps({}) inside an accumulation window, {} of whose {} micro-batches "
                    "are over: call it after the step() that ends the window, before the next backward()",
                    steps, impl.accumulation.window_micro_batches() / impl.groups.data_parallel.size(),
                    impl.config.gradient_accumulation_steps));
  }
  impl.accumulation.set_steps(steps);
}

void Engine::set_train_batch_size(std::int64_t samples) {
  const std::int64_t micro_batch = impl_->config.train_micro_batch_size_per_gpu,
                     ranks = impl_->groups.data_parallel.size();
  if (samples < 1 || samples % (micro_batch * ranks) != 0) {
    throw ConfigError(
        fmt::format("set_train_batch_size({}): a multiple of {} is needed, train_micro_batch_size_per_gpu ({}) times "
                    "the data-parallel ranks ({}); only the number of micro-batches changes, not their size",
                    samples, micro_batch * ranks, micro_batch, ranks));
  }
  set_gradient_accumulation_steps(samples / (micro_batch * ranks));
}

void Engine::set_gradient_accumulation_boundary(std::optional<bool> is_boundary) {
  auto& impl = *impl_;
  impl.check_usable();
  if (const auto why = impl.without_gradients("set_gradient_accumulation_boundary(false)");
      is_boundary == false && !why.empty())
    throw ConfigError(why);
  impl.accumulation.boundary = is_boundary;
}

void Engine::set_progress(const Progress& progress) {
  Impl& impl = *impl_;
  impl.check_trains("set_progress()");
  impl.enter(engine::Entry::kBetweenSteps, "set_progress()");
  const std::int64_t taken = progress.global_steps - progress.skipped_steps;
  if (progress.skipped_steps < 0 || taken < 0 || !is_scale(progress.loss_scale.value_or(1))) {
    throw ConfigError(fmt::format(
        "set_progress(): {} steps, {} of them skipped, at a loss scale of {:g}; wanted numbers from 0 on, no more "
        "skipped than there were, and a finite scale above 0",
        progress.global_steps, progress.skipped_steps, progress.loss_scale.value_or(1)));
  }
  std::vector<std::int64_t> updates(impl.sharded.model.parameters.size(), taken);
  for (const auto& [name, count] : progress.updates) {
    if (count < 0) throw ConfigError(fmt::format("set_progress(): {} updates of '{}'", count, name));
    updates[static_cast<std::size_t>(engine::find_parameter(impl.trained.inventory, name))] = count;
  }
  impl.training.global_steps = progress.global_steps;
  impl.training.micro_batches =
      progress.global_steps * impl.config.gradient_accumulation_steps * impl.groups.data_parallel.size();
  impl.training.window_begin = impl.training.micro_batches;
  impl.sharded.reducer->start_window();
  auto scaler = impl.training.scaler.state();
  scaler.skipped_steps = progress.skipped_steps;
  if (progress.loss_scale && impl.training.scaler.dynamic()) scaler.scale = *progress.loss_scale;
  impl.training.scaler.set_state(scaler);
  for (std::size_t p = 0; p < updates.size(); ++p) impl.optimizer_source->set_updates(static_cast<int>(p), updates[p]);
  impl.random.end();
}

}  // namespace zero
