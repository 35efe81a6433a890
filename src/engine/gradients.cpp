#include "engine/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/log.h"
#include "engine/agreement.h"
#include "engine/engine_impl.h"
#include "intercept/gradient_marker.h"
#include "zero/errors.h"

namespace zero::engine {

using intercept::GradientState;

namespace {
/// Backwards of programs' own that have reached a loss of an Engine::scale(), the latest last.
struct ScaledBackward {
  int id;
  double scale;
};
constexpr std::size_t kMostScaled = 64;

/// Of all threads: those of a device run hooks, too.
struct ScaledBackwards {
  std::mutex mutex;
  std::vector<ScaledBackward> latest;
};
ScaledBackwards& scaled_backwards() {
  static auto& all = *new ScaledBackwards;  // engines may go after static objects
  return all;
}

void note_scaled(ScaledBackward one) {
  auto& all = scaled_backwards();
  const std::lock_guard lock(all.mutex);
  if (all.latest.size() >= kMostScaled) all.latest.erase(all.latest.begin());
  all.latest.push_back(one);
}

std::optional<double> find_scale(int id) {
  auto& all = scaled_backwards();
  const std::lock_guard lock(all.mutex);
  const auto found = std::ranges::find(all.latest, id, &ScaledBackward::id);
  if (found == all.latest.end()) return std::nullopt;
  return found->scale;
}
}  // namespace

BackwardScope::BackwardScope(std::span<Engine::Impl* const> engines) : engines_(engines), in_its_threads_(this) {}
BackwardScope::~BackwardScope() = default;

bool BackwardScope::is_of_others(const Engine::Impl& engine) {
  const auto* const scope = static_cast<const BackwardScope*>(intercept::carried());
  return scope && std::ranges::find(scope->engines_, &engine) == scope->engines_.end();
}

Gradients::Gradients(Engine::Impl& impl)
    : impl_(impl), parameters_(impl.sharded.model.parameters.size()), self_(std::make_shared<Gradients*>(this)) {}

Gradients::~Gradients() { *self_ = nullptr; }

void Gradients::hook() {
  std::string first;
  int dropped = 0;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto& parameter = impl_.sharded.model.parameters[p];
    if (parameter.tensor.grad().defined()) {
      if (dropped++ == 0) first = parameter.name;
      parameter.tensor.mutable_grad().reset();
    }
    if (parameter.tensor.requires_grad()) hook_parameter(static_cast<int>(p));
  }
  if (dropped > 0) {
    base::log_warning(
        "initialize: {} parameters had gradients from before ('{}', ...); they are dropped, as zero_grad() "
        "would do",
        dropped, first);
  }
}

void Gradients::hook_parameter(int p) {
  const auto& parameter = impl_.sharded.model.parameters[p];
  parameters_[p].hook = std::make_unique<intercept::GradientHook>(
      parameter.tensor, parameter.name,
      intercept::GradientCalls{[this, p](at::Tensor& gradient) { take(p, gradient); },
                               [this, p](bool dropped) { arrives(p, dropped); }});
}

void Gradients::expect_scaled(const at::Tensor& loss) {
  loss.register_hook([weak = std::weak_ptr(self_), scale = impl_.training.scaler.scale()](const at::Tensor&) {
    const auto self = weak.lock();
    if (!self || !*self) return;
    if ((*self)->announced_) {
      throw ModelError(
          "engine.backward(engine.scale(loss)) would scale the loss twice: call engine.backward(loss), or "
          "engine.scale(loss).backward()");
    }
    note_scaled({intercept::backward_id(), scale});
  });
}

/// In a backward of the program's own.
void Gradients::check_scaled(int p) {
  if (BackwardScope::is_of_others(impl_)) return;
  const std::optional<double> scaled = find_scale(intercept::backward_id());
  const double scale = impl_.training.scaler.scale();
  if (scaled.value_or(1) == scale) return;
  if (scaled) {
    foreign_ = true;  // another engine's loss: to be dropped
    return;
  }
  throw ModelError(
      fmt::format("parameter '{}' got a gradient of a loss that was not scaled, and step() would divide it "
                  "by the loss scale, {:g}: "
                  "call engine.backward(loss), or engine.scale(loss).backward()",
                  impl_.sharded.model.parameters[p].name, impl_.training.scaler.scale()));
}

void Gradients::follow_set_data(int p) {
  const auto& hook = parameters_[p].hook;
  if (hook && !hook->is_current()) hook_late(p);
}

