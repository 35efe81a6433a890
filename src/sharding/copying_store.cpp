#include <c10/core/Event.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "device/device_stream.h"
#include "layout/gather_schedule.h"
#include "layout/prefetch_window.h"
#include "sharding/device_times.h"
#include "sharding/device_units.h"
#include "sharding/parameter_store.h"
#include "sharding/shard_home.h"

namespace zero::sharding {
namespace {

using storage::FlatBuffer;

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
  CopyingStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options)
      : ParameterStore(model, ledger, timeline),
        options_(std::move(options)),
        schedule_(unit_numels(model), options_.resident,
                  {.max_live_numel = options_.max_live_numel, .max_reuse_numel = options_.max_reuse_numel}),
        pins_(model.units.size(), 0),
        residents_(model.units.size()),
        gathered_(model.units.size(), nullptr),
        is_uploaded_(model.units.size(), 0),
        publications_(model.units.size()) {
    const auto& resident = options_.resident;
    for (std::size_t i = 0; i < residents_.size(); ++i) {
      if (!resident[i]) {
        largest_numel_ = std::max(largest_numel_, unit(i).numel);
        continue;
      }
      if (options_.shares_shards) continue;
      for (const Range range : layout::bucket_ranges(unit(i).numel, options_.publish_bucket_numel)) {
        publications_[i].push_back({range, layout::shard_counts(unit(i).cuts, range)});
      }
      residents_[i] = model_.home.make_readable(ledger, MemoryKind::kParameters, model_.param_dtype, unit(i).numel);
    }
    if (options_.shares_shards) {
      home_ = model_.module_is_elsewhere() ? make_node_shared_shards(model_, ledger) : make_peer_shards(model_, ledger);
    } else if (std::find(resident.begin(), resident.end(), false) != resident.end()) {
      home_ = options_.disk ? make_disk_shards(model_, ledger, resident, *options_.disk)
                            : make_memory_shards(model_, ledger, resident);
    }
    if (model.module_is_elsewhere() || options_.shares_shards) on_device_.emplace(model_, ledger);
    gathers_there_ = home_ && !on_device_ && !model.passes->in_host_memory();
    if (gathers_there_) user_has_read_.emplace(model.device.type());
    // NCCL's gathers are in the stream of their transport, which is not timed.
    if (gathers_there_) options_.measured_prefetch = false;
    if (on_device_ && options_.measured_prefetch) times_on_device_.emplace(model_.module_device.type());
    // One unit ahead, until times have been measured.
    schedule_.set_window(options_.measured_prefetch ? std::min(largest_numel_, options_.prefetch_numel)
                                                    : options_.prefetch_numel);
  }

  Range writable_range(int index) const override {
    // Without sharded optimizer states every rank computes, and so keeps, the whole unit by itself.
    const bool whole = is_resident(index) && !model_.sharding.optimizer_states;
    return whole ? unit(index).whole() : unit(index).shard(model_.rank());
  }
  void visit(int index, Range range, Access access, Lease lease) override {
    if (range.empty()) return;
    if (has_own_memory(index)) {
      lease(range, residents_[index].data_at(range.begin));
    } else {
      home_->visit(index, range, access, lease);
    }
  }
  void* in_memory(int index, Range range) override {
    return has_own_memory(index) ? residents_[index].data_at(range.begin) : home_->in_memory(index, range);
  }

  void start() override {
    for (std::size_t i = 0; i < residents_.size(); ++i) {
      const int index = static_cast<int>(i);
      if (!is_resident(i)) continue;
      if (on_device_) on_device_->take_for_good(index);
      attach(index, module_memory(index));
    }
    gather_residents(/*frozen_too=*/true);
    if (home_) home_->publish(/*frozen_too=*/true);
    upload_residents(/*frozen_too=*/true);
    counts_ = {};  // the report is about training
    schedule_.reset_peak();
    counts_.prefetch_window_numel = schedule_.window_numel();
  }

  void quiesce() override {
    carry_out(schedule_.quiesce());
    if (on_device_) on_device_->finish();
  }

  /// Of one rank alone: the host's updates of further units go on beside the copy.
  void updated(int index) override {
    if (!on_device_ || model_.world_size() > 1 || !has_own_memory(index) || is_uploaded_[index]) return;
    upload(index, unit(index).whole());
    is_uploaded_[index] = 1;
  }

