#include "zero/engine.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>

#include "base/log.h"
#include "comm/gather_values.h"
#include "engine/agreement.h"
#include "engine/engine_impl.h"
#include "engine/progress_log.h"
#include "intercept/gradient_hook.h"
#include "observe/gradient_noise.h"
#include "zero/errors.h"

namespace zero {

using Observer = observe::StepObserver;

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

namespace engine {
std::size_t checked_group(const Engine::Impl& impl, int group) {
  if (group < 0 || group >= static_cast<int>(impl.training.lr_overrides.size())) {
    throw ConfigError(fmt::format("parameter group {} does not exist; there are {}, counted from 0", group,
                                  impl.training.lr_overrides.size()));
  }
  return static_cast<std::size_t>(group);
}
}  // namespace engine

namespace detail {
Engine make_engine(ModelView model, std::shared_ptr<torch::nn::Module> module, Config config,
                   const InitializeOptions& options) {
  return Engine(engine::build(std::move(model), std::move(module), std::move(config), options));
}
Engine make_engine(std::shared_ptr<torch::nn::Module> module, Config config, const InitializeOptions& options) {
  ModelView view = ModelView::of(module);
  return make_engine(std::move(view), std::move(module), std::move(config), options);
}
}  // namespace detail

void detail::thaw(const Engine& engine) { engine.impl().trained.thaw(); }

void detail::begin_forward(const Engine& engine) {
  engine.impl().check_values("forward");
  engine.impl().random.begin();
}

at::Tensor detail::cast_input(const Engine& engine, const at::Tensor& input) {
  const Config::Fp16& fp16 = engine.config().fp16;
  const bool wanted = fp16.enabled && fp16.auto_cast && input.defined() && input.is_floating_point();
  return wanted && input.scalar_type() != at::kHalf ? input.to(at::kHalf) : at::Tensor();
}

void engine::Uses::before_use(intercept::ParameterHandle& handle) {
  impl_.random.begin();
  impl_.observers.tell(&observe::StepObserver::use_parameter);
  impl_.sharded.store->before_use(handle);
}
void engine::Uses::after_use(intercept::ParameterHandle& handle) noexcept { impl_.sharded.store->after_use(handle); }
void engine::Uses::before_write(intercept::ParameterHandle& handle, const char* op_name) {
  impl_.sharded.store->before_write(handle, op_name);
}

Engine initialize(ModelView model, Config config, const InitializeOptions& options) {
  return detail::make_engine(std::move(model), nullptr, std::move(config), options);
}

Engine::Impl::~Impl() {
  // Leaving by exception: tell the others now, they would wait for this rank.
  if (life.aborts_on_exception && std::uncaught_exceptions() > life.exceptions_at_start) {
    groups.abort("its engine was destroyed by an exception");
  }
  if (sharded.model.hosts && groups.island.failed()) {
    // Their destructors would wait for ranks that may never come.
    sharded.model.hosts->node.abort("the group of all ranks has failed");
    sharded.model.hosts->across.abort("the group of all ranks has failed");
  }
  *life.self = nullptr;
  observers.tell(&Observer::end_training);
  if (sharded.update && sharded.update->is_pending() && groups.is_first() && !life.failed &&
      std::uncaught_exceptions() <= life.exceptions_at_start) {
    base::log_warning(
        "the engine was destroyed before the last update was finished (zerotorch.update \"{}\"), and the module lacks "
        "it; call Engine::finish_update() first where that matters",
        config::kind_of(config.zerotorch.update).name);
  }
  try {
    if (sharded.update) sharded.update->stop();
  } catch (const std::exception& error) {  // of a disk
    base::log_error("{}", error.what());
  }
  gradients.reset();
  sharded.reducer.reset();  // what its last finish steps call is still there
  sharded.update.reset();
  for (auto& parameter : sharded.model.parameters) {
    if (!parameter.handle) continue;
    std::shared_ptr<void> memory;
    if (sharded.store) {
      const auto& writes = sharded.store->writes();
      memory = writes.has(parameter.handle->parameter()) ? writes.keep_alive(parameter.handle->parameter())
                                                         : sharded.store->keep_alive(parameter.unit);
    }
    if (!memory && parameter.handle->attached()) parameter.handle->release();  // a buffer that goes now
    parameter.handle->retire(
        parameter.tensor, std::move(memory),
        fmt::format("parameter '{}' was sharded and its engine is gone; take its values with Engine::full_weight or "
                    "GatheredParameters before the engine is destroyed",
                    parameter.name));
  }
  trained.thaw();
}

void Engine::Impl::refresh_rates() {
  rates.refresh();
  sharded.update->set_rates(rates.next(), accumulation.averaging());
}

std::uint64_t Engine::Impl::update_hash() const {
  std::uint64_t hash = gradients->trainable_hash();
  const auto add = [&hash](double value) {
    hash = (hash ^ std::bit_cast<std::uint64_t>(value)) * 1099511628211ull;
    hash ^= hash >> 31;
  };
  for (const double rate : rates.next()) add(rate);
  for (const int g : step.groups) add(g);
  add(accumulation.is_boundary());
  add(static_cast<double>(config.gradient_accumulation_steps));
  for (const auto& settings : sharded.optimizer->groups()) {
    for (const auto& one : optim::hyper_numbers()) add(one.of(settings.hyper));
  }
  return hash;
}

void Engine::Impl::throw_update_difference() {
  std::string text;
  for (std::size_t g = 0; g < rates.next().size(); ++g) {
    const auto& hyper = sharded.optimizer->groups()[g].hyper;
    text += fmt::format("parameter group {} has learning rate {:g}\n", g, rates.next()[g]);
    for (const auto& one : optim::hyper_numbers())
      text += fmt::format("parameter group {} has {} {:g}\n", g, one.name, one.of(hyper));
  }
  for (const int g : step.groups) text += fmt::format("step() of parameter group {}\n", g);
  text += fmt::format("gradient_accumulation_steps {}\n", config.gradient_accumulation_steps);
  text += fmt::format("{} at an accumulation boundary\n", accumulation.is_boundary() ? "is" : "is not");
  if (const auto difference = engine::first_difference(text, groups.island, "rates")) {
    throw ConfigError(
        fmt::format("the ranks would update differently: {}; set rates, step groups and accumulation alike on "
                    "every rank",
                    *difference));
  }
  gradients->throw_trainable_difference(groups.island);
}

double Engine::Impl::compute_norm() {
  sharding::Stopwatch watch(sharded.timeline, &StepBreakdown::norm);
  sharded.reducer->complete_sumsq();
  const std::uint64_t must_agree = update_hash() ^ sharded.store->writes().replicated_hash();
  step.grad_norm_scale = step.sums_are_averages ? 1.0 : accumulation.averaging();
  return sharded.norm->of(*sharded.reducer, must_agree) * step.grad_norm_scale;
}

void Engine::Impl::apply_step(double average) {
  double scale = step.sums_are_averages ? 1.0 : average;
  const double bound = config.gradient_clipping;
  if (bound > 0 && step.grad_norm > bound) scale *= bound / (step.grad_norm + 1e-6);
  optimizer_source->update(*sharded.update, *sharded.reducer, sharded.timeline, rates.next(), scale);
}

void Engine::Impl::exchange_islands() {
  sharding::Stopwatch watch(sharded.timeline, &StepBreakdown::islands);
  const std::string label = fmt::format("local steps, after step {}", training.global_steps + 1);
  Group across = sharded.local_steps->across();
  // Not the rates: one of the islands may have skipped a step.
  const auto hashes = comm::gather_values(across, gradients->trainable_hash(), label);
  if (std::ranges::any_of(hashes, [&](std::uint64_t hash) { return hash != hashes.front(); }))
    gradients->throw_trainable_difference(across);
  sharded.local_steps->exchange(label);
  compute.buffers->synchronise(groups.data_parallel);
}

void Engine::Impl::publish_update() {
  sharded.store->publish(/*frozen_too=*/false);
  for (const auto& parameter : sharded.model.parameters) intercept::bump_version(parameter.tensor);
}

void Engine::Impl::begin_update() {
  // A scope writes what it has gathered when it is closed.
  if (accumulation.is_boundary() && !step.sums_are_averages && life.gathered_scopes == 0)
    sharded.update->begin(rates.next(), accumulation.averaging());
}

void Engine::Impl::finish_pending_update() {
  if (!sharded.update->is_pending()) return;
  const bool failed_before =
      std::exchange(life.failed, true);  // until the end: a throw on the way leaves the ranks apart
  sharded.store->quiesce();
  groups.island.barrier({.label = "pending update"}).wait();  // nobody reads shards
  {
    sharding::Stopwatch watch(sharded.timeline, &StepBreakdown::update);
    sharded.update->finish();
  }
  publish_update();
  life.failed = failed_before;
}

std::optional<std::string> Engine::Impl::skip_step(double scale_before, optim::LossScaler::Decision decision) {
  const std::optional<int> first = sharded.norm->first_not_finite(*sharded.reducer);
  const std::string what = first ? fmt::format("the gradient of parameter '{}'", sharded.model.parameters[*first].name)
                                 : std::string("a gradient of another model-parallel rank");
  if (decision == optim::LossScaler::Decision::kSkipAtMinimum) {
    return fmt::format(
        "step {}: {} is not finite at a loss scale of {:g}, which is fp16.min_loss_scale: the module overflows fp16 "
        "whatever the scale (or its loss is not finite). The step was skipped on all ranks; look at the loss, lower "
        "the learning rate, use bf16, or allow a smaller scale",
        training.global_steps, what, scale_before);
  }
  const auto* const islands = sharded.local_steps.get();
  if (islands ? groups.island.rank() == 0 : groups.is_first()) {
    const std::string where = islands ? fmt::format("on island {}", islands->island()) : std::string("on all ranks");
    const std::string scales =
        training.scaler.scale() != scale_before
            ? fmt::format("; loss scale {:g} becomes {:g}", scale_before, training.scaler.scale())
        : scale_before != 1 ? fmt::format("; loss scale {:g}", scale_before)
                            : "";
    base::log_warning("step {}: {} is not finite; the step is skipped {}{}", training.global_steps, what, where,
                      scales);
  }
  return std::nullopt;
}

namespace {

/// In fp32: fp16 ends at 65504.
at::Tensor scaled(const at::Tensor& loss, double scale) {
  if (scale == 1) return loss;
  const bool narrow = loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
  return (narrow ? loss.to(at::kFloat) : loss).mul(scale);
}

/// The scale of a loss that these engines share.
double common_scale(std::span<Engine::Impl* const> engines) {
  const double scale = engines.front()->training.scaler.scale();
  for (const Engine::Impl* impl : engines) {
    if (impl->training.scaler.scale() == scale) continue;
    throw ModelError(fmt::format(
        "backward of a loss that several engines share: their loss scales are {:g} and {:g}; give them the same fp16 "
        "section with a fixed fp16.loss_scale, or train in bf16",
        scale, impl->training.scaler.scale()));
  }
  return scale;
}

void run_backward(const at::Tensor& loss, std::span<Engine::Impl* const> engines, const BackwardOptions& options) {
  if (!loss.defined() || loss.numel() != 1) {
    throw ModelError(fmt::format("backward needs a scalar loss, got {}; reduce it first, for example with mean()",
                                 loss.defined() ? fmt::format("{} elements", loss.numel()) : "an undefined tensor"));
  }
  for (const Engine::Impl* impl : engines) impl->observers.tell(&Observer::before_backward);
  for (Engine::Impl* impl : engines) {
    impl->enter(impl->accumulation.ends_in_backward() ? engine::Entry::kStep : engine::Entry::kBackward, "backward()");
    if (impl->sharded.reducer->window_is_empty()) impl->refresh_rates();
    impl->observers.tell(&Observer::loss, loss);
  }
  const double scale = common_scale(engines);
  const engine::BackwardScope scope(engines);
  for (Engine::Impl* impl : engines) {
    impl->gradients->begin_backward();
  }
  try {
    for (Engine::Impl* impl : engines) impl->begin_update();
    scaled(loss, scale * options.weight).backward(/*gradient=*/{}, options.retain_graph);
  } catch (...) {
    for (Engine::Impl* impl : engines) impl->gradients->fail_backward();
    throw;
  }
  for (Engine::Impl* impl : engines) {
    impl->accumulation.ended_in_backward = false;
    impl->gradients->end_backward();
    impl->observers.tell(&Observer::end_backward);
  }
  for (Engine::Impl* impl : engines) {
    if (!impl->accumulation.ends_in_backward()) continue;
    impl->guarded_step();
    impl->accumulation.ended_in_backward = true;
  }
}

}  // namespace

void backward(const at::Tensor& loss, std::initializer_list<Engine*> engines) {
  std::vector<Engine::Impl*> impls;
  for (Engine* engine : engines) impls.push_back(&engine->impl());
  run_backward(loss, impls, {});
}

void Engine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  Impl* const mine = impl_.get();
  run_backward(loss, {&mine, 1}, options);
}

