#include "intercept/debug_observer.h"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <mutex>
#include <string_view>

#include "intercept/compat.h"
#include "intercept/parameter_handle.h"
#include "intercept/view_operators.h"

namespace zero::intercept {

struct DebugObserver::State {
  std::mutex mutex;
  std::vector<std::string> violations;
  std::atomic<std::int64_t> checked{0};

  void check(const char* op, const at::Tensor& tensor) {
    const auto* handle = ParameterHandle::of(tensor);
    if (!handle || !handle->observer()) return;
    ++checked;
    if (handle->attached()) return;
    std::lock_guard lock(mutex);
    violations.push_back(std::string(op) + ": " + handle->name());
  }
};

DebugObserver::DebugObserver() : state_(std::make_shared<State>()) {
  // RecordFunction callbacks are plain functions; the live observer is found here.
  // Engines may go after static objects.
  static auto& registry_mutex = *new std::mutex;
  static auto& current = *new std::weak_ptr<State>;
  {
    std::lock_guard lock(registry_mutex);
    current = state_;
  }
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
        // With the key still included the fallback comes next and gathers.
        const bool intercepted = c10::impl::tls_is_dispatch_key_excluded(kParameterKey);
        if (!intercepted || is_view_operator(fn.name())) return nullptr;
        std::shared_ptr<State> state;
        {
          std::lock_guard lock(registry_mutex);
          state = current.lock();
        }
        if (!state) return nullptr;
        for (const auto& value : fn.inputs()) {
          if (value.isTensor()) {
            state->check(fn.name(), value.toTensor());
          } else if (value.isTensorList()) {
            for (const at::Tensor& tensor : value.toTensorVector()) state->check(fn.name(), tensor);
          }
        }
        return nullptr;
      })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}

DebugObserver::~DebugObserver() { at::removeCallback(handle_); }

std::vector<std::string> DebugObserver::take_violations() {
  std::lock_guard lock(state_->mutex);
  return std::exchange(state_->violations, {});
}

std::int64_t DebugObserver::operators_checked() const { return state_->checked; }

}  // namespace zero::intercept
