#include <unistd.h>

#include <utility>

#include "comm/transport.h"
#include "sharding/buffer_pool.h"
#include "sharding/shard_home.h"

namespace zero::sharding {
namespace {

using storage::FlatBuffer;

class MemoryShards final : public ShardHome {
 public:
  MemoryShards(ShardedModel& model, storage::Ledger& ledger, const std::vector<bool>& resident)
      : model_(model), places_(model.units.size()), pool_(ledger, MemoryKind::kGather, [this, &ledger](auto numel) {
          return model_.home.make_private(ledger, MemoryKind::kGather, model_.param_dtype, numel);
        }) {
    std::int64_t numel = 0;
    for (std::size_t u = 0; u < places_.size(); ++u) {
      if (resident[u]) continue;
      places_[u].offset = numel;
      numel += model.units[u].shard(model.rank()).numel();
    }
    shards_ = model_.home.make_readable(ledger, MemoryKind::kParameters, model_.param_dtype, numel);
    open_window(resident);
  }

  ~MemoryShards() override {
    // Gathers under way write into the pool's memory.
    for (auto& place : places_) {
      if (place.buffer) wait_or_fail(place.work, *place.buffer, process_);
    }
  }

  void visit(int unit, Range range, Access, c10::function_ref<void(Range, void*)> lease) override {
    lease(range, in_memory(unit, range));
  }
  void* in_memory(int unit, Range range) override {
    return shards_.data_at(places_[unit].offset + range.begin - model_.units[unit].shard(model_.rank()).begin);
  }

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

 private:
  struct Place {
    std::int64_t offset = 0;       ///< of the shard in shards_
    FlatBuffer* buffer = nullptr;  ///< while gathering or gathered
    Work work;
  };

  /// Other ranks fetch from this rank's shards, without its doing, from here on.
  void open_window(const std::vector<bool>& resident) {
    std::vector<comm::Parcel> parcels;
    std::vector<const void*> mine;
    for (std::size_t u = 0; u < places_.size(); ++u) {
      const Unit& unit = model_.units[u];
      const auto counts = layout::shard_counts(unit.cuts, resident[u] ? Range{} : unit.whole());
      parcels.push_back({"parameters of " + unit.name, counts});
      const bool has = counts[static_cast<std::size_t>(model_.rank())] > 0;
      mine.push_back(has ? shards_.data_at(places_[u].offset) : nullptr);
    }
    window_ =
        model_.transport->make_shard_window("parameters", std::move(parcels), model_.param_dtype, std::move(mine));
  }

  ShardedModel& model_;
  const int process_ = ::getpid();
  std::vector<Place> places_;  ///< by unit
  FlatBuffer shards_;
  std::shared_ptr<comm::ShardWindow> window_;
  BufferPool pool_;
};

}  // namespace

std::unique_ptr<ShardHome> make_memory_shards(ShardedModel& model, storage::Ledger& ledger,
                                              const std::vector<bool>& resident) {
  return std::make_unique<MemoryShards>(model, ledger, resident);
}

}  // namespace zero::sharding