at::Tensor Engine::scale(const at::Tensor& loss) {
  impl_->check_trains("scale()");
  if (impl_->training.scaler.scale() == 1) return loss;
  if (const auto& last = impl_->step.last_scaled; last && loss.defined() && last->lock() == loss.getIntrusivePtr())
    throw ModelError("scale(): this loss is scaled already; call backward() on it");
  const at::Tensor result = scaled(loss, impl_->training.scaler.scale());
  if (result.requires_grad()) impl_->gradients->expect_scaled(result);
  impl_->step.last_scaled.emplace(result.getIntrusivePtr());
  return result;
}

void Engine::finish_update() { impl_->enter(engine::Entry::kReadWeights, "finish_update()"); }

void Engine::wait_for_parameters() { impl_->sharded.store->finish_publication(); }

void Engine::zero_grad() {
  impl_->random.restart();
  impl_->enter(engine::Entry::kZeroGrad, "zero_grad()");
  impl_->gradients->zero_grad();
}

void Engine::step(const std::vector<int>& parameter_groups) {
  for (const int group : parameter_groups) engine::checked_group(*impl_, group);
  if (parameter_groups.empty()) throw ConfigError("step({}): no parameter group was given; step() updates all");
  if (const auto why = impl_->without_gradients("step() of some parameter groups"); !why.empty()) throw ModelError(why);
  impl_->step.groups = parameter_groups;
  try {
    step();
  } catch (...) {
    impl_->step.groups.clear();
    throw;
  }
  impl_->step.groups.clear();
}

