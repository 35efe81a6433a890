#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "base/clock.h"
#include "comm/transport.h"
#include "layout/prefetch_window.h"
#include "zero/buffer_pool.h"
#include "zero/parameter_store.h"

namespace zero::sharding {
namespace {

using storage::FlatBuffer;

enum class State : std::uint8_t { kReleased, kGathering, kGathered, kResident };

struct UnitState {
  State state = State::kReleased;
  int pins = 0;                      ///< operators and scopes that need the unit whole
  std::int64_t shard_offset = 0;     ///< in shards_
  std::vector<std::int64_t> counts;  ///< [N] elements of each rank's shard
  FlatBuffer* buffer = nullptr;      ///< while gathering or gathered
  FlatBuffer resident;
  Work work;
  double gather_seconds = 0;  ///< that its last gather took to move
  bool prefetched = false;
};

/// A part of a resident unit that is sent at once, and each rank's share of it.
struct Publication {
  Range range;
  std::vector<std::int64_t> counts;
};

std::vector<std::int64_t> unit_numels(const ShardedModel& model) {
  std::vector<std::int64_t> numels;
  for (const auto& unit : model.units) numels.push_back(unit.numel);
  return numels;
}

class CopyingStore final : public ParameterStore {
 public:
  CopyingStore(ShardedModel& model, storage::Ledger& ledger, StepBreakdown& times,
               CopyingStoreOptions options)
      : ParameterStore(model, ledger, times),
        options_(std::move(options)),
        states_(model.units.size()),
        publications_(model.units.size()),
        pool_(ledger, MemoryKind::kGather, [this, &ledger](std::int64_t numel) {
          return FlatBuffer::make_private(ledger, MemoryKind::kGather, model_.low_dtype, numel,
                                          model_.device);
        }) {
    std::int64_t sharded = 0;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      auto& state = states_[i];
      state.counts = layout::shard_counts(unit(i).cuts, unit(i).whole());
      if (options_.resident[i]) {
        for (const Range range : layout::bucket_ranges(unit(i).numel, options_.publish_bucket_numel)) {
          publications_[i].push_back({range, layout::shard_counts(unit(i).cuts, range)});
        }
        state.state = State::kResident;
        state.resident = make_resident(ledger, unit(i).numel);
        continue;
      }
      ++released_;
      largest_numel_ = std::max(largest_numel_, unit(i).numel);
      state.shard_offset = sharded;
      sharded += unit(i).shard(model.rank()).numel();
    }
    shards_ = make_resident(ledger, sharded);
    if (released_ > 0) open_window();
    // One unit ahead, until times have been measured.
    window_numel_ = options_.measured_prefetch ? std::min(largest_numel_, options_.prefetch_numel)
                                               : options_.prefetch_numel;
  }

  ~CopyingStore() override {
    // Gathers under way write into the pool's memory.
    for (auto& state : states_) {
      if (state.buffer) finish_or_fail(state.work, *state.buffer, process_);
    }
  }

  Range writable_range(int index) const override {
    // Without sharded optimizer states every rank computes, and so keeps, the whole unit by itself.
    const bool whole = is_resident(index) && !model_.sharding.optimizer_states;
    return whole ? unit(index).whole() : unit(index).shard(model_.rank());
  }
  void* writable(int index) override {
    const Range range = writable_range(index);
    if (range.empty()) return nullptr;
    auto& state = states_[index];
    return is_resident(index) ? state.resident.data_at(range.begin) : shards_.data_at(state.shard_offset);
  }
  at::Tensor writable_view(int index) override {
    const Range range = writable_range(index);
    auto& state = states_[index];
    return is_resident(index) ? state.resident.view(range.begin, range.numel())
                              : shards_.view(state.shard_offset, range.numel());
  }

  void start() override {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (is_resident(i)) attach(static_cast<int>(i), states_[i].resident.data());
    }
    spread_residents(/*frozen_too=*/true);
    if (window_) window_->publish();
    counts_ = {};  // the report is about training
    counts_.prefetch_window_numel = window_numel_;
  }

  void quiesce() override {
    for (std::size_t i = 0; i < states_.size(); ++i) finish_gather(static_cast<int>(i));
  }

