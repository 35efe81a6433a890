// The copying store's gathers, without memory: see zero/copying_store.cpp for the why of each rule.
#include <algorithm>
#include <set>

#include "layout/use_order.h"
#include "plan/pools.h"

namespace zero::plan {
namespace {

constexpr int kForward = 0, kBackward = 1;
/// Order and distances of use are known after the first, and nothing changes after the third.
constexpr int kSteps = 4;
constexpr std::int64_t kMostMicroBatches = 3;

std::vector<std::int64_t> unit_numels(const LaidOut& laid) {
  std::vector<std::int64_t> numels;
  for (const auto& unit : laid.units) numels.push_back(unit.numel);
  return numels;
}

class GatherPool {
 public:
  GatherPool(const LaidOut& laid, const Config& config)
      : laid_(laid),
        max_live_numel_(config.zero_optimization.stage3_max_live_parameters),
        max_reuse_numel_(config.zero_optimization.stage3_max_reuse_distance),
        prefetch_numel_(laid.overlap ? config.zero_optimization.stage3_prefetch_bucket_size : 0),
        order_(unit_numels(laid)),
        states_(laid.units.size()) {}

  void operate(const std::vector<int>& units, int phase) {
    for (const int unit : units) before_use(unit, phase);
    for (const int unit : units) after_use(unit);
  }

  void publish() {
    for (std::size_t i = 0; i < states_.size(); ++i) drop(static_cast<int>(i));
  }

  const GatherUse& use() const { return use_; }
  void start_step() { use_.gathered_numel = 0; }

 private:
  struct State {
    enum { kReleased, kGathering, kGathered } at = kReleased;
    int pins = 0;
    std::int64_t buffer_numel = 0;
    bool prefetched = false;
  };

  std::int64_t numel(int unit) const { return laid_.units[unit].numel; }

  void before_use(int unit, int phase) {
    const int before = order_.current();
    order_.use(unit, phase);
    ++states_[unit].pins;
    if (before >= 0 && before != unit) leave(before);
    if (!laid_.resident[unit]) {
      make_whole(unit);
      prefetch();
    } else if (before != unit) {
      prefetch();
    }
  }

  void after_use(int unit) {
    if (--states_[unit].pins == 0 && unit != order_.current()) leave(unit);
  }

  void leave(int unit) {
    if (states_[unit].at != State::kGathered || states_[unit].pins > 0) return;
    const std::int64_t distance = order_.reuse_distance(unit);
    if (distance >= 0 && distance <= max_reuse_numel_ && live_numel_ <= max_live_numel_) return;
    drop(unit);
  }

  void drop(int unit) {
    State& state = states_[unit];
    finish_gather(unit);
    if (state.at != State::kGathered || state.pins > 0) return;
    free_.insert(state.buffer_numel);
    state.at = State::kReleased;
    live_numel_ -= numel(unit);
  }

  int farthest_victim() const {
    int victim = -1;
    std::int64_t farthest = -1;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (states_[i].at != State::kGathered || states_[i].pins > 0) continue;
      const std::int64_t known = order_.reuse_distance(static_cast<int>(i));
      const std::int64_t distance = known < 0 ? INT64_MAX : known;
      if (victim >= 0 && distance <= farthest) continue;
      victim = static_cast<int>(i);
      farthest = distance;
    }
    return victim;
  }

  bool make_room(std::int64_t wanted, bool for_prefetch) {
    while (live_numel_ + wanted > max_live_numel_) {
      const int victim = for_prefetch ? -1 : farthest_victim();
      if (victim < 0) return false;
      drop(victim);
    }
    return true;
  }

  std::int64_t take(std::int64_t wanted) {
    const auto found = free_.lower_bound(wanted);
    if (found == free_.end()) {
      use_.pool_numel += wanted;
      return wanted;
    }
    const std::int64_t taken = *found;
    free_.erase(found);
    return taken;
  }

