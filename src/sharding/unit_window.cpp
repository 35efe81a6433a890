#include "sharding/unit_window.h"

#include <algorithm>
#include <utility>

namespace zero::sharding {
namespace {

class UnitWindow final : public comm::ShardWindow {
 public:
  UnitWindow(const ShardedModel& model, const std::string& label, std::vector<comm::Parcel> parcels,
             const std::vector<const void*>& mine, DType dtype)
      : model_(model) {
    const std::size_t groups = model.shard_groups.size();
    std::vector<std::vector<comm::Parcel>> parcels_of(groups);
    std::vector<std::vector<const void*>> mine_of(groups);
    for (std::size_t u = 0; u < parcels.size(); ++u) {
      const auto group = static_cast<std::size_t>(model.units[u].group);
      numbers_.push_back(static_cast<int>(parcels_of[group].size()));
      parcels_of[group].push_back(std::move(parcels[u]));
      mine_of[group].push_back(mine[u]);
    }
    for (std::size_t g = 0; g < groups; ++g) {
      windows_.push_back(model.shard_groups[g].transport->make_shard_window(label, std::move(parcels_of[g]), dtype,
                                                                            std::move(mine_of[g])));
    }
  }

  Work fetch(int unit, void* out, std::string_view for_what) override {
    return windows_[static_cast<std::size_t>(model_.units[unit].group)]->fetch(numbers_[unit], out, for_what);
  }
  void publish() override {
    for (const auto& window : windows_) window->publish();
  }
  bool one_sided() const override {
    return std::ranges::all_of(windows_, [](const auto& window) { return window->one_sided(); });
  }

 private:
  const ShardedModel& model_;
  std::vector<int> numbers_;                                 ///< by unit: its parcel in the window of its group
  std::vector<std::shared_ptr<comm::ShardWindow>> windows_;  ///< by group
};

}  // namespace

std::shared_ptr<comm::ShardWindow> make_unit_window(const ShardedModel& model, const std::string& label,
                                                    std::vector<comm::Parcel> parcels,
                                                    const std::vector<const void*>& mine, DType dtype) {
  return std::make_shared<UnitWindow>(model, label, std::move(parcels), mine, dtype);
}

}  // namespace zero::sharding