  void publish(bool frozen_too) override {
    Stopwatch watch(times_.publish);
    for (std::size_t i = 0; i < states_.size(); ++i) drop(static_cast<int>(i));  // stale from here on
    spread_residents(frozen_too);
    if (window_) window_->publish();
    choose_window();
  }

  void pin(std::span<const int> units) override {
    for (int index : units) {
      ++states_[index].pins;
      make_whole(index);
    }
  }
  void unpin(std::span<const int> units) override {
    for (int index : units) {
      if (--states_[index].pins == 0) drop(index);
    }
  }

  at::Tensor pinned_view(int index) override { return whole_buffer(index).view(0, unit(index).numel); }

  void spread(std::span<const int> parameters, int root) override {
    for (int p : parameters) {
      const auto& parameter = model_.parameters[p];
      auto& state = states_[parameter.unit];
      const auto& whole = whole_buffer(parameter.unit);
      model_.group
          .broadcast(whole.data_at(parameter.range.begin), parameter.range.numel(), model_.low_dtype, root,
                     {.label = parameter.name})
          .wait();
      if (is_resident(parameter.unit)) continue;
      const Range shard = unit(parameter.unit).shard(model_.rank());
      const Range mine = layout::intersect(shard, parameter.range);
      if (mine.empty()) continue;
      shards_.view(state.shard_offset + mine.begin - shard.begin, mine.numel())
          .copy_(whole.view(mine.begin, mine.numel()));
    }
    if (window_) window_->publish();
    model_.group.barrier({.label = "spread parameters"}).wait();
  }

  void reattach(int p) override {
    const int index = model_.parameters[p].unit;
    if (states_[index].state == State::kResident || states_[index].state == State::kGathered)
      attach_parameter(p, whole_buffer(index).data());
  }

  std::shared_ptr<void> keep_alive(int index) override {
    return is_resident(index) ? states_[index].resident.keep_alive() : nullptr;
  }

  void before_use(intercept::ParameterHandle& handle) override {
    if (!window_) return;  // all units are whole, always
    const std::lock_guard lock(mutex_);
    const int index = handle.unit();
    auto& state = states_[index];
    const int before = order_.current();
    const int phase_before = order_.current_phase();
    order_.use(index, phase());
    if (measuring_ && (before != index || phase_before != order_.current_phase())) note_use();
    ++state.pins;  // first, so that making room does not drop it
    try {
      if (before >= 0 && before != index) leave(before);
      if (!is_resident(index)) {
        make_whole(index);
        prefetch();
      } else if (before != index) {
        prefetch();
      }
    } catch (...) {
      --state.pins;
      throw;
    }
  }
  void after_use(intercept::ParameterHandle& handle) noexcept override {
    if (!window_) return;
    const std::lock_guard lock(mutex_);
    const int index = handle.unit();
    // An operator that used two units leaves the first one only now.
    if (--states_[index].pins == 0 && index != order_.current()) leave(index);
  }

