#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "comm/transport.h"
#include "layout/gather_schedule.h"
#include "layout/prefetch_window.h"
#include "zero/buffer_pool.h"
#include "zero/parameter_store.h"

namespace zero::sharding {
namespace {

using storage::FlatBuffer;

/// Memory of a unit.
struct UnitMemory {
  std::int64_t shard_offset = 0;     ///< in shards_
  std::vector<std::int64_t> counts;  ///< [N] elements of each rank's shard
  FlatBuffer* buffer = nullptr;      ///< while gathering or gathered
  FlatBuffer resident;
  Work work;
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
  CopyingStore(ShardedModel& model, storage::Ledger& ledger, StepBreakdown& times, CopyingStoreOptions options)
      : ParameterStore(model, ledger, times),
        options_(std::move(options)),
        schedule_(unit_numels(model), options_.resident,
                  {.max_live_numel = options_.max_live_numel, .max_reuse_numel = options_.max_reuse_numel}),
        memory_(model.units.size()),
        publications_(model.units.size()),
        pool_(ledger, MemoryKind::kGather, [this, &ledger](std::int64_t numel) {
          return model_.home.make_private(ledger, MemoryKind::kGather, model_.param_dtype, numel);
        }) {
    std::int64_t sharded = 0;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      auto& memory = memory_[i];
      memory.counts = layout::shard_counts(unit(i).cuts, unit(i).whole());
      if (options_.resident[i]) {
        for (const Range range : layout::bucket_ranges(unit(i).numel, options_.publish_bucket_numel)) {
          publications_[i].push_back({range, layout::shard_counts(unit(i).cuts, range)});
        }
        memory.resident = make_resident(ledger, unit(i).numel);
        continue;
      }
      largest_numel_ = std::max(largest_numel_, unit(i).numel);
      memory.shard_offset = sharded;
      sharded += unit(i).shard(model.rank()).numel();
    }
    shards_ = make_resident(ledger, sharded);
    const auto& resident = options_.resident;
    if (std::find(resident.begin(), resident.end(), false) != resident.end()) open_window();
    // One unit ahead, until times have been measured.
    schedule_.set_window(options_.measured_prefetch ? std::min(largest_numel_, options_.prefetch_numel)
                                                    : options_.prefetch_numel);
  }

  ~CopyingStore() override {
    // Gathers under way write into the pool's memory.
    for (auto& memory : memory_) {
      if (memory.buffer) wait_or_fail(memory.work, *memory.buffer, process_);
    }
  }

  Range writable_range(int index) const override {
    // Without sharded optimizer states every rank computes, and so keeps, the whole unit by itself.
    const bool whole = is_resident(index) && !model_.sharding.optimizer_states;
    return whole ? unit(index).whole() : unit(index).shard(model_.rank());
  }
  void update(int index, Range range, Lease lease) override {
    if (!range.empty()) lease(range, in_memory(index, range));
  }
  void* in_memory(int index, Range range) override {
    auto& memory = memory_[index];
    return is_resident(index) ? memory.resident.data_at(range.begin)
                              : shards_.data_at(memory.shard_offset + range.begin - writable_range(index).begin);
  }

  void start() override {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (is_resident(i)) attach(static_cast<int>(i), memory_[i].resident.data());
    }
    gather_residents(/*frozen_too=*/true);
    if (window_) window_->publish();
    counts_ = {};  // the report is about training
    schedule_.reset_peak();
    counts_.prefetch_window_numel = schedule_.window_numel();
  }

  void quiesce() override { carry_out(schedule_.quiesce()); }

  void publish(bool frozen_too) override {
    Stopwatch watch(times_.publish);
    carry_out(schedule_.publish());
    gather_residents(frozen_too);
    if (window_) window_->publish();
    choose_window();
  }

  void pin(std::span<const int> units) override {
    for (int index : units) carry_out(schedule_.pin(index));
  }
  void unpin(std::span<const int> units) override {
    for (int index : units) carry_out(schedule_.unpin(index));
  }