  void publish(bool frozen_too) override {
    Stopwatch watch(timeline_, &StepBreakdown::publish);
    carry_out(schedule_.publish());
    gather_residents(frozen_too);
    if (home_) home_->publish(frozen_too);
    upload_residents(frozen_too);
    choose_window();
  }

  void pin(std::span<const int> units) override {
    for (int index : units) {
      carry_out(schedule_.pin(index));
      ++pins_[index];
      if (on_device_) on_device_->use(index);  // the program may go past operators here
    }
  }
  void unpin(std::span<const int> units) override {
    for (int index : units) {
      --pins_[index];
      carry_out(schedule_.unpin(index));
    }
  }

  at::Tensor pinned_view(int index) override {
    if (only_on_device()) on_device_->use(index);
    return model_.view(whole(index), model_.param_dtype, unit(index).numel);
  }
  void* module_values(int p) override {
    const auto& parameter = model_.parameters[p];
    return address(module_memory(parameter.unit), parameter.range.begin);
  }

  void collect(std::span<const int> parameters) override {
    if (!on_device_ || only_on_device()) return;
    for (const int p : parameters) {
      const auto& parameter = model_.parameters[p];
      on_device_->download(parameter.unit, parameter.range, address(whole(parameter.unit), parameter.range.begin));
    }
  }

  void broadcast(std::span<const int> parameters, int root) override {
    if (only_on_device()) write_shards(parameters, root);
    const bool all_see_it = home_ && home_->always_whole();
    for (int p : parameters) {
      if (all_see_it) break;
      const auto& parameter = model_.parameters[p];
      void* const values = whole(parameter.unit);
      model_.transport
          ->broadcast(address(values, parameter.range.begin), parameter.range.numel(), model_.param_dtype, root,
                      {.label = parameter.name})
          .wait();
      if (is_resident(parameter.unit)) continue;
      const Range mine = layout::intersect(unit(parameter.unit).shard(model_.rank()), parameter.range);
      if (mine.empty()) continue;
      home_->visit(parameter.unit, mine, Access::kUpdate, [&](Range piece, void* low) {
        model_.passes->copy(low, address(values, piece.begin),
                            static_cast<std::size_t>(piece.numel()) * element_nbytes(model_.param_dtype));
      });
    }
    if (home_) home_->publish_gathered();
    model_.group.barrier({.label = "broadcast parameters"}).wait();
    if (!on_device_) return;
    for (const int p : parameters) {
      upload(model_.parameters[p].unit, model_.parameters[p].range);
    }
  }

  void reattach(int p) override {
    const int index = model_.parameters[p].unit;
    if (schedule_.is_whole(index)) attach_parameter(p, module_memory(index));
  }

  std::optional<offload::DiskTraffic> disk_traffic() const override {
    return home_ ? home_->disk_traffic() : std::nullopt;
  }
  std::string disk_description() const override { return home_ ? home_->disk_description() : std::string(); }

  std::shared_ptr<void> keep_alive(int index) override {
    if (!is_resident(index)) return nullptr;
    return on_device_ ? on_device_->keep_alive(index) : residents_[index].keep_alive();
  }

  void before_use(intercept::ParameterHandle& handle) override {
    const int index = handle.unit();
    if (!home_) {  // all units are whole, always
      if (!on_device_) return;
      const std::lock_guard lock(mutex_);
      return on_device_->use(index);
    }
    const std::lock_guard lock(mutex_);
    if (gathers_there_) note_user();
    if (is_used_alone(index)) return;
    home_->progress();
    const auto before = schedule_.current();
    const auto commands = schedule_.use(index, phase());
    const bool is_timed = before != schedule_.current() && measuring();
    if (is_timed) begin_timed_use();
    carry_out(commands, /*for_use=*/true);
    if (!on_device_) return;
    on_device_->use(index);
    if (is_timed) {
      times_on_device_->begin_compute(device::current_stream(model_.module_device), on_device_->taken_time(index));
    }
  }
  void after_use(intercept::ParameterHandle& handle) noexcept override {
    if (!home_) return;
    const std::lock_guard lock(mutex_);
    const int index = handle.unit();
    if (!is_used_alone(index)) carry_out(schedule_.unuse(index));
  }

