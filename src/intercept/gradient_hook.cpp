#include "intercept/gradient_hook.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "intercept/gradient_marker.h"

namespace zero::intercept {
namespace {

using torch::autograd::variable_list;

/// What the hooks on the node share with their GradientHook: a node that an old graph keeps alive must not call
/// into a dead engine.
struct Shared {
  GradientCalls calls;
  at::Tensor marker;
  bool live = true;
  bool armed = false;
};

/// Of a backward pass.
class Fate {
 public:
  explicit Fate(std::function<void(bool)> ended) : ended_(std::move(ended)) {}
  ~Fate() { end(false); }
  Fate(const Fate&) = delete;
  Fate& operator=(const Fate&) = delete;
  void end(bool complete) {
    if (const auto ended = std::exchange(ended_, nullptr)) ended(complete);
  }

 private:
  std::function<void(bool)> ended_;
};

std::string gone(const std::string& name) {
  return fmt::format(
      "the gradient of parameter '{}' is not in grad(): backward hands gradients to their owners. Read or "
      "change them between backward() and step() with Engine::full_gradient, set_full_gradient, "
      "for_each_gradient or clip_grad_value; gradient_clipping in the configuration (or Engine::clip_grad_norm) "
      "clips by norm; Engine::step() takes the place of the optimizer's step()",
      name);
}

/// After autograd has accumulated into `variable`.
void take_gradient(const at::Tensor& variable, Shared& shared) {
  at::Tensor gradient = variable.grad();
  const bool was_armed = std::exchange(shared.armed, false);
  const bool marked = gradient.defined() && is_gradient_marker(gradient);
  const bool replaced = was_replaced_by_autograd(shared.marker);
  const bool dropped = marked ? gradient_marker_was_zeroed(gradient) : !was_armed && !replaced;
  if (marked) gradient = take_from_gradient_marker(gradient);
  if (gradient.defined()) shared.calls.arrives(dropped);
  shared.armed = false;  // dropping the window there has armed all
  variable.mutable_grad() = shared.marker;
  if (gradient.defined()) shared.calls.take(gradient);
}

}  // namespace

/// Autograd keeps only a weak reference to a parameter's AccumulateGrad node; the hooks live on the node.
struct GradientHook::Node {
  // A shared_ptr or an intrusive_ptr, by version of libtorch.
  decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>())) node;
  // A weak handle: the node owns the hooks, the hooks must not own the parameter.
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  std::shared_ptr<Shared> shared;
  std::string name;
};

GradientHook::GradientHook(const at::Tensor& parameter, const std::string& name, GradientCalls calls)
    : node_(new Node{torch::autograd::impl::grad_accumulator(parameter),
                     c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()), std::make_shared<Shared>(),
                     name}) {
  auto shared = node_->shared;
  shared->calls = std::move(calls);
  shared->marker = make_gradient_marker(parameter, gone(name));
  auto weak = node_->parameter;
  node_->node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [weak, shared](const variable_list& outputs, const variable_list&) {
        auto impl = weak.lock();
        if (impl && shared->live) take_gradient(at::Tensor(impl), *shared);
        return outputs;
      }));
  arm();
}

GradientHook::~GradientHook() {
  node_->shared->live = false;
  node_->shared->calls = {};
  auto impl = node_->parameter.lock();
  if (!impl) return;
  const at::Tensor variable(impl);
  if (variable.grad().defined() && is_gradient_marker(variable.grad())) variable.mutable_grad().reset();
}

bool GradientHook::is_current() const {
  auto impl = node_->parameter.lock();
  return !impl || torch::autograd::impl::try_get_grad_accumulator(at::Tensor(impl)) == node_->node;
}

GradientState GradientHook::state() const {
  auto impl = node_->parameter.lock();
  if (!impl) return GradientState::kMarked;  // the user dropped the parameter
  const at::Tensor variable(impl);
  const at::Tensor& gradient = variable.grad();
  if (!gradient.defined()) return node_->shared->armed ? GradientState::kArmed : GradientState::kDropped;
  if (!is_gradient_marker(gradient)) return GradientState::kSet;
  return gradient_marker_was_zeroed(gradient) ? GradientState::kDropped : GradientState::kMarked;
}

void GradientHook::mark() {
  auto impl = node_->parameter.lock();
  if (!impl) return;
  const at::Tensor variable(impl);
  auto& shared = *node_->shared;
  shared.armed = false;
  if (gradient_marker_was_zeroed(shared.marker)) shared.marker = make_gradient_marker(variable, gone(node_->name));
  take_from_gradient_marker(shared.marker);  // of a backward that failed
  variable.mutable_grad() = shared.marker;
}

void GradientHook::arm() {
  auto impl = node_->parameter.lock();
  if (!impl) return;
  node_->shared->armed = true;
  at::Tensor(impl).mutable_grad().reset();
}

namespace {
struct CarriedValue : c10::DebugInfoBase {
  explicit CarriedValue(const void* what) : value(what) {}
  const void* value;
};
/// The slot of libtorch's thread-local state, which it hands on to its threads, that nobody has a use for.
const c10::DebugInfoKind kCarriedKind = c10::DebugInfoKind::TEST_INFO_2;
}  // namespace

struct Carried::Slot {
  explicit Slot(const void* value) : guard(kCarriedKind, std::make_shared<CarriedValue>(value)) {}
  c10::DebugInfoGuard guard;
};
Carried::Carried(const void* value) : slot_(std::make_unique<Slot>(value)) {}
Carried::~Carried() = default;

const void* carried() {
  const auto* const value = dynamic_cast<const CarriedValue*>(c10::ThreadLocalDebugInfo::get(kCarriedKind));
  return value ? value->value : nullptr;
}

bool in_backward() { return backward_id() != -1; }

int backward_id() { return torch::autograd::get_current_graph_task_id(); }

void when_backward_ends(std::function<void(bool complete)> ended) {
  // Autograd runs the callbacks of a pass that is complete, and drops those of one that has failed.
  auto fate = std::make_shared<Fate>(std::move(ended));
  torch::autograd::Engine::get_default_engine().queue_callback([fate] { fate->end(true); });
}

void bump_version(const at::Tensor& parameter) { torch::autograd::impl::bump_version(parameter); }

}  // namespace zero::intercept