  at::Tensor pinned_view(int index) override { return whole_buffer(index).view(0, unit(index).numel); }

  void broadcast(std::span<const int> parameters, int root) override {
    for (int p : parameters) {
      const auto& parameter = model_.parameters[p];
      auto& memory = memory_[parameter.unit];
      const auto& whole = whole_buffer(parameter.unit);
      model_.transport
          ->broadcast(whole.data_at(parameter.range.begin), parameter.range.numel(), model_.param_dtype, root,
                      {.label = parameter.name})
          .wait();
      if (is_resident(parameter.unit)) continue;
      const Range shard = unit(parameter.unit).shard(model_.rank());
      const Range mine = layout::intersect(shard, parameter.range);
      if (mine.empty()) continue;
      shards_.view(memory.shard_offset + mine.begin - shard.begin, mine.numel())
          .copy_(whole.view(mine.begin, mine.numel()));
    }
    if (window_) window_->publish();
    model_.group.barrier({.label = "broadcast parameters"}).wait();
  }

  void reattach(int p) override {
    const int index = model_.parameters[p].unit;
    if (schedule_.is_whole(index)) attach_parameter(p, whole_buffer(index).data());
  }

  std::shared_ptr<void> keep_alive(int index) override {
    return is_resident(index) ? memory_[index].resident.keep_alive() : nullptr;
  }

  void before_use(intercept::ParameterHandle& handle) override {
    if (!window_) return;  // all units are whole, always
    const std::lock_guard lock(mutex_);
    const int index = handle.unit();
    const auto before = schedule_.current();
    const auto commands = schedule_.use(index, phase());
    if (times_of_uses_.measuring() && before != schedule_.current())
      times_of_uses_.note_use(phase(), base::seconds_now(), times_.gather);
    carry_out(commands, /*for_use=*/true);
  }
  void after_use(intercept::ParameterHandle& handle) noexcept override {
    if (!window_) return;
    const std::lock_guard lock(mutex_);
    const int index = handle.unit();
    carry_out(schedule_.unuse(index));
  }

