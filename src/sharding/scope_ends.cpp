#include "sharding/scope_ends.h"

#include <algorithm>
#include <new>

#include "comm/backend.h"
#include "comm/gather_values.h"

namespace zero::sharding {
namespace {
constexpr std::size_t kLineNbytes = 64;  // of a cache, so that ranks do not write into each other's
}  // namespace

ScopeEnds::ScopeEnds(Group node, int rank) : node_(std::move(node)) {
  for (const int one : comm::gather_values(node_, rank, "GatheredParameters")) scopes_.push_back({.rank = one});
  memory_ = node_.allocate_node_shared(scopes_.size() * kLineNbytes, "scopes of GatheredParameters");  // zeros
}

std::atomic<std::int64_t>& ScopeEnds::ended_on(std::size_t rank) const {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  return *std::launder(
      reinterpret_cast<std::atomic<std::int64_t>*>(static_cast<std::byte*>(memory_.data()) + rank * kLineNbytes));
}

void ScopeEnds::end(int modifier, bool failed) {
  const auto found = std::ranges::find(scopes_, modifier, &Scopes::rank);
  if (found == scopes_.end()) return;  // of another host, whose memory it has written
  ++found->ended;
  const auto on_host = static_cast<std::size_t>(found - scopes_.begin());
  if (static_cast<int>(on_host) == node_.rank()) {
    ended_on(on_host).store(found->ended, std::memory_order_release);
  } else if (failed) {
    found->awaited = found->ended;
    waits_ = true;
  }
}

void ScopeEnds::wait() {
  comm::Backend& backend = *comm::GroupAccess::backend(node_);
  for (std::size_t on_host = 0; on_host < scopes_.size(); ++on_host) {
    const std::int64_t awaited = scopes_[on_host].awaited;
    const auto is_over = [&] { return ended_on(on_host).load(std::memory_order_acquire) >= awaited; };
    if (is_over()) continue;
    const auto blocker = [&] {
      return comm::Blocker{"a GatheredParameters that has failed here",
                           "is its modifier and has not left it",
                           {static_cast<int>(on_host)}};
    };
    const comm::BackendGuard guard(*backend.lock());
    backend.block_until(is_over, blocker, {.timeout = node_.timeout()});
  }
  waits_ = false;
}

}  // namespace zero::sharding