Engine::Impl::MicroBatch Engine::Impl::finish_micro_batch(bool may_be_none) {
  using Agreement = sharding::MicroBatchAgreement;
  std::uint64_t flags = 0;
  sharded.reducer->expect_last_micro_batch(accumulation.is_boundary());
  if (!sharded.store->writes().empty()) flags |= Agreement::kParametersWritten;
  if (groups.island.size() > 1 && compute.buffers->needed() && compute.buffers->changed())
    flags |= Agreement::kBuffersChanged;
  const auto& agreed = sharded.reducer->finish_micro_batch({.flags = flags, .must_agree = update_hash()}, may_be_none);
  const MicroBatch result{.counts = !may_be_none || agreed.facts().rounds > 0,
                          .buffers_changed = (agreed.facts().flags & Agreement::kBuffersChanged) != 0};
  if (result.counts) observers.tell(&Observer::end_micro_batch);
  if (agreed.differing_rank() >= 0) throw_update_difference();
  if (agreed.facts().flags & Agreement::kParametersWritten) {
    sharded.update->drop();
    sharded.store->writes().commit(*sharded.store, *sharded.optimizer);
  }
  if (const auto& unused = sharded.reducer->unused_parameters();
      !unused.empty() && !config.zero_optimization.ignore_unused_parameters) {
    throw ModelError(
        fmt::format("parameter '{}' ({} in all) got no gradient on any rank in this micro-batch; remove it, "
                    "freeze it, or "
                    "set zero_optimization.ignore_unused_parameters to true",
                    sharded.model.parameters[unused.front()].name, unused.size()));
  }
  return result;
}