 private:
  FlatBuffer make_resident(storage::Ledger& ledger, std::int64_t numel) {
    return model_.device.is_cpu() ? FlatBuffer::make_readable(ledger, MemoryKind::kParameters,
                                                              model_.low_dtype, numel, model_.group)
                                  : FlatBuffer::make_private(ledger, MemoryKind::kParameters,
                                                             model_.low_dtype, numel, model_.device);
  }
  /// Other ranks fetch from this rank's shards, without its doing, from here on.
  void open_window() {
    std::vector<comm::Parcel> parcels;
    std::vector<const void*> mine;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const bool sharded = !is_resident(i);
      parcels.push_back(
          {"parameters of " + unit(i).name,
           sharded ? states_[i].counts : std::vector<std::int64_t>(states_[i].counts.size(), 0)});
      const bool has = sharded && !unit(i).shard(model_.rank()).empty();
      mine.push_back(has ? shards_.data_at(states_[i].shard_offset) : nullptr);
    }
    window_ = comm::make_shard_window(model_.group, "parameters", std::move(parcels), model_.low_dtype,
                                      std::move(mine));
  }

  const FlatBuffer& whole_buffer(int index) const {
    return is_resident(index) ? states_[index].resident : *states_[index].buffer;
  }
  /// Also for the progress thread: never changes.
  bool is_resident(std::size_t index) const { return options_.resident[index]; }

  /// The unit was used before and another one is now: drop it unless it is needed again soon.
  void leave(int index) {
    const auto& state = states_[index];
    if (state.state != State::kGathered || state.pins > 0) return;
    const std::int64_t distance = order_.reuse_distance(index);
    if (distance >= 0 && distance <= options_.max_reuse_numel && live_numel_ <= options_.max_live_numel)
      return;
    drop(index);
  }

  void drop(int index) {
    auto& state = states_[index];
    finish_gather(index);
    if (state.state != State::kGathered || state.pins > 0) return;
    release(index);
    pool_.give_back(state.buffer);
    state.buffer = nullptr;
    state.state = State::kReleased;
    ++released_;
    live_numel_ -= unit(index).numel;
  }

  /// Drops units that are not in use, those needed latest first, until `numel` more fit.
  bool make_room(std::int64_t numel, bool for_prefetch) {
    while (live_numel_ + numel > options_.max_live_numel) {
      if (for_prefetch) return false;  // looking ahead never costs what is live
      int victim = -1;
      std::int64_t farthest = -1;
      for (std::size_t i = 0; i < states_.size(); ++i) {
        if (states_[i].state != State::kGathered || states_[i].pins > 0) continue;
        const std::int64_t known = order_.reuse_distance(static_cast<int>(i));
        const std::int64_t distance = known < 0 ? INT64_MAX : known;
        if (victim < 0 || distance > farthest) {
          victim = static_cast<int>(i);
          farthest = distance;
        }
      }
      if (victim < 0) return false;
      drop(victim);
    }
    return true;
  }

  void begin_gather(int index, bool prefetched) {
    auto& state = states_[index];
    const Unit& the_unit = unit(index);
    state.buffer = pool_.take(the_unit.numel);
    const Range shard = the_unit.shard(model_.rank());
    const int current = order_.current();
    state.work = window_->fetch(index, state.buffer->data(), current < 0 ? "(scope)" : unit(current).name);
    state.state = State::kGathering;
    --released_;
    state.prefetched = prefetched;
    live_numel_ += the_unit.numel;
    counts_.peak_live_numel = std::max(counts_.peak_live_numel, live_numel_);
    counts_.gathered_numel += the_unit.numel - shard.numel();
    counts_.copied_nbytes += shard.numel() * static_cast<std::int64_t>(element_nbytes(model_.low_dtype));
    ++counts_.gathers;
    if (prefetched) {
      ++counts_.prefetched_gathers;
      prefetching_numel_ += the_unit.numel;
    }
  }

  void finish_gather(int index) {
    auto& state = states_[index];
    if (state.state != State::kGathering) return;
    Stopwatch watch(times_.gather);
    state.work.wait();
    state.gather_seconds = state.work.moving_seconds();
    state.work = {};
    if (state.prefetched) prefetching_numel_ -= unit(index).numel;
    attach(index, state.buffer->data());
    state.state = State::kGathered;
  }

  void make_whole(int index) {
    auto& state = states_[index];
    if (state.state == State::kReleased) {
      make_room(unit(index).numel, /*for_prefetch=*/false);
      begin_gather(index, /*prefetched=*/false);
    }
    const bool arrives = state.state == State::kGathering;
    finish_gather(index);
    if (measuring_ && arrives && !timeline_.empty()) {
      timeline_.back().gathered_numel += unit(index).numel;
      timeline_.back().gather_seconds += state.gather_seconds;
    }
  }

  /// Begins to gather the units that come next, as far as the options allow. Depends on the history of
  /// uses only: where gathers need their counterparts, all ranks begin the same ones in the same order.
  void prefetch() {
    if (released_ == 0) return;  // whole already, or under way: nothing to look for
    layout::UseOrder::Walk walk(order_);
    for (int ahead = 1; prefetching_numel_ < window_numel_; ++ahead) {
      const auto [next, next_phase] = walk.next();
      if (next < 0 || next == order_.current() || ahead > static_cast<int>(states_.size())) return;
      // After backward comes a step, which makes everything gathered before it stale.
      if (next_phase < order_.current_phase()) return;
      if (states_[next].state != State::kReleased) continue;
      const std::int64_t numel = unit(next).numel;
      if (prefetching_numel_ + numel > window_numel_ || !make_room(numel, true)) return;
      begin_gather(next, /*prefetched=*/true);
    }
  }

  /// A unit is used, in a step that is measured.
  void note_use() {
    constexpr std::size_t kMostUses = 100'000;  // evaluation without end between two steps
    if (timeline_.size() >= kMostUses) return;
    const double now = base::seconds_now();
    if (!timeline_.empty())
      timeline_.back().compute_seconds = now - used_at_ - (times_.gather - waited_before_);
    used_at_ = now;
    waited_before_ = times_.gather;
    timeline_.push_back({.phase = order_.current_phase()});
  }

  /// Called at the end of steps: chooses how far to gather ahead from the times of this one, and after as
  /// many steps again. *Collective* where gathers need their counterparts: all ranks choose the farthest that
  /// one of them wants.
  void choose_window() {
    constexpr double kSlack = 2;  // other messages share the way, and times vary
    if (!options_.measured_prefetch || largest_numel_ == 0 || options_.prefetch_numel == 0) return;
    const bool complete = !timeline_.empty() && timeline_.back().phase == 1;
    ++steps_;
    if (complete) {
      std::int64_t wanted = layout::prefetch_window(timeline_, kSlack);
      if (!window_->one_sided()) {
        model_.group.all_reduce(&wanted, 1, DType::kInt64, ReduceOp::kMax, {.label = "prefetch window"})
            .wait();
      }
      window_numel_ = std::min(std::max(wanted, largest_numel_), options_.prefetch_numel);
      counts_.prefetch_window_numel = window_numel_;
      next_choice_ = 2 * steps_;
    }
    timeline_.clear();
    measuring_ = steps_ + 1 >= next_choice_;
  }

  /// Sends every owner's slice of resident units to all ranks.
  void spread_residents(bool frozen_too) {
    // Without sharded optimizer states every rank has computed all of it by itself.
    if (model_.world_size() == 1 || !model_.sharding.optimizer_states) return;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const Unit& the_unit = unit(i);
      if (!is_resident(i) || !(the_unit.trainable || frozen_too)) continue;
      for (const Publication& publication : publications_[i]) {
        const Range bucket = publication.range;
        const Range mine = layout::intersect(bucket, the_unit.shard(model_.rank()));
        model_.group
            .all_gather(states_[i].resident.data_at(mine.begin), states_[i].resident.data_at(bucket.begin),
                        publication.counts, model_.low_dtype,
                        {.label = the_unit.name, .input_stable_until_barrier = true})
            .wait();
        counts_.published_numel += bucket.numel() - mine.numel();
      }
    }
  }

  layout::UseOrder order_{unit_numels(model_)};
  CopyingStoreOptions options_;
  std::vector<UnitState> states_;
  std::vector<std::vector<Publication>> publications_;  ///< by unit, of residents
  FlatBuffer shards_;
  std::shared_ptr<comm::ShardWindow> window_;  ///< null where all units are resident
  std::mutex mutex_;                           ///< several threads may evaluate
  BufferPool pool_;
  int released_ = 0;             ///< units in that state
  std::int64_t live_numel_ = 0;  ///< gathering and gathered, residents apart
  std::int64_t prefetching_numel_ = 0;
  std::int64_t largest_numel_ = 0;  ///< of the units that are gathered
  std::int64_t window_numel_ = 0;   ///< prefetching_numel_ at most

  // Measured prefetch. Every decision depends on what all ranks have in common: uses, steps, an agreed
  // window.
  bool measuring_ = false;
  std::int64_t steps_ = 0;
  std::int64_t next_choice_ = 3;  ///< at the end of this step; the order of use is known from the second on
  std::vector<layout::TimedUse> timeline_;
  double used_at_ = 0, waited_before_ = 0;
};

}  // namespace

std::unique_ptr<ParameterStore> make_copying_store(ShardedModel& model, storage::Ledger& ledger,
                                                   StepBreakdown& times, CopyingStoreOptions options) {
  return std::make_unique<CopyingStore>(model, ledger, times, std::move(options));
}

}  // namespace zero::sharding