 private:
  /// Units are whole in the memory of DeviceUnits only.
  bool only_on_device() const { return home_ && !home_->in_one_piece(); }
  /// Where a resident or gathered unit is, and where the module reads it.
  void* whole(int index) {
    if (only_on_device()) return on_device_->data(index);
    if (!is_resident(index)) return gathered_[index];
    return has_own_memory(index) ? residents_[index].data() : home_->in_memory(index, unit(index).whole());
  }
  void* module_memory(int index) { return on_device_ ? on_device_->data(index) : whole(index); }
  void* address(void* base, std::int64_t element) const {
    return static_cast<std::byte*>(base) + element * static_cast<std::int64_t>(element_nbytes(model_.param_dtype));
  }
  /// In a scope a rank may do what others do not: where gathers are calls of all ranks, it gathers nothing ahead.
  bool is_used_alone(int index) const { return pins_[index] > 0 && !home_->one_sided(); }
  /// Also for the progress thread: never changes.
  bool is_resident(std::size_t index) const { return options_.resident[index]; }
  bool has_own_memory(std::size_t index) const { return is_resident(index) && !options_.shares_shards; }

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

  /// Streams of a device run when they like: what is gathered next goes into memory that they may still read.
  void note_user() {
    const c10::Stream stream = device::current_stream(model_.device);
    if (std::ranges::find(users_, stream) == users_.end()) users_.push_back(stream);
  }
  void wait_for_users() {
    const c10::Stream mine = device::current_stream(model_.device);
    for (const c10::Stream& user : users_) {
      if (user == mine) continue;
      user_has_read_->record(user);
      user_has_read_->block(mine);
    }
  }

  void begin_gather(int index, bool prefetched) {
    if (gathers_there_) wait_for_users();
    const Unit& the_unit = unit(index);
    const int current = schedule_.current().unit;
    gathered_[index] = home_->gather(index, current < 0 ? "(scope)" : unit(current).name);
    counts_.peak_live_numel = schedule_.peak_live_numel();
    if (home_->moves_between_ranks()) {
      const std::int64_t own = the_unit.shard(model_.rank()).numel();
      counts_.gathered_numel += the_unit.numel - own;
      counts_.copied_nbytes += own * static_cast<std::int64_t>(element_nbytes(model_.param_dtype));
    }
    ++counts_.gathers;
    if (prefetched) ++counts_.prefetched_gathers;
    if (!on_device_) return;
    on_device_->take(index);
    if (home_->always_whole()) upload(index, the_unit.whole());
  }

  void wait_for_gather(int index, bool for_use) {
    Stopwatch watch(timeline_, &StepBreakdown::gather, unit(index).name);
    const double seconds = home_->wait(index);
    if (for_use && measuring()) {
      if (times_on_device_) {
        times_on_device_->note_host_gather(seconds);
      } else {
        times_of_uses_.note_gather(unit(index).numel, seconds);
      }
    }
    if (on_device_ && !home_->always_whole()) upload(index, unit(index).whole());
    attach(index, module_memory(index));
  }

  void drop(int index) {
    release(index);
    if (on_device_) on_device_->give_back(index, /*host_is_reused=*/!home_->always_whole());
    gathered_[index] = nullptr;
    home_->drop(index);
  }

  bool measuring() const { return times_on_device_ ? times_on_device_->measuring() : times_of_uses_.measuring(); }
  void begin_timed_use() {
    if (times_on_device_) {
      times_on_device_->begin_use(phase(), device::current_stream(model_.module_device));
    } else {
      times_of_uses_.note_use(phase(), base::seconds_now(), timeline_.times.gather);
    }
  }

  /// Called at the end of steps: chooses how far to gather ahead from the times of measured ones. *Collective*
  /// where gathers need their counterparts: all ranks choose the farthest that one of them wants.
  void choose_window() {
    if (!options_.measured_prefetch || largest_numel_ == 0 || options_.prefetch_numel == 0) return;
    auto wanted = times_on_device_ ? times_on_device_->end_step() : times_of_uses_.end_step();
    if (on_device_) on_device_->time_uploads(measuring() ? &*times_on_device_ : nullptr);
    if (!wanted) return;
    if (!home_->one_sided()) {
      model_.group.all_reduce(&*wanted, 1, DType::kInt64, ReduceOp::kMax, {.label = "prefetch window"}).wait();
    }
    schedule_.set_window(std::min(std::max(*wanted, largest_numel_), options_.prefetch_numel));
    counts_.prefetch_window_numel = schedule_.window_numel();
  }