  void begin_gather(int unit, bool prefetched) {
    State& state = states_[unit];
    state.buffer_numel = take(numel(unit));
    state.at = State::kGathering;
    state.prefetched = prefetched;
    live_numel_ += numel(unit);
    use_.gathered_numel += numel(unit);
    use_.peak_live_numel = std::max(use_.peak_live_numel, live_numel_);
    if (prefetched) prefetching_numel_ += numel(unit);
  }

  void finish_gather(int unit) {
    State& state = states_[unit];
    if (state.at != State::kGathering) return;
    if (state.prefetched) prefetching_numel_ -= numel(unit);
    state.at = State::kGathered;
  }

  void make_whole(int unit) {
    if (states_[unit].at == State::kReleased) {
      make_room(numel(unit), /*for_prefetch=*/false);
      begin_gather(unit, /*prefetched=*/false);
    }
    finish_gather(unit);
  }

  void prefetch() {
    layout::UseOrder::Walk walk(order_);
    for (int ahead = 1; prefetching_numel_ < prefetch_numel_; ++ahead) {
      const auto [next, next_phase] = walk.next();
      if (next < 0 || next == order_.current() || ahead > static_cast<int>(states_.size())) return;
      if (next_phase < order_.current_phase()) return;
      if (laid_.resident[next] || states_[next].at != State::kReleased) continue;
      if (prefetching_numel_ + numel(next) > prefetch_numel_ || !make_room(numel(next), true)) return;
      begin_gather(next, /*prefetched=*/true);
    }
  }

  const LaidOut& laid_;
  const std::int64_t max_live_numel_, max_reuse_numel_, prefetch_numel_;
  layout::UseOrder order_;
  std::vector<State> states_;
  std::multiset<std::int64_t> free_;
  std::int64_t live_numel_ = 0;
  std::int64_t prefetching_numel_ = 0;
  GatherUse use_;
};

std::vector<int> unit_of_parameter(const ModelShape& model, const LaidOut& laid) {
  std::vector<int> unit_of(model.parameters.size(), -1);
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    for (const auto& slot : laid.units[u].slots) unit_of[slot.parameter] = static_cast<int>(u);
  }
  return unit_of;
}

/// Units of an operator's parameters, in the order of its arguments.
std::vector<std::vector<int>> operators(const ModelShape& model, const LaidOut& laid, int phase) {
  const std::vector<int> unit_of = unit_of_parameter(model, laid);
  std::vector<std::vector<int>> result;
  for (const Use& use : uses_of(model)) {
    if (phase == kBackward && !use.in_backward) continue;
    result.emplace_back();
    for (const int p : use.parameters) result.back().push_back(unit_of[p]);
  }
  if (phase == kBackward) std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace

GatherUse gather_use(const ModelShape& model, const LaidOut& laid, const Config& config) {
  const bool gathers = !laid.node_shared &&
                       std::find(laid.resident.begin(), laid.resident.end(), false) != laid.resident.end();
  if (!gathers) return {};
  const auto forward = operators(model, laid, kForward), backward = operators(model, laid, kBackward);
  const std::int64_t micro_batches =
      std::clamp<std::int64_t>(config.gradient_accumulation_steps, 1, kMostMicroBatches);
  GatherPool pool(laid, config);
  for (int step = 0; step < kSteps; ++step) {
    pool.start_step();
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      for (const auto& units : forward) pool.operate(units, kForward);
      for (const auto& units : backward) pool.operate(units, kBackward);
    }
    pool.publish();
  }
  GatherUse use = pool.use();
  // Micro-batches beyond those gone through gather as the last of them did, on average.
  const auto more = static_cast<double>(std::max<std::int64_t>(config.gradient_accumulation_steps, 1)) /
                    static_cast<double>(micro_batches);
  use.gathered_numel = static_cast<std::int64_t>(static_cast<double>(use.gathered_numel) * more);
  return use;
}

}  // namespace zero::plan
