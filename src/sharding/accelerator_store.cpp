#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "device/device_stream.h"
#include "offload/shared_store.h"
#include "sharding/copying_store.h"
#include "sharding/device_times.h"
#include "sharding/device_units.h"

namespace zero::sharding {
namespace {

/// Units are whole in the memory of the module's accelerator, where a stream of their own copies them to.
class AcceleratorStore : public CopyingStore {
 public:
  void start() override {
    for (std::size_t i = 0; i < model_.units.size(); ++i) {
      if (is_resident(static_cast<int>(i))) on_device_.take_for_good(static_cast<int>(i));
    }
    CopyingStore::start();
  }
  void quiesce() override {
    CopyingStore::quiesce();
    on_device_.finish();
  }
  void collect(std::span<const int> parameters) override {
    for (const int p : parameters) {
      const auto& parameter = model_.parameters[p];
      on_device_.download(parameter.unit, parameter.range, address(whole(parameter.unit), parameter.range.begin));
    }
  }
  std::shared_ptr<void> keep_alive(int index) override {
    return is_resident(index) ? on_device_.keep_alive(index) : nullptr;
  }
  void before_use(intercept::ParameterHandle& handle) override {
    if (is_scheduled()) return CopyingStore::before_use(handle);
    const std::lock_guard lock(mutex_);
    on_device_.use(handle.unit());
  }

 protected:
  AcceleratorStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options,
                   bool has_residents)
      : CopyingStore(model, ledger, timeline, std::move(options), has_residents), on_device_(model, ledger) {
    if (options_.measured_prefetch) times_.emplace(model.module_device.type());
  }

  /// Begins to copy a part of a resident or gathered unit to the device.
  virtual void upload(int unit, Range range) = 0;
  void upload_parameters(std::span<const int> parameters) {
    for (const int p : parameters) upload(model_.parameters[p].unit, model_.parameters[p].range);
  }
  /// True if a resident unit has come to the device since the last publication.
  virtual bool is_there(int unit) {
    (void)unit;
    return false;
  }

  void* module_memory(int index) override { return on_device_.data(index); }
  void enter_use(int index, bool is_timed) override {
    on_device_.use(index);
    if (is_timed) times_->begin_compute(device::current_stream(model_.module_device), on_device_.taken_time(index));
  }
  void publish_residents(bool frozen_too) override {
    for (std::size_t i = 0; i < model_.units.size(); ++i) {
      const int index = static_cast<int>(i);
      if (is_there(index)) continue;
      if (is_resident(index) && (unit(index).trainable || frozen_too)) upload(index, unit(index).whole());
    }
    // What is always whole may be read past operators, too.
    for (std::size_t i = 0; i < model_.units.size(); ++i) {
      if (is_resident(static_cast<int>(i))) on_device_.use(static_cast<int>(i));
    }
    if (options_.updates_in_backward) on_device_.finish();
  }

  bool measuring() const override { return times_ && times_->measuring(); }
  void begin_timed_use() override { times_->begin_use(phase(), device::current_stream(model_.module_device)); }
  void note_gather(int, double seconds) override { times_->note_host_gather(seconds); }
  std::optional<std::int64_t> end_timed_step() override {
    const auto wanted = times_->end_step();
    on_device_.time_uploads(times_->measuring() ? &*times_ : nullptr);
    return wanted;
  }

  std::unique_ptr<offload::SharedStore> shards_;  ///< of all units; null where they are in buffers and residents
  DeviceUnits on_device_;                         ///< reads from those

 private:
  std::optional<DeviceTimes> times_;
};

/// From host memory: of residents, and of buffers in which units are gathered.
class UploadingStore final : public AcceleratorStore {
 public:
  UploadingStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options)
      : AcceleratorStore(model, ledger, timeline, std::move(options), /*has_residents=*/true),
        is_uploaded_(model.units.size(), 0) {}

  /// Of one rank alone: the host's updates of further units go on beside the copy.
  void updated(int index) override {
    if (model_.world_size() > 1 || !has_own_memory(index) || is_uploaded_[index]) return;
    upload(index, unit(index).whole());
    is_uploaded_[index] = 1;
  }
  void broadcast(std::span<const int> parameters, int root) override {
    CopyingStore::broadcast(parameters, root);
    upload_parameters(parameters);
  }

 protected:
  void upload(int index, Range range) override { on_device_.upload(index, range, address(whole(index), range.begin)); }
  bool is_there(int index) override { return std::exchange(is_uploaded_[index], 0) != 0; }

