#include "persistence/load_apply.h"

#include <ATen/core/grad_mode.h>

#include "base/log.h"
#include "intercept/gradient_hook.h"

namespace zero::persistence {
namespace {

using engine::MicroBatchRandom;

/// Of the open window, those that are over.
std::int64_t window_micro_batches_of_rank(const Engine::Impl& impl) {
  return impl.accumulation.window_micro_batches() / impl.groups.data_parallel.size();
}

/// Sums of a run that skips steps may not be finite; here they would be taken.
void drop_overflow(Engine::Impl& impl) {
  if (impl.config.skips_non_finite()) return;
  impl.sharded.reducer->complete_sumsq();
  const auto first = impl.sharded.norm->first_not_finite(*impl.sharded.reducer);
  if (!first) return;
  if (impl.groups.is_first()) {
    base::log_warning(
        "load_checkpoint: the gradients of the open accumulation window are not finite ('{}'), which this "
        "engine would not "
        "skip: they are dropped",
        impl.sharded.model.parameters[*first].name);
  }
  impl.sharded.reducer->resume_window(window_micro_batches_of_rank(impl));
}

void go_on_from(Engine::Impl& impl, const LoadPlan& plan) {
  optim::LossScaler scaler = impl.training.scaler;  // with the options of this run
  scaler.go_on_from(plan.training.scaler);
  impl.training = plan.training;
  impl.training.scaler = scaler;
  if (const auto steps = impl.training.accumulation_steps) impl.accumulation.set_steps(*steps);
  if (plan.keeps_window) {
    for (const int p : plan.unused_in_window) impl.sharded.reducer->set_unused_in_window(p);
    const double saved_scale = plan.training.scaler.scale();
    if (scaler.scale() != saved_scale) impl.sharded.reducer->scale_sums(scaler.scale() / saved_scale);
    drop_overflow(impl);
  }
  impl.accumulation.ended_in_backward = false;
  impl.random.end();
  // A seed that came with the program's numbers is not a new one.
  impl.random.start(impl.sharded.model.module_device);
}

}  // namespace

void prepare_window(Engine::Impl& impl, const LoadPlan& plan, const LoadOptions& options, bool is_repair) {
  auto& training = impl.training;
  impl.sharded.reducer->forget_errors();
  // The place in the window goes with its sums, also should reading fail.
  if (plan.keeps_window) {
    training.micro_batches = plan.training.micro_batches;
    training.window_begin = plan.training.window_begin;
    impl.sharded.reducer->resume_window(window_micro_batches_of_rank(impl));
    impl.gradients->mark_all();
  } else if (is_repair || !options.module_only) {
    training.micro_batches = training.window_begin;
    impl.sharded.reducer->start_window();
  }
}

void apply_load(Engine::Impl& impl, const LoadPlan& plan, const LoadOptions& options) {
  at::NoGradGuard no_grad;
  for (std::size_t u = 0; u < impl.sharded.model.units.size(); ++u)
    impl.sharded.optimizer->low_from_master(static_cast<int>(u));
  impl.sharded.store->publish(/*frozen_too=*/true);
  for (const auto& parameter : impl.sharded.model.parameters) intercept::bump_version(parameter.tensor);
  for (const auto& start_anew : plan.to_start_anew) start_anew();
  for (std::size_t p = 0; p < plan.optimizer_steps.size(); ++p)
    impl.sharded.optimizer->set_steps_of(static_cast<int>(p), plan.optimizer_steps[p]);
  if (!options.module_only) go_on_from(impl, plan);
  if (impl.sharded.local_steps) impl.sharded.local_steps->resume(plan.in_round);
}

}  // namespace zero::persistence
