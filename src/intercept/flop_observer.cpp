#include "intercept/flop_observer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "intercept/flop_formulas.h"
#include "intercept/kept_results.h"

namespace zero::intercept {
namespace {

/// A forward operator and its node in backward share the thread and its sequence number.
using Node = std::pair<std::uint64_t, std::int64_t>;

/// Of the operators under way on this thread.
struct Nesting {
  int counted = 0;          ///< operators that count
  std::vector<Node> nodes;  ///< of backward
};
thread_local Nesting nesting;

struct OperatorContext final : at::ObserverContext {
  bool is_node = false;
};

}  // namespace

struct FlopObserver::State {
  static constexpr int kNobodys = -1;

  mutable std::mutex mutex;
  const UseObserver* uses = nullptr;
  std::vector<int> owner, parent;
  Counts counts;
  int last_owner = kNobodys;     ///< in forward: of the parameter used last
  int last_backward = kNobodys;  ///< in backward: where its last operator belongs
  std::map<Node, int> module_of_node;
  std::int64_t forward_begin_ns = 0, backward_begin_ns = 0, backward_end_ns = 0;

  /// Module of a parameter among the arguments; not given: there is none. Another engine's: kNobodys.
  std::optional<int> owner_among(c10::ArrayRef<const c10::IValue> arguments) const {
    std::optional<int> found;
    const auto look = [&](const at::Tensor& tensor) {
      const auto* handle = ParameterHandle::of(tensor);
      if (!handle || !handle->observer() || found) return;
      found = handle->observer() == uses ? owner[static_cast<std::size_t>(handle->parameter())] : kNobodys;
    };
    for (const auto& value : arguments) {
      if (value.isTensor()) {
        look(value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) look(tensor);
      }
    }
    return found;
  }

  void add(int module, std::int64_t flops, std::string_view op, bool backward) {
    if (module == kNobodys) return;
    auto& of = counts.by_module[static_cast<std::size_t>(module)];
    (backward ? of.backward : of.forward) += flops;
    counts.by_operator[std::string(op.substr(op.rfind(':') + 1))] += flops;
  }

  void forward_operator(const at::RecordFunction& fn, std::optional<std::int64_t> flops) {
    if (!at::GradMode::is_enabled()) return;
    const std::optional<int> direct = owner_among(fn.inputs());
    if (direct) {
      last_owner = *direct;
      const std::int64_t now = base::monotonic_ns();
      if (counts.first_ns == 0 && last_owner != kNobodys) counts.first_ns = now;
      if (forward_begin_ns == 0) forward_begin_ns = now;
    }
    if (!flops) return;
    const bool indirect = !direct && last_owner != kNobodys;
    const int module = indirect ? parent[static_cast<std::size_t>(last_owner)] : last_owner;
    module_of_node[{at::RecordFunction::currentThreadId(), fn.seqNr()}] = module;
    add(module, *flops, fn.name(), false);
  }

  void backward_operator(const at::RecordFunction& fn, std::int64_t flops) {
    const auto found = module_of_node.find(nesting.nodes.back());
    if (found != module_of_node.end()) last_backward = found->second;
    add(last_backward, flops, fn.name(), true);
  }

  void begin_node() {
    if (backward_begin_ns == 0) backward_begin_ns = base::monotonic_ns();
  }
  void end_node() { backward_end_ns = base::monotonic_ns(); }

  void end_micro_batch() {
    const auto seconds = [](std::int64_t begin, std::int64_t end) {
      return begin == 0 || end < begin ? 0 : static_cast<double>(end - begin) / base::kNanosPerSecond;
    };
    counts.forward_seconds += seconds(forward_begin_ns, backward_begin_ns);
    counts.backward_seconds += seconds(backward_begin_ns, backward_end_ns);
    forward_begin_ns = backward_begin_ns = backward_end_ns = 0;
    module_of_node.clear();
  }
};

/// The one callback of a thread: libtorch's are plain functions, which find the observers here.
struct FlopObserver::Callback {
  static std::mutex& mutex() {
    static auto& the_mutex = *new std::mutex;  // engines may go after static objects
    return the_mutex;
  }
  static std::vector<std::shared_ptr<State>>& states() {
    static auto& all = *new std::vector<std::shared_ptr<State>>;
    return all;
  }
  template <class Do>
  static void for_each(Do&& what) {
    const std::lock_guard lock(mutex());
    for (const auto& state : states()) {
      const std::lock_guard own(state->mutex);
      what(*state);
    }
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) {
    if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      nesting.nodes.emplace_back(fn.forwardThreadId(), fn.seqNr());
      for_each([](State& state) { state.begin_node(); });
      auto context = std::make_unique<OperatorContext>();
      context->is_node = true;
      return context;
    }
    if (nesting.counted > 0) return nullptr;
    std::optional<std::int64_t> flops = flops_of(fn.name(), fn.inputs());
    if (flops && is_given_next(fn.name())) flops.reset();  // recomputation that does not compute it
    if (nesting.nodes.empty()) {
      for_each([&](State& state) { state.forward_operator(fn, flops); });
    } else if (flops) {
      for_each([&](State& state) { state.backward_operator(fn, *flops); });
    }
    if (!flops) return nullptr;
    ++nesting.counted;
    return std::make_unique<OperatorContext>();
  }

  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    if (context == nullptr) return;
    if (!static_cast<OperatorContext*>(context)->is_node) {
      --nesting.counted;
      return;
    }
    nesting.nodes.pop_back();
    for_each([](State& state) { state.end_node(); });
  }

  /// Of this thread.
  struct Registration {
    int observers = 0;
    at::CallbackHandle handle = 0;
  };
  static Registration& here() {
    thread_local Registration registration;
    return registration;
  }
};

FlopObserver::FlopObserver(const UseObserver* uses, std::vector<int> owner, std::vector<int> parent)
    : state_(std::make_shared<State>()) {
  state_->uses = uses;
  state_->owner = std::move(owner);
  state_->counts.by_module.resize(parent.size());
  state_->parent = std::move(parent);
  {
    const std::lock_guard lock(Callback::mutex());
    Callback::states().push_back(state_);
  }
  auto& here = Callback::here();
  if (here.observers++ > 0) return;
  using Scope = at::RecordScope;
  here.handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&Callback::begin, &Callback::end)
                                               .needsInputs(true)
                                               .scopes({Scope::FUNCTION, Scope::BACKWARD_FUNCTION}));
}

FlopObserver::~FlopObserver() {
  {
    const std::lock_guard lock(Callback::mutex());
    std::erase(Callback::states(), state_);
  }
  auto& here = Callback::here();
  if (here.observers == 0) return;
  --here.observers;
  if (here.observers == 0) at::removeCallback(here.handle);
}

void FlopObserver::end_micro_batch() {
  const std::lock_guard lock(state_->mutex);
  state_->end_micro_batch();
}

FlopObserver::Counts FlopObserver::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace zero::intercept