std::optional<std::string> Engine::Impl::finish_window(std::int64_t window_end) {
  const bool dropped = std::exchange(accumulation.dropped, false);
  if (!dropped) accumulation.check_length(window_end - training.window_begin);
  const double lr = rates.next().front();
  sharded.store->quiesce();
  used_parts.agree(groups, *sharded.reducer, sharded.model.parameters.size());
  const bool changed = step.sums_are_averages;
  step.grad_norm = compute_norm();
  // Of the mean, also where the caller has ended a window that is not as long as the average's divisor says.
  const std::int64_t length = window_end - training.window_begin;
  const double to_mean = accumulation.averaged_micro_batches() / static_cast<double>(length);
  observers.tell(&Observer::end_accumulation, observe::Accumulation{.group = groups.island,
                                                                    .micro_batches = length,
                                                                    .grad_norm = step.grad_norm * to_mean,
                                                                    .averaging = accumulation.averaging() * to_mean,
                                                                    .is_whole = !changed && !dropped});
  std::optional<std::string> problem;
  const double scale = training.scaler.scale(), average = accumulation.averaging();  // of this window
  const auto decision = training.scaler.update(std::isfinite(step.grad_norm));
  step.applied = decision == optim::LossScaler::Decision::kTake;
  if (sharded.local_steps) sharded.local_steps->begin_step();
  if (step.applied) {
    apply_step(average);
  } else {
    problem = skip_step(scale, decision);
    finish_pending_update();
    sharded.update->drop();
  }
  const bool meets = sharded.local_steps && sharded.local_steps->ends_round(training.global_steps + 1);
  if (meets) exchange_islands();
  if (step.applied || meets) publish_update();
  // Without data, so that the loss of a rank ends all islands in the step after it, not at the next exchange.
  if (sharded.local_steps && !meets) groups.data_parallel.barrier({.label = "local steps"}).wait();
  sharded.reducer->start_window();
  gradients->end_window();
  step.sums_are_averages = false;
  ++training.global_steps;
  life.moments.stepped = engine::EngineMoments::now();
  training.window_begin = window_end;
  step.times = std::exchange(sharded.timeline.times, {});
  engine::log_step(*this);
  observers.tell(
      &Observer::updated,
      observe::Update{.samples = window_end * config.train_micro_batch_size_per_gpu,
                      .lr = lr,
                      .grad_norm = step.grad_norm,
                      .loss_scale = config.fp16.enabled ? std::optional(training.scaler.scale()) : std::nullopt});
  return problem;
}