  /// Writes what `root` has in its copy of these parameters into their owners' shards. *Collective.*
  void write_shards(std::span<const int> parameters, int root) {
    on_device_->finish();  // copies that were begun are to have the old values
    model_.group.barrier({.label = "broadcast parameters"}).wait();
    if (model_.rank() != root) return;
    for (const int p : parameters) {
      const auto& parameter = model_.parameters[p];
      home_->visit_whole(parameter.unit, parameter.range,
                         [&](Range piece, void* low) { on_device_->download(parameter.unit, piece, low); });
    }
  }

  /// Begins to copy a resident or gathered unit to the device.
  void upload(int index, Range range) {
    if (home_ && home_->always_whole()) {
      home_->visit_whole(index, range, [&](Range piece, void* low) { on_device_->upload(index, piece, low); });
    } else {
      on_device_->upload(index, range, address(whole(index), range.begin));
    }
  }

  void upload_residents(bool frozen_too) {
    if (!on_device_) return;
    for (std::size_t i = 0; i < residents_.size(); ++i) {
      const int index = static_cast<int>(i);
      if (std::exchange(is_uploaded_[i], 0)) continue;
      if (!is_resident(i) || !(unit(index).trainable || frozen_too)) continue;
      upload(index, unit(index).whole());
    }
    // What is always whole may be read past operators, too.
    for (std::size_t i = 0; i < residents_.size(); ++i) {
      if (is_resident(i)) on_device_->use(static_cast<int>(i));
    }
    if (options_.updates_in_backward) on_device_->finish();
  }

  /// Sends every owner's slice of resident units to all ranks.
  void gather_residents(bool frozen_too) {
    // Without sharded optimizer states every rank has computed all of it by itself.
    if (model_.world_size() == 1 || !model_.sharding.optimizer_states || options_.shares_shards) return;
    for (std::size_t i = 0; i < residents_.size(); ++i) {
      const Unit& the_unit = unit(i);
      if (!is_resident(i) || !(the_unit.trainable || frozen_too)) continue;
      for (const Publication& publication : publications_[i]) {
        const Range bucket = publication.range;
        const Range mine = layout::intersect(bucket, the_unit.shard(model_.rank()));
        model_.transport
            ->all_gather(residents_[i].data_at(mine.begin), residents_[i].data_at(bucket.begin), publication.counts,
                         model_.param_dtype, {.label = the_unit.name, .input_stable_until_barrier = true})
            .wait();
        counts_.published_numel += bucket.numel() - mine.numel();
      }
    }
  }

  CopyingStoreOptions options_;
  bool gathers_there_ = false;      ///< units that are not resident become whole in the memory of the module's device
  std::vector<c10::Stream> users_;  ///< then: in which parameters were used
  std::optional<c10::Event> user_has_read_;
  layout::GatherSchedule schedule_;
  std::vector<int> pins_;                               ///< by unit: pin() calls without their unpin()
  std::vector<FlatBuffer> residents_;                   ///< by unit; empty for others, and where all share them
  std::vector<void*> gathered_;                         ///< by unit: where it is, or will be, whole
  std::vector<std::uint8_t> is_uploaded_;               ///< by unit: since the last publish(), by updated()
  std::vector<std::vector<Publication>> publications_;  ///< by unit, of residents
  std::unique_ptr<ShardHome> home_;                     ///< null where all units are resident in own memory
  std::optional<DeviceUnits> on_device_;                ///< if the module is on another device
  std::mutex mutex_;                                    ///< several threads may evaluate
  std::int64_t largest_numel_ = 0;                      ///< of the units that are gathered
  layout::MeasuredWindow times_of_uses_;        ///< by the host's clock, where it computes and waits for gathers
  std::optional<DeviceTimes> times_on_device_;  ///< else
};

}  // namespace

std::unique_ptr<ParameterStore> make_copying_store(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                                   CopyingStoreOptions options) {
  return std::make_unique<CopyingStore>(model, ledger, timeline, std::move(options));
}

}  // namespace zero::sharding