void Gradients::hook_late(int p) {
  const at::Tensor& tensor = impl_.sharded.model.parameters[p].tensor;
  at::Tensor gradient = tensor.grad();
  const bool is_taken = gradient.defined() && intercept::is_gradient_marker(gradient);
  if (is_taken && intercept::gradient_marker_was_zeroed(gradient)) gradient.reset();
  parameters_[p].hook.reset();
  tensor.mutable_grad().reset();
  hook_parameter(p);
  if (!gradient.defined()) return;
  if (!is_taken) add(p, gradient);
  parameters_[p].hook->mark();  // so that it can be dropped
}

void Gradients::take(int p, at::Tensor& gradient) {
  if (!announced_) {
    check_scaled(p);
    note_backward();
  }
  if (lost_) throw ModelError(*lost_);
  if (impl_.step.sums_are_averages) {
    throw ModelError(
        "backward() after this window's gradients were changed (set_full_gradient, for_each_gradient, "
        "clip_grad_value "
        "or clip_grad_norm): its gradients would be added to averages. Change gradients after the last "
        "backward()");
  }
  if (BackwardScope::is_of_others(impl_)) {
    if (!impl_.keeps_gradients()) {
      throw ModelError(
          fmt::format("parameter '{}' got a gradient in the backward of another engine, and would be updated at once "
                      "(zerotorch.update): freeze it there with requires_grad_(false), or run zero::backward(loss, "
                      "{{...}}) over both engines",
                      impl_.sharded.model.parameters[p].name));
    }
    foreign_ = true;
  }
  impl_.observers.tell(&observe::StepObserver::gradient, p, gradient);
  add(p, gradient);
}

void Gradients::add(int p, const at::Tensor& gradient) {
  impl_.sharded.reducer->expect_last_micro_batch(impl_.accumulation.is_boundary());
  impl_.sharded.reducer->add(p, gradient);
}

void Gradients::arrives(int p, bool dropped) {
  // Only before the first gradient of a backward is everything as the program has left it.
  const bool after_failed = !announced_ && !running_.empty() && has_failed_beside();
  const bool first = !announced_ && (running_.empty() || after_failed);
  if (first) check_dropped("backward", {p, dropped});
  if (first && !running_.empty()) fail_backward();
}

/// True once, when the backward passes that are noted as running have failed in a thread of the device.
bool Gradients::has_failed_beside() {
  const std::lock_guard lock(beside_->mutex);
  const std::vector<int> failed = std::exchange(beside_->failed, {});
  return std::ranges::all_of(running_, [&](int id) { return std::ranges::find(failed, id) != failed.end(); });
}

/// A backward that the engine was not told of has reached a parameter: loss.backward(), another engine's, or
/// one inside another.
void Gradients::note_backward() {
  const int id = intercept::backward_id();
  if (std::find(running_.begin(), running_.end(), id) != running_.end()) return;
  if (running_.empty()) {
    if (impl_.sharded.reducer->window_is_empty()) impl_.refresh_rates();
    impl_.sharded.reducer->begin_backward();
    impl_.observers.tell(&observe::StepObserver::begin_backward, /*announced=*/false);
    impl_.begin_update();
  }
  running_.push_back(id);
  const bool in_other_thread = !impl_.sharded.model.module_device.is_cpu();
  intercept::when_backward_ends([weak = std::weak_ptr(self_), beside = beside_, in_other_thread, id](bool complete) {
    if (!complete && in_other_thread) {  // beside the program, which has gone on with the exception
      const std::lock_guard lock(beside->mutex);
      beside->failed.push_back(id);
      return;
    }
    const auto self = weak.lock();
    if (!self || !*self) return;
    if (std::erase((*self)->running_, id) == 0 || !(*self)->running_.empty()) return;
    complete ? (*self)->mark_all() : (*self)->fail_backward();
    MicroBatchRandom::interrupt();
  });
}

void Gradients::look(const char* caller) {
  check_dropped(caller);
  if (!running_.empty()) fail_backward();
  if (lost_) throw ModelError(*lost_);
  if (foreign_) {
    throw ModelError(
        fmt::format("{}: gradients came to this engine in the backward of another engine, whose loss reaches its "
                    "parameters. Drop them before this engine's own backward (zero_grad() of the engine, of its module "
                    "or of "
                    "the optimizer), as plain programs do; where they are meant, run zero::backward(loss, {{&a, &b}}) "
                    "over "
                    "both engines",
                    caller));
  }
  follow_freezing();
}

void Gradients::begin_backward() {
  impl_.sharded.reducer->begin_backward();
  impl_.observers.tell(&observe::StepObserver::begin_backward, /*announced=*/true);
  announced_ = true;
  arm_all();
}

