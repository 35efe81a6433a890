#include "sharding/copying_store.h"

#include <c10/core/Event.h>

#include <algorithm>
#include <utility>

#include "device/device_stream.h"

namespace zero::sharding {
namespace {

std::vector<std::int64_t> unit_numels(const ShardedModel& model) {
  std::vector<std::int64_t> numels;
  for (const auto& unit : model.units) numels.push_back(unit.numel);
  return numels;
}

bool are_all_resident(const CopyingStoreOptions& options) {
  return std::ranges::find(options.resident, false) == options.resident.end();
}

}  // namespace

CopyingStore::CopyingStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                           CopyingStoreOptions options, bool has_residents)
    : ParameterStore(model, ledger, timeline),
      options_(std::move(options)),
      residents_(model.units.size()),
      gathered_(model.units.size(), nullptr),
      has_residents_(has_residents),
      schedule_(unit_numels(model), options_.resident,
                {.max_live_numel = options_.max_live_numel, .max_reuse_numel = options_.max_reuse_numel}),
      pins_(model.units.size(), 0),
      publications_(model.units.size()) {
  for (std::size_t i = 0; i < residents_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (!is_resident(index)) {
      largest_numel_ = std::max(largest_numel_, unit(index).numel);
      continue;
    }
    if (!has_residents_) continue;
    for (const Range range : layout::bucket_ranges(unit(index).numel, options_.publish_bucket_numel)) {
      publications_[i].push_back({range, layout::shard_counts(unit(index).cuts, range)});
    }
    residents_[i] = model_.home.make_readable(ledger, MemoryKind::kParameters, model_.param_dtype, unit(index).numel);
  }
  if (has_residents_ && !are_all_resident(options_)) {
    gatherer_ = options_.disk   ? make_disk_gatherer(model_, ledger, options_.resident, *options_.disk)
                : options_.form ? make_quantized_gatherer(model_, ledger, options_.resident, *options_.form)
                                : make_window_gatherer(model_, ledger, options_.resident);
  }
  if (options_.form) {
    refuse_writes(
        "operators read rounded values (zero_optimization.zero_quantized_weights), and what is made of them would "
        "round its master weights; write it within zero::GatheredParameters");
  }
  // One unit ahead, until times have been measured.
  schedule_.set_window(options_.measured_prefetch ? std::min(largest_numel_, options_.prefetch_numel)
                                                  : options_.prefetch_numel);
}

Range CopyingStore::writable_range(int index) const {
  // Without sharded optimizer states every rank computes, and so keeps, the whole unit by itself.
  const bool whole = is_resident(index) && !model_.sharding.optimizer_states;
  return whole ? unit(index).whole() : model_.shard_of(index);
}

void CopyingStore::visit(int index, Range range, Access access, Lease lease) {
  if (range.empty()) return;
  if (has_own_memory(index)) return lease(range, residents_[index].data_at(range.begin));
  shards().for_each(index, range, range.numel(), access, offload::kAllColumns,
                    [&](Range piece, std::span<void* const> memory) { lease(piece, memory[0]); });
}

void* CopyingStore::in_memory(int index, Range range) {
  return has_own_memory(index) ? residents_[index].data_at(range.begin) : shards().in_memory(0, index, range);
}

void CopyingStore::start() {
  for (std::size_t i = 0; i < residents_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (is_resident(index)) attach(index, module_memory(index));
  }
  gather_residents(/*frozen_too=*/true);
  publish_shards(/*frozen_too=*/true);
  publish_residents(/*frozen_too=*/true);
  counts_ = {};  // the report is about training
  schedule_.reset_peak();
  counts_.prefetch_window_numel = schedule_.window_numel();
}

void CopyingStore::publish(bool frozen_too) {
  Stopwatch watch(timeline_, &StepBreakdown::publish);
  carry_out(schedule_.publish());
  gather_residents(frozen_too);
  publish_shards(frozen_too);
  publish_residents(frozen_too);
  choose_window();
}

void CopyingStore::publish_shards(bool frozen_too) {
  if (gatherer_) gatherer_->publish(frozen_too);
}

void CopyingStore::pin(std::span<const int> units) {
  for (int index : units) {
    carry_out(schedule_.pin(index));
    if (++pins_[index] == 1 && is_gathered(index)) count_gather(gatherer_->make_exact(index));
    enter_use(index, /*is_timed=*/false);  // the program may go past operators here
  }
}

