#pragma once
// CopyingStore: what stores that copy whole units have in common: when units are gathered, released and published, and
// units that are resident. Its two kinds:
//
//   host store         units are whole in ShardedModel::device's memory, where the module reads them; or the stream
//                      store, where that device is an accelerator (copying_store.cpp); or the overlapped store, whose
//                      resident units get their updated values while the program goes on (overlapped_store.cpp)
//   accelerator store  units are copied to the module's accelerator, from buffers on the host that a UnitGatherer
//                      fills, or from shards that all ranks reach in place (accelerator_store.cpp)
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "layout/gather_schedule.h"
#include "layout/prefetch_window.h"
#include "sharding/parameter_store.h"
#include "sharding/unit_gatherer.h"

namespace zero::sharding {

class CopyingStore : public ParameterStore {
 public:
  Range writable_range(int unit) const override;
  void visit(int unit, Range range, Access access, Lease lease) override;
  void* in_memory(int unit, Range range) override;

  void start() override;
  void quiesce() override { carry_out(schedule_.quiesce()); }
  void publish(bool frozen_too) override;
  void pin(std::span<const int> units) override;
  void unpin(std::span<const int> units) override;
  at::Tensor pinned_view(int unit) override;
  void* module_values(int parameter) override;
  void broadcast(std::span<const int> parameters, int root) override;
  void reattach(int parameter) override;
  std::shared_ptr<void> keep_alive(int unit) override;
  std::optional<offload::DiskTraffic> disk_traffic() const override;
  std::string disk_description() const override;

  void before_use(intercept::ParameterHandle& handle) override;
  void after_use(intercept::ParameterHandle& handle) noexcept override;

 protected:
  /// `has_residents`: resident units are in memory of this store.
  CopyingStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options,
               bool has_residents);

  /// Also for the progress thread: never changes.
  bool is_resident(int unit) const { return options_.resident[static_cast<std::size_t>(unit)]; }
  /// It is in residents_.
  bool has_own_memory(int unit) const { return has_residents_ && is_resident(unit); }
  void* address(void* base, std::int64_t element) const;
  /// Adds a gather to the communication report.
  void count_gather(UnitGatherer::Moved moved);

  /// Where a resident or gathered unit is whole in ShardedModel::device's memory.
  virtual void* whole(int unit);

  // ---- What the kinds do in their own ways. What a use leads to is called under mutex_.
  /// True if the schedule decides about units: some are not always whole.
  virtual bool is_scheduled() const { return gatherer_ != nullptr; }
  /// Has the shards of this rank that are not in residents_.
  virtual offload::ShardStore& shards() { return gatherer_->shards(); }
  /// Where the module reads a resident or gathered unit.
  virtual void* module_memory(int unit) { return whole(unit); }
  /// Begins to make a unit whole, for `for_what`.
  virtual void begin_gather(int unit, std::string_view for_what);
  /// Returns when its values are in module_memory(), for the streams that enter_use() lets go on: the seconds in which
  /// they came to the host.
  virtual double finish_gather(int unit) { return gatherer_->wait(unit); }
  virtual void end_gather(int unit);
  /// *Collective.* Shards were written.
  virtual void publish_shards(bool frozen_too);
  /// *Collective.* Residents were written: every owner's slice goes to all ranks.
  virtual void gather_residents(bool frozen_too);
  /// Residents have their new values.
  virtual void publish_residents(bool frozen_too) { (void)frozen_too; }
  /// The operator that runs next uses a unit: before it is looked whether that is whole, and when it is.
  virtual void begin_use() {}
  virtual void enter_use(int unit, bool is_timed) {
    (void)unit;
    (void)is_timed;
  }
  // By what clock the prefetch distance is measured.
  virtual bool measuring() const { return times_of_uses_.measuring(); }
  virtual void begin_timed_use() { times_of_uses_.note_use(phase(), base::seconds_now(), timeline_.times.gather); }
  virtual void note_gather(int unit, double seconds) { times_of_uses_.note_gather(this->unit(unit).numel, seconds); }
  virtual std::optional<std::int64_t> end_timed_step() { return times_of_uses_.end_step(); }

  CopyingStoreOptions options_;
  std::vector<storage::FlatBuffer> residents_;  ///< by unit; empty for others
  std::vector<void*> gathered_;                 ///< by unit: where it is, or will be, whole
  std::unique_ptr<UnitGatherer> gatherer_;      ///< null where all units are resident, or in one place for all ranks
  std::mutex mutex_;                            ///< several threads may evaluate

 private:
  /// A part of a resident unit that is sent at once, and each rank's share of it.
  struct Publication {
    Range range;
    std::vector<std::int64_t> counts;
  };

  bool one_sided() const { return !gatherer_ || gatherer_->one_sided(); }
  bool is_gathered(int unit) const { return gatherer_ && !is_resident(unit); }
  /// In a scope a rank may do what others do not: where gathers are calls of all ranks, it gathers nothing ahead.
  bool is_used_alone(int unit) const { return pins_[static_cast<std::size_t>(unit)] > 0 && !one_sided(); }
  /// `for_use`: what has to be waited for is needed by the operator that comes.
  void carry_out(layout::GatherSchedule::Commands commands, bool for_use = false);
  void gather(int unit, bool prefetched);
  void wait_for_gather(int unit, bool for_use);
  /// Called at the end of steps: chooses how far to gather ahead from the times of measured ones. *Collective*
  /// where gathers need their counterparts: all ranks choose the farthest that one of them wants.
  void choose_window();

  const bool has_residents_;
  layout::GatherSchedule schedule_;
  std::vector<int> pins_;                               ///< by unit: pin() calls without their unpin()
  std::vector<std::vector<Publication>> publications_;  ///< by unit, of residents
  std::int64_t largest_numel_ = 0;                      ///< of the units that are gathered
  layout::MeasuredWindow times_of_uses_;                ///< by the host's clock
};

/// Of the host, with CopyingStoreOptions::overlaps_publish. *Collective.*
std::unique_ptr<ParameterStore> make_overlapped_store(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                                      CopyingStoreOptions options);

/// For modules on an accelerator, while shards are on the host or ranks reach the shards of all in place.
std::unique_ptr<ParameterStore> make_accelerator_store(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                                       CopyingStoreOptions options);

}  // namespace zero::sharding