void Gradients::end_backward() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (!parameters_[p].hook || parameters_[p].hook->state() != GradientState::kSet) continue;
    // A graph from before a set_data() knows another node than the hooked one.
    at::Tensor gradient = impl_.sharded.model.parameters[p].tensor.grad();
    take(static_cast<int>(p), gradient);
  }
  announced_ = false;
  mark_all();
  MicroBatchRandom::interrupt();
}

void Gradients::mark_all() noexcept {
  for (auto& parameter : parameters_) {
    if (parameter.hook) parameter.hook->mark();
  }
}

void Gradients::arm_all() noexcept {
  for (auto& parameter : parameters_) {
    if (parameter.hook) parameter.hook->arm();
  }
}

void Gradients::end_window() {
  foreign_ = false;
  arm_all();
}

void Gradients::fail_backward() noexcept {
  MicroBatchRandom::interrupt();
  announced_ = false;
  running_.clear();
  mark_all();
  impl_.observers.tell(&observe::StepObserver::undo_backward);
  if (impl_.sharded.reducer->undo_backward()) return;
  if (!impl_.keeps_gradients()) {
    impl_.life.failed = true;  // half of a step is taken
    return;
  }
  lost_ =
      "a backward of this accumulation window failed after some of its gradients had been added to the window's sums: "
      "the window is lost. Call zero_grad() of the engine on every rank, which drops it, and go on with the next batch";
}

void Gradients::check_dropped(const char* caller, Arriving arriving) {
  struct Names {
    const std::string* kept = nullptr;
    const std::string* gone = nullptr;
  } trained, frozen;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (!parameters_[p].hook) continue;
    const auto& parameter = impl_.sharded.model.parameters[p];
    GradientState state = parameters_[p].hook->state();
    // What has arrived has been added onto what was there.
    if (arriving.parameter == static_cast<int>(p))
      state = arriving.dropped ? GradientState::kDropped : GradientState::kArmed;
    const bool is_trained = parameter.tensor.requires_grad();
    if (state == GradientState::kSet && is_trained) {
      throw ModelError(
          fmt::format("{}: somebody has put a tensor into grad() of parameter '{}', which the engine would "
                      "not see; give it "
                      "to Engine::set_full_gradient after backward()",
                      caller, parameter.name));
    }
    Names& names = is_trained ? trained : frozen;
    if (state == GradientState::kDropped) names.gone = &parameter.name;
    if (state == GradientState::kMarked) names.kept = &parameter.name;
  }
  // An optimizer's zero_grad() may not reach what is frozen, which tells only where nothing else does.
  const auto [kept, gone] = trained.kept || trained.gone ? trained : frozen;
  if (!gone) return;
  if (kept) {
    throw ModelError(fmt::format(
        "{}: the gradient of parameter '{}' was dropped and that of '{}' was not; gradients of an engine are "
        "dropped together: call zero_grad() of the engine",
        caller, *gone, *kept));
  }
  drop_window();
}

void Gradients::zero_grad() {
  drop_window();
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    // Unfrozen since the last call, and reached by a backward: not the reducer's yet.
    if (!parameters_[p].hook) impl_.sharded.model.parameters[p].tensor.mutable_grad().reset();
  }
}

void Gradients::drop_window() {
  if (!impl_.keeps_gradients() && impl_.sharded.reducer->micro_batch_has_gradients())
    throw ModelError("zero_grad() after backward(): the gradients have been applied already, as zerotorch.update says");
  // Micro-batches that step() has ended stay; one whose boundary is off ends in backward(), and nothing else does.
  const bool keeps = impl_.life.zero_grad_keeps_window && impl_.accumulation.boundary != false &&
                     !impl_.accumulation.ended_in_backward;
  if (keeps && impl_.accumulation.window_micro_batches() > 0 && !lost_) {
    if (impl_.sharded.reducer->micro_batch_has_gradients()) {
      throw ModelError(
          "zero_grad() between a backward() and its step(), in an accumulation window that keeps its earlier "
          "micro-batches: it cannot drop this one alone; call step() first");
    }
    if (!std::exchange(warned_of_keeping_, true) && impl_.groups.is_first()) {
      base::log_warning(
          "zero_grad() inside an accumulation window keeps its {} micro-batches, as DeepSpeed's stage 2 does; its "
          "stages 0 and 1, and plain torch, drop them. Call it at the window's end only, or not at all: step() ends a "
          "window by itself",
          impl_.accumulation.window_micro_batches());
    }
    mark_all();
    return;
  }
  impl_.step.sums_are_averages = false;
  running_.clear();
  const bool failed = std::exchange(lost_, std::nullopt).has_value();
  foreign_ = false;
  arm_all();
  impl_.sharded.reducer->drop_window();
  impl_.observers.tell(&observe::StepObserver::drop_gradients);
  const bool drops = impl_.sharded.reducer->agreement().facts().flags & sharding::MicroBatchAgreement::kWindowStarted;
  if (!drops || impl_.accumulation.window_micro_batches() == 0) return;
  impl_.accumulation.dropped = true;
  if (!impl_.groups.is_first()) return;
  if (failed) {
    base::log_warning(
        "zero_grad() after a backward that failed when some of its gradients had been added: it has dropped the {} "
        "micro-batches that this accumulation window had, too. The window still ends when step() has counted {}, and "
        "its sums are divided by as many",
        impl_.accumulation.window_micro_batches(),
        impl_.config.gradient_accumulation_steps * impl_.groups.data_parallel.size());
  } else if (!std::exchange(warned_of_drop_, true)) {
    base::log_warning(
        "zero_grad() inside an accumulation window has dropped the {} micro-batches that it had; call it at the "
        "window's end only, or not at all: step() ends a window by itself",
        impl_.accumulation.window_micro_batches());
  }
}