std::optional<std::string> Engine::Impl::take_step() {
  std::optional<std::string> problem;
  step.applied = false;
  if (keeps_gradients() || sharded.reducer->window_is_empty()) refresh_rates();
  const MicroBatch finished = finish_micro_batch(std::exchange(accumulation.ended_in_backward, false));
  const std::int64_t micro_batches = training.micro_batches + (finished.counts ? groups.data_parallel.size() : 0);
  if (finished.counts ? accumulation.is_boundary() : accumulation.boundary == true)
    problem = finish_window(micro_batches);
  // Ranks whose forward wrote buffers meet here, before the next forward.
  if (finished.buffers_changed) compute.buffers->synchronise(groups.island);
  training.micro_batches = micro_batches;
  random.end();
  return problem;
}

std::optional<std::string> Engine::Impl::guarded_step() {
  observers.tell(&Observer::before_step);
  life.failed = true;  // until the end: a throw on the way leaves the ranks apart
  observers.tell(&Observer::begin_step);
  std::optional<std::string> problem = take_step();
  observers.tell(&Observer::end_step, training.global_steps, accumulation.window_micro_batches() == 0);
  life.failed = false;
  return problem;
}

void Engine::step() {
  auto& impl = *impl_;
  impl.enter(engine::Entry::kStep, "step()");
  if (const auto problem = impl.guarded_step()) throw ModelError(*problem);
}

