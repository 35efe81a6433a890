// Waiting for works, for every backend that moves them by its progress().
#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "comm/backend.h"
#include "comm/wait_policy.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

constexpr int kAll = std::numeric_limits<int>::max();

/// More than a year is for ever, and can be counted in nanoseconds.
std::int64_t to_ns(std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kLong = std::chrono::hours(24 * 365);
  return std::min(limit, kLong).count() * base::kNanosPerMilli;
}

}  // namespace

MovedWork::MovedWork(Backend& backend) : WorkState(backend.lock()), backend_(&backend) {}

void MovedWork::begin(std::int64_t now_ns, std::chrono::milliseconds timeout) {
  start_over();
  begin_ns_ = now_ns;
  waited_ns_ = 0;
  timeout_ = timeout;
  error_ = nullptr;
}

void MovedWork::throw_if_over() const {
  if (error_) std::rethrow_exception(error_);
  if (!backend_) throw CommError(fmt::format("{}: the group was destroyed before it was complete", text()));
}

bool MovedWork::test() {
  if (complete()) return true;
  throw_if_over();
  backend_->progress(kAll);
  if (complete()) return true;
  throw_if_over();
  backend_->throw_if_failed();
  backend_->check_peers([this] { return blocker(); }, begin_ns_, timeout_);
  return false;
}

bool MovedWork::wait_for(std::chrono::milliseconds limit) { return wait_at_most(to_ns(limit)); }

bool MovedWork::wait_while_others_run(std::chrono::milliseconds limit) {
  return wait_at_most(to_ns(limit), /*while_others_run=*/true);
}

bool MovedWork::wait_at_most(std::int64_t limit_ns, bool while_others_run) {
  if (complete()) return true;
  throw_if_over();
  if (backend_->in_finish_step()) {
    throw CommError(
        fmt::format("{}: wait() inside a finish step of the same group would never end; wait after it", text()));
  }
  backend_->progress(kAll);
  if (complete()) return true;
  const std::int64_t since_ns = base::monotonic_ns();
  CollectiveCounter* const counter = backend_->counter_of(kind());
  const auto account = [&] {
    const std::int64_t waited_ns = base::monotonic_ns() - since_ns;
    waited_ns_ += waited_ns;
    if (counter) counter->wait_seconds += to_seconds(waited_ns);
  };
  try {
    backend_->block_until([this] { return complete() || error_; }, [this] { return blocker(); },
                          {timeout_, waited_ns_, limit_ns, while_others_run});
  } catch (...) {
    account();
    throw;
  }
  account();
  if (error_) std::rethrow_exception(error_);
  return complete();
}

void MovedWork::own_part_failed(std::exception_ptr error) {
  error_ = std::move(error);
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& known) {
    backend_->abort(fmt::format("its own part of {} failed: {}", text(), known.what()));
  } catch (...) {
    backend_->abort(fmt::format("its own part of {} failed", text()));
  }
}

}  // namespace zero::comm