void CopyingStore::unpin(std::span<const int> units) {
  for (int index : units) {
    --pins_[index];
    carry_out(schedule_.unpin(index));
    if (pins_[index] == 0 && is_gathered(index) && schedule_.is_whole(index)) count_gather(gatherer_->end_exact(index));
  }
}

at::Tensor CopyingStore::pinned_view(int index) {
  return model_.view(whole(index), model_.param_dtype, unit(index).numel);
}

void* CopyingStore::module_values(int p) {
  const auto& parameter = model_.parameters[p];
  return address(module_memory(parameter.unit), parameter.range.begin);
}

void CopyingStore::broadcast(std::span<const int> parameters, int root) {
  for (int p : parameters) {
    const auto& parameter = model_.parameters[p];
    void* const values = whole(parameter.unit);
    model_.group_of(parameter.unit)
        .transport
        ->broadcast(address(values, parameter.range.begin), parameter.range.numel(), model_.param_dtype, root,
                    {.label = parameter.name})
        .wait();
    if (is_resident(parameter.unit)) continue;
    const Range mine = layout::intersect(model_.shard_of(parameter.unit), parameter.range);
    visit(parameter.unit, mine, Access::kUpdate, [&](Range piece, void* low) {
      model_.passes->copy(low, address(values, piece.begin),
                          static_cast<std::size_t>(piece.numel()) * element_nbytes(model_.param_dtype));
    });
  }
  if (gatherer_) gatherer_->publish_gathered();
  model_.data_ranks.barrier({.label = "broadcast parameters"}).wait();
}

void CopyingStore::reattach(int p) {
  const int index = model_.parameters[p].unit;
  if (schedule_.is_whole(index)) attach_parameter(p, module_memory(index));
}

std::shared_ptr<void> CopyingStore::keep_alive(int index) {
  return is_resident(index) ? residents_[index].keep_alive() : nullptr;
}

std::optional<offload::DiskTraffic> CopyingStore::disk_traffic() const {
  return gatherer_ ? gatherer_->shards().disk_traffic() : std::nullopt;
}

std::string CopyingStore::disk_description() const {
  return gatherer_ ? gatherer_->shards().disk_description("parameters") : std::string();
}

void CopyingStore::before_use(intercept::ParameterHandle& handle) {
  if (!is_scheduled()) return;
  const int index = handle.unit();
  const std::lock_guard lock(mutex_);
  begin_use();
  if (is_used_alone(index)) return;
  if (gatherer_) gatherer_->progress();
  const auto before = schedule_.current();
  const auto commands = schedule_.use(index, phase());
  const bool is_timed = before != schedule_.current() && measuring();
  if (is_timed) begin_timed_use();
  carry_out(commands, /*for_use=*/true);
  enter_use(index, is_timed);
}

void CopyingStore::after_use(intercept::ParameterHandle& handle) noexcept {
  if (!is_scheduled()) return;
  const std::lock_guard lock(mutex_);
  const int index = handle.unit();
  if (!is_used_alone(index)) carry_out(schedule_.unuse(index));
}

void* CopyingStore::whole(int index) { return is_resident(index) ? residents_[index].data() : gathered_[index]; }

void* CopyingStore::address(void* base, std::int64_t element) const {
  return static_cast<std::byte*>(base) + element * static_cast<std::int64_t>(element_nbytes(model_.param_dtype));
}

void CopyingStore::carry_out(layout::GatherSchedule::Commands commands, bool for_use) {
  using Command = layout::GatherSchedule::Command;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    try {
      switch (commands[i].kind) {
        case Command::kGather:
          gather(commands[i].unit, commands[i].prefetched);
          break;
        case Command::kWait:
          wait_for_gather(commands[i].unit, for_use);
          break;
        case Command::kRelease:
          release(commands[i].unit);
          end_gather(commands[i].unit);
          break;
      }
    } catch (...) {
      schedule_.abandon(i);
      throw;
    }
  }
}

void CopyingStore::gather(int index, bool prefetched) {
  const int current = schedule_.current().unit;
  begin_gather(index, current < 0 ? "(scope)" : unit(current).name);
  counts_.peak_live_numel = schedule_.peak_live_numel();
  ++counts_.gathers;
  if (prefetched) ++counts_.prefetched_gathers;
}