  void begin_gather(int index, std::string_view for_what) override {
    CopyingStore::begin_gather(index, for_what);
    on_device_.take(index);
  }
  double finish_gather(int index) override {
    const double seconds = CopyingStore::finish_gather(index);
    upload(index, unit(index).whole());
    return seconds;
  }
  void end_gather(int index) override {
    on_device_.give_back(index, /*host_is_reused=*/true);
    CopyingStore::end_gather(index);
  }

 private:
  std::vector<std::uint8_t> is_uploaded_;  ///< by unit: since the last publish(), by updated()
};

offload::UnitCuts cuts_of(const ShardedModel& model) {
  offload::UnitCuts cuts;
  for (const Unit& unit : model.units) cuts.push_back(unit.cuts);
  return cuts;
}

/// From shards that are on the host once for all ranks. Nothing is gathered before it is copied.
class InPlaceStore : public AcceleratorStore {
 public:
  InPlaceStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options)
      : InPlaceStore(model, ledger, timeline, std::move(options),
                     offload::make_mapped_store(model.data_ranks, ledger, parameter_column(model), cuts_of(model),
                                                model.module_device)) {}

  void broadcast(std::span<const int> parameters, int) override {
    model_.data_ranks.barrier({.label = "broadcast parameters"}).wait();
    upload_parameters(parameters);
  }

 protected:
  InPlaceStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options,
               std::unique_ptr<offload::SharedStore> shards)
      : AcceleratorStore(model, ledger, timeline, std::move(options), /*has_residents=*/false) {
    shards_ = std::move(shards);
  }

  bool is_scheduled() const override { return true; }
  offload::ShardStore& shards() override { return *shards_; }
  void* whole(int index) override { return shards_->all_of(index); }
  void upload(int index, Range range) override {
    shards_->visit_all(index, range, [&](Range piece, void* low) { on_device_.upload(index, piece, low); });
  }
  void begin_gather(int index, std::string_view) override {
    on_device_.take(index);
    upload(index, unit(index).whole());
  }
  double finish_gather(int) override { return 0; }
  void end_gather(int index) override { on_device_.give_back(index, /*host_is_reused=*/false); }
  void publish_shards(bool) override { model_.data_ranks.barrier({.label = "publish parameters"}).wait(); }
};

/// From shards in the memory of their owners' devices, which all ranks of the host read.
class PeerStore final : public InPlaceStore {
 public:
  PeerStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options)
      : InPlaceStore(model, ledger, timeline, std::move(options),
                     offload::make_peer_store(model.data_ranks, *model.shard_groups.front().transport, model.home,
                                              ledger, parameter_column(model), cuts_of(model))) {}

  at::Tensor pinned_view(int index) override {
    on_device_.use(index);
    return CopyingStore::pinned_view(index);
  }
  void collect(std::span<const int>) override {}  // pinned_view() is what the program wrote to
  void broadcast(std::span<const int> parameters, int root) override {
    write_shards(parameters, root);
    InPlaceStore::broadcast(parameters, root);
  }

 protected:
  void* whole(int index) override { return on_device_.data(index); }
  void begin_gather(int index, std::string_view for_what) override {
    const std::int64_t own = model_.shard_of(index).numel();
    const std::int64_t received = unit(index).numel - own;
    count_gather({received, own, received * static_cast<std::int64_t>(element_nbytes(model_.param_dtype))});
    InPlaceStore::begin_gather(index, for_what);
  }
  void publish_shards(bool frozen_too) override {
    device::finish_current_stream(model_.device);
    InPlaceStore::publish_shards(frozen_too);
  }

 private:
  /// Writes what `root` has in its copy of these parameters into their owners' shards. *Collective.*
  void write_shards(std::span<const int> parameters, int root) {
    on_device_.finish();  // copies that were begun are to have the old values
    model_.data_ranks.barrier({.label = "broadcast parameters"}).wait();
    if (model_.rank() != root) return;
    for (const int p : parameters) {
      const auto& parameter = model_.parameters[p];
      shards_->visit_all(parameter.unit, parameter.range,
                         [&](Range piece, void* low) { on_device_.download(parameter.unit, piece, low); });
    }
  }
};

}  // namespace

std::unique_ptr<ParameterStore> make_accelerator_store(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                                       CopyingStoreOptions options) {
  if (!model.module_is_elsewhere()) return std::make_unique<PeerStore>(model, ledger, timeline, std::move(options));
  if (options.shares_shards) return std::make_unique<InPlaceStore>(model, ledger, timeline, std::move(options));
  return std::make_unique<UploadingStore>(model, ledger, timeline, std::move(options));
}

}  // namespace zero::sharding
