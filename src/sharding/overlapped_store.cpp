// The host store whose resident units get their updated values while the program goes on (late_units.h).
#include <utility>

#include "sharding/copying_store.h"
#include "sharding/late_store.h"
#include "sharding/unit_window.h"

namespace zero::sharding {
namespace {

class OverlappedStore final : public LateStore<CopyingStore> {
 public:
  OverlappedStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, CopyingStoreOptions options)
      : LateStore(model, ledger, timeline, std::move(options), /*has_residents=*/true), works_(model.units.size()) {
    late_.set_units(shared_residents());
    open_window();
  }
  ~OverlappedStore() override {
    for (std::size_t u = 0; u < works_.size(); ++u) wait_or_fail(works_[u], residents_[u], process_);
  }

 protected:
  void gather_residents(bool frozen_too) override {
    if (!window_->one_sided()) return CopyingStore::gather_residents(frozen_too);
    late_.complete_all();
    window_->publish();
    std::vector<int> updated;
    for (const int index : late_.order()) {
      if (!(unit(index).trainable || frozen_too)) continue;
      release(index, LateUnits::why_released);
      counts_.published_numel += unit(index).numel - model_.shard_of(index).numel();
      updated.push_back(index);
    }
    late_.begin(updated);
    if (frozen_too) late_.complete_all();
  }

 private:
  void fetch(int index) override {
    const auto u = static_cast<std::size_t>(index);
    works_[u] = window_->fetch(index, residents_[u].data(), "the next forward");
  }
  bool moved(int index) override { return works_[static_cast<std::size_t>(index)].test(); }
  void wait(int index) override {
    Work& work = works_[static_cast<std::size_t>(index)];
    work.wait();
    work = {};
  }
  void attach(int index) override { ParameterStore::attach(index, module_memory(index)); }

  std::vector<int> shared_residents() const {
    std::vector<int> units;
    for (std::size_t u = 0; u < model_.units.size(); ++u) {
      if (is_resident(static_cast<int>(u)) && model_.is_sharded(static_cast<int>(u)))
        units.push_back(static_cast<int>(u));
    }
    return units;
  }

  void open_window() {
    std::vector<comm::Parcel> parcels;
    std::vector<const void*> mine;
    for (std::size_t u = 0; u < model_.units.size(); ++u) {
      const int index = static_cast<int>(u);
      const Range all = is_resident(index) ? unit(index).whole() : Range{};
      const Range shard = layout::intersect(all, model_.shard_of(index));
      parcels.push_back({"updated parameters of " + unit(index).name, layout::shard_counts(unit(index).cuts, all)});
      mine.push_back(shard.empty() ? nullptr : residents_[u].data_at(shard.begin));
    }
    window_ = make_unit_window(model_, "updated parameters", std::move(parcels), mine, model_.param_dtype);
  }

  std::shared_ptr<comm::ShardWindow> window_;
  std::vector<Work> works_;  ///< by unit, while it is coming
};

}  // namespace

std::unique_ptr<ParameterStore> make_overlapped_store(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                                      CopyingStoreOptions options) {
  return std::make_unique<OverlappedStore>(model, ledger, timeline, std::move(options));
}

}  // namespace zero::sharding