void CopyingStore::begin_gather(int index, std::string_view for_what) {
  gathered_[index] = gatherer_->gather(index, for_what);
  count_gather(gatherer_->moved(index));
}

void CopyingStore::count_gather(UnitGatherer::Moved moved) {
  counts_.gathered_numel += moved.received_numel;
  counts_.received_nbytes += moved.received_nbytes;
  counts_.copied_nbytes += moved.copied_numel * static_cast<std::int64_t>(element_nbytes(model_.param_dtype));
}

void CopyingStore::wait_for_gather(int index, bool for_use) {
  Stopwatch watch(timeline_, &StepBreakdown::gather, unit(index).name);
  const double seconds = finish_gather(index);
  if (for_use && measuring()) note_gather(index, seconds);
  attach(index, module_memory(index));
}

void CopyingStore::end_gather(int index) {
  gathered_[index] = nullptr;
  gatherer_->drop(index);
}

void CopyingStore::choose_window() {
  if (!options_.measured_prefetch || largest_numel_ == 0 || options_.prefetch_numel == 0) return;
  auto wanted = end_timed_step();
  if (!wanted) return;
  if (!one_sided()) {
    model_.data_ranks.all_reduce(&*wanted, 1, DType::kInt64, ReduceOp::kMax, {.label = "prefetch window"}).wait();
  }
  schedule_.set_window(std::min(std::max(*wanted, largest_numel_), options_.prefetch_numel));
  counts_.prefetch_window_numel = schedule_.window_numel();
}

void CopyingStore::gather_residents(bool frozen_too) {
  // Without sharded optimizer states every rank has computed all of it by itself.
  if (model_.world_size() == 1 || !model_.sharding.optimizer_states || !has_residents_) return;
  for (std::size_t i = 0; i < residents_.size(); ++i) {
    const Unit& the_unit = model_.units[i];
    if (!options_.resident[i] || !(the_unit.trainable || frozen_too)) continue;
    for (const Publication& publication : publications_[i]) {
      const Range bucket = publication.range;
      const Range mine = layout::intersect(bucket, model_.shard_of(static_cast<int>(i)));
      model_.group_of(static_cast<int>(i))
          .transport
          ->all_gather(residents_[i].data_at(mine.begin), residents_[i].data_at(bucket.begin), publication.counts,
                       model_.param_dtype, {.label = the_unit.name, .input_stable_until_barrier = true})
          .wait();
      counts_.published_numel += bucket.numel() - mine.numel();
    }
  }
}

namespace {

class HostStore final : public CopyingStore {
 public:
  HostStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options)
      : CopyingStore(model, ledger, timeline, std::move(options), /*has_residents=*/true) {}
};

/// Where ShardedModel::device is an accelerator: its streams run when they like, and what is gathered next goes into
/// memory that they may still read.
class StreamStore final : public CopyingStore {
 public:
  StreamStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options)
      : CopyingStore(model, ledger, timeline, std::move(options), /*has_residents=*/true),
        user_has_read_(model.device.type()) {}

 protected:
  void begin_use() override {
    const c10::Stream stream = device::current_stream(model_.device);
    if (std::ranges::find(users_, stream) == users_.end()) users_.push_back(stream);
  }
  void begin_gather(int index, std::string_view for_what) override {
    const c10::Stream mine = device::current_stream(model_.device);
    for (const c10::Stream& user : users_) {
      if (user == mine) continue;
      user_has_read_.record(user);
      user_has_read_.block(mine);
    }
    CopyingStore::begin_gather(index, for_what);
  }

 private:
  std::vector<c10::Stream> users_;  ///< in which parameters were used
  c10::Event user_has_read_;
};

}  // namespace

std::unique_ptr<ParameterStore> make_copying_store(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                                   CopyingStoreOptions options) {
  if (model.module_is_elsewhere() || options.shares_shards)
    return make_accelerator_store(model, ledger, timeline, std::move(options));
  if (model.passes->in_host_memory() && options.overlaps_publish)
    return make_overlapped_store(model, ledger, timeline, std::move(options));
  if (model.passes->in_host_memory() || are_all_resident(options))
    return std::make_unique<HostStore>(model, ledger, timeline, std::move(options));
  options.measured_prefetch = false;  // NCCL's gathers are in the stream of their transport, which is not timed
  return std::make_unique<StreamStore>(model, ledger, timeline, std::move(options));
}

}  // namespace zero::sharding
