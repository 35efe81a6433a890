#include <unistd.h>

#include <utility>

#include "comm/transport.h"
#include "sharding/buffer_pool.h"
#include "sharding/unit_gatherer.h"
#include "sharding/unit_window.h"

namespace zero::sharding {
namespace {

using storage::FlatBuffer;

class WindowGatherer final : public UnitGatherer {
 public:
  WindowGatherer(ShardedModel& model, storage::Ledger& ledger, const std::vector<bool>& resident)
      : model_(model), places_(model.units.size()), pool_(ledger, MemoryKind::kGather, [this, &ledger](auto numel) {
          return model_.home.make_private(ledger, MemoryKind::kGather, model_.param_dtype, numel);
        }) {
    shards_ = offload::make_memory_store(model.home, ledger, {parameter_column(model)}, offload::Reach::kReadable);
    std::vector<offload::StorePart> parts;
    for (std::size_t u = 0; u < places_.size(); ++u) {
      if (!resident[u]) parts.push_back({static_cast<int>(u), model.shard_of(static_cast<int>(u))});
    }
    shards_->add_units(parts);
    open_window(resident);
  }

  ~WindowGatherer() override {
    // Gathers under way write into the pool's memory.
    for (auto& place : places_) {
      if (place.buffer) wait_or_fail(place.work, *place.buffer, process_);
    }
  }

  offload::ShardStore& shards() override { return *shards_; }

  void* gather(int unit, std::string_view for_what) override {
    FlatBuffer* const buffer = pool_.take(model_.units[unit].numel);
    try {
      places_[unit].work = window_->fetch(unit, buffer->data(), for_what);
    } catch (...) {
      pool_.give_back(buffer);
      throw;
    }
    places_[unit].buffer = buffer;
    return buffer->data();
  }
  double wait(int unit) override {
    Work& work = places_[unit].work;
    work.wait();
    return std::exchange(work, {}).moving_seconds();
  }
  void drop(int unit) override { pool_.give_back(std::exchange(places_[unit].buffer, nullptr)); }

  void publish(bool) override { window_->publish(); }
  void publish_gathered() override { window_->publish(); }
  bool one_sided() const override { return window_->one_sided(); }
  Moved moved(int unit) const override {
    const std::int64_t own = model_.shard_of(unit).numel();
    const std::int64_t received = model_.units[unit].numel - own;
    return {received, own, received * static_cast<std::int64_t>(element_nbytes(model_.param_dtype))};
  }

 private:
  struct Place {
    FlatBuffer* buffer = nullptr;  ///< while gathering or gathered
    Work work;
  };

  /// Other ranks fetch from this rank's shards, without its doing, from here on.
  void open_window(const std::vector<bool>& resident) {
    std::vector<comm::Parcel> parcels;
    std::vector<const void*> mine;
    for (std::size_t u = 0; u < places_.size(); ++u) {
      const Unit& unit = model_.units[u];
      const Range shard = resident[u] ? Range{} : model_.shard_of(static_cast<int>(u));
      parcels.push_back(
          {"parameters of " + unit.name, layout::shard_counts(unit.cuts, resident[u] ? Range{} : unit.whole())});
      mine.push_back(shard.empty() ? nullptr : shards_->in_memory(0, static_cast<int>(u), shard));
    }
    window_ = make_unit_window(model_, "parameters", std::move(parcels), mine, model_.param_dtype);
  }

  ShardedModel& model_;
  const int process_ = ::getpid();
  std::vector<Place> places_;  ///< by unit
  std::unique_ptr<offload::ShardStore> shards_;
  std::shared_ptr<comm::ShardWindow> window_;
  BufferPool pool_;
};

}  // namespace

std::unique_ptr<UnitGatherer> make_window_gatherer(ShardedModel& model, storage::Ledger& ledger,
                                                   const std::vector<bool>& resident) {
  return std::make_unique<WindowGatherer>(model, ledger, resident);
}

}  // namespace zero::sharding