 private:
  FlatBuffer make_resident(storage::Ledger& ledger, std::int64_t numel) {
    return model_.home.make_readable(ledger, MemoryKind::kParameters, model_.param_dtype, numel);
  }
  /// Other ranks fetch from this rank's shards, without its doing, from here on.
  void open_window() {
    std::vector<comm::Parcel> parcels;
    std::vector<const void*> mine;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool sharded = !is_resident(i);
      parcels.push_back({"parameters of " + unit(i).name,
                         sharded ? memory_[i].counts : std::vector<std::int64_t>(memory_[i].counts.size(), 0)});
      const bool has = sharded && !unit(i).shard(model_.rank()).empty();
      mine.push_back(has ? shards_.data_at(memory_[i].shard_offset) : nullptr);
    }
    window_ =
        model_.transport->make_shard_window("parameters", std::move(parcels), model_.param_dtype, std::move(mine));
  }

  const FlatBuffer& whole_buffer(int index) const {
    return is_resident(index) ? memory_[index].resident : *memory_[index].buffer;
  }
  /// Also for the progress thread: never changes.
  bool is_resident(std::size_t index) const { return options_.resident[index]; }

  /// `for_use`: what has to be waited for is needed by the operator that comes.
  void carry_out(layout::GatherSchedule::Commands commands, bool for_use = false) {
    using Command = layout::GatherSchedule::Command;
    for (std::size_t i = 0; i < commands.size(); ++i) {
      try {
        switch (commands[i].kind) {
          case Command::kGather:
            begin_gather(commands[i].unit, commands[i].prefetched);
            break;
          case Command::kWait:
            wait_for_gather(commands[i].unit, for_use);
            break;
          case Command::kRelease:
            drop(commands[i].unit);
            break;
        }
      } catch (...) {
        schedule_.abandon(i);
        throw;
      }
    }
  }

  void begin_gather(int index, bool prefetched) {
    auto& memory = memory_[index];
    const Unit& the_unit = unit(index);
    FlatBuffer* const buffer = pool_.take(the_unit.numel);
    const int current = schedule_.current().unit;
    try {
      memory.work = window_->fetch(index, buffer->data(), current < 0 ? "(scope)" : unit(current).name);
    } catch (...) {
      pool_.give_back(buffer);
      throw;
    }
    memory.buffer = buffer;
    const std::int64_t own = the_unit.shard(model_.rank()).numel();
    counts_.peak_live_numel = schedule_.peak_live_numel();
    counts_.gathered_numel += the_unit.numel - own;
    counts_.copied_nbytes += own * static_cast<std::int64_t>(element_nbytes(model_.param_dtype));
    ++counts_.gathers;
    if (prefetched) ++counts_.prefetched_gathers;
  }

  void wait_for_gather(int index, bool for_use) {
    Stopwatch watch(times_.gather);
    auto& memory = memory_[index];
    memory.work.wait();
    if (for_use && times_of_uses_.measuring())
      times_of_uses_.note_gather(unit(index).numel, memory.work.moving_seconds());
    memory.work = {};
    attach(index, memory.buffer->data());
  }

  void drop(int index) {
    release(index);
    pool_.give_back(std::exchange(memory_[index].buffer, nullptr));
  }

  /// Called at the end of steps: chooses how far to gather ahead from the times of measured ones. *Collective*
  /// where gathers need their counterparts: all ranks choose the farthest that one of them wants.
  void choose_window() {
    if (!options_.measured_prefetch || largest_numel_ == 0 || options_.prefetch_numel == 0) return;
    auto wanted = times_of_uses_.end_step();
    if (!wanted) return;
    if (!window_->one_sided()) {
      model_.group.all_reduce(&*wanted, 1, DType::kInt64, ReduceOp::kMax, {.label = "prefetch window"}).wait();
    }
    schedule_.set_window(std::min(std::max(*wanted, largest_numel_), options_.prefetch_numel));
    counts_.prefetch_window_numel = schedule_.window_numel();
  }

  /// Sends every owner's slice of resident units to all ranks.
  void gather_residents(bool frozen_too) {
    // Without sharded optimizer states every rank has computed all of it by itself.
    if (model_.world_size() == 1 || !model_.sharding.optimizer_states) return;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const Unit& the_unit = unit(i);
      if (!is_resident(i) || !(the_unit.trainable || frozen_too)) continue;
      for (const Publication& publication : publications_[i]) {
        const Range bucket = publication.range;
        const Range mine = layout::intersect(bucket, the_unit.shard(model_.rank()));
        model_.transport
            ->all_gather(memory_[i].resident.data_at(mine.begin), memory_[i].resident.data_at(bucket.begin),
                         publication.counts, model_.param_dtype,
                         {.label = the_unit.name, .input_stable_until_barrier = true})
            .wait();
        counts_.published_numel += bucket.numel() - mine.numel();
      }
    }
  }

  CopyingStoreOptions options_;
  layout::GatherSchedule schedule_;
  std::vector<UnitMemory> memory_;
  std::vector<std::vector<Publication>> publications_;  ///< by unit, of residents
  FlatBuffer shards_;
  std::shared_ptr<comm::ShardWindow> window_;  ///< null where all units are resident
  std::mutex mutex_;                           ///< several threads may evaluate
  BufferPool pool_;
  std::int64_t largest_numel_ = 0;  ///< of the units that are gathered
  layout::MeasuredWindow times_of_uses_;
};

}  // namespace

std::unique_ptr<ParameterStore> make_copying_store(ShardedModel& model, storage::Ledger& ledger, StepBreakdown& times,
                                                   CopyingStoreOptions options) {
  return std::make_unique<CopyingStore>(model, ledger, times, std::move(options));
}

}  // namespace zero::sharding