int Engine::rank() const { return impl_->groups.data_rank(); }
int Engine::world_size() const { return impl_->groups.data_parallel.size(); }
int Engine::local_rank() const { return impl_->groups.all.local_rank(); }
int Engine::model_parallel_rank() const { return impl_->groups.model_parallel_rank(); }
int Engine::model_parallel_size() const { return impl_->groups.model_parallel_size(); }
at::Device Engine::device() const { return impl_->sharded.model.module_device; }
const Group& Engine::group() const { return impl_->groups.data_parallel; }
const Group& Engine::all_ranks() const { return impl_->groups.all; }
const Config& Engine::config() const { return impl_->config; }
std::int64_t Engine::global_steps() const { return impl_->training.global_steps; }
std::int64_t Engine::skipped_steps() const { return impl_->training.scaler.skipped_steps(); }
std::int64_t Engine::micro_steps() const { return impl_->accumulation.micro_steps(); }
bool Engine::is_gradient_accumulation_boundary() const { return impl_->accumulation.is_boundary(); }
bool Engine::was_step_applied() const { return impl_->step.applied; }
double Engine::learning_rate(int parameter_group) const {
  return impl_->rates.of(engine::checked_group(*impl_, parameter_group));
}
void Engine::set_learning_rate(double lr) {
  for (std::size_t g = 0; g < impl_->training.lr_overrides.size(); ++g) set_learning_rate(static_cast<int>(g), lr);
}
void Engine::set_learning_rate(int parameter_group, double lr) {
  const std::size_t g = engine::checked_group(*impl_, parameter_group);
  if (!(lr >= 0 && std::isfinite(lr))) {
    throw ConfigError(
        fmt::format("set_learning_rate({:g}): a learning rate is a finite number that is not negative", lr));
  }
  impl_->training.lr_overrides[g] = lr;
}
void Engine::follow_schedule() {
  for (auto& override : impl_->training.lr_overrides) override.reset();
}
int Engine::parameter_groups() const { return static_cast<int>(impl_->training.lr_overrides.size()); }
double Engine::grad_norm() const { return impl_->step.grad_norm; }
std::vector<UnitNorm> Engine::unit_grad_norms() const {
  std::vector<UnitNorm> norms;
  const auto& units = impl_->sharded.model.units;
  for (std::size_t u = 0; impl_->sharded.norm && u < impl_->sharded.norm->unit_sumsq().size(); ++u) {
    if (!units[u].trainable) continue;
    norms.push_back({units[u].name, std::sqrt(impl_->sharded.norm->unit_sumsq()[u]) * impl_->step.grad_norm_scale});
  }
  return norms;
}
void Engine::measure_gradient_noise(bool on) {
  if (on && impl_->groups.model_parallel) {
    throw ConfigError("measure_gradient_noise(): not of models that are split over model-parallel ranks");
  }
  // What a window had before zero_grad() has dropped it is not measured, and finish_window() notices.
  if (!impl_->sharded.reducer->window_is_empty() || impl_->sharded.reducer->micro_batch_has_gradients()) {
    throw ConfigError(
        "measure_gradient_noise(): between an update (or zero_grad()) and the next backward, not within a window");
  }
  auto* meter = impl_->observers.find<observe::GradientNoiseMeter>();
  if (meter == nullptr && on) {
    meter = &impl_->observers.add<observe::GradientNoiseMeter>(impl_->sharded.model.parameters.size());
  }
  if (meter) meter->measure(on);
}
std::optional<GradientNoise> Engine::gradient_noise() const {
  const auto* const meter = impl_->observers.find<observe::GradientNoiseMeter>();
  return meter ? meter->of_last_update() : std::nullopt;
}
double Engine::loss_scale() const { return impl_->training.scaler.scale(); }
torch::nn::Module& Engine::module() const {
  if (!impl_->trained.module) throw ModelError("module(): this engine was made of a zero::ModelView, not of a module");
  return *impl_->trained.module;
}
void Engine::check_module() const { impl_->check_module(); }

}  // namespace zero