void Gradients::follow_freezing() {
  const bool between = !impl_.sharded.reducer->micro_batch_has_gradients();
  std::vector<int> unfrozen;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const int p = static_cast<int>(i);
    const bool wanted = impl_.sharded.model.parameters[p].tensor.requires_grad();
    if (parameters_[p].hook) {
      if (between) impl_.sharded.reducer->expect(p, wanted);
    } else if (wanted) {
      unfrozen.push_back(p);
    } else if (impl_.sharded.model.parameters[p].tensor.grad().defined()) {
      throw ModelError(
          fmt::format("parameter '{}' was unfrozen, got a gradient by loss.backward(), and was frozen again before any "
                      "call of the engine, which would not count it: call engine.backward(loss), or freeze it after "
                      "step(); zero_grad() of the engine drops it",
                      impl_.sharded.model.parameters[p].name));
    }
  }
  if (!unfrozen.empty()) activate(unfrozen);
}

void Gradients::activate(const std::vector<int>& unfrozen) {
  const std::string& first = impl_.sharded.model.parameters[unfrozen.front()].name;
  impl_.check_trains(fmt::format("requires_grad_() of '{}'", first).c_str());
  make_trainable(unfrozen);
  for (const int p : unfrozen) hook_late(p);
}

void Gradients::make_trainable(const std::vector<int>& parameters) {
  if (parameters.empty()) return;
  auto& model = impl_.sharded.model;
  const std::string& first = model.parameters[parameters.front()].name;
  if (impl_.groups.data_parallel.size() > 1)
    impl_.groups.data_parallel.barrier({.label = "unfreezing " + first}).wait();
  impl_.sharded.reducer->flush("unfreezing");  // no bucket is open where their layout changes
  impl_.sharded.update->stop();                // it adds to what an update goes through
  std::vector<int> units;
  for (const int p : parameters) {
    const int u = model.parameters[p].unit;
    if (!model.units[u].trainable && std::find(units.begin(), units.end(), u) == units.end()) units.push_back(u);
  }
  if (!units.empty()) {
    impl_.sharded.store->quiesce();
    impl_.sharded.reducer->add_units(units);
    impl_.optimizer_source->add_units(units);
  }
  for (const int u : units) {
    for (const int p : model.units[u].parameters) {
      if (impl_.sharded.reducer->expected(p))
        impl_.sharded.reducer->expect(p, model.parameters[p].tensor.requires_grad());
    }
  }
}

std::uint64_t Gradients::trainable_hash() const {
  std::uint64_t hash = 1469598103934665603ull;
  for (const auto& parameter : impl_.sharded.model.parameters) {
    hash = (hash ^ (parameter.tensor.requires_grad() ? 2 : 1)) * 1099511628211ull;
  }
  return hash;
}

void Gradients::throw_trainable_difference(Group& group) {
  std::string text;
  for (const auto& parameter : impl_.sharded.model.parameters) {
    text += fmt::format("parameter '{}' {}\n", parameter.name,
                        parameter.tensor.requires_grad() ? "requires a gradient" : "is frozen");
  }
  const auto difference = first_difference(text, group, "frozen parameters");
  throw ModelError(
      fmt::format("the ranks have frozen different parameters, so their steps do not belong together: {}; call "
                  "requires_grad_() alike on every rank",
                  difference.value_or("(they agree by now)")));
}

}  // namespace zero::engine
