#include "sharding/unit_window.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace zero::sharding {
namespace {

/// Where the parcels of several groups are: by parcel its group and its number there, by group the parcels.
struct Places {
  struct Place {
    int group = 0, number = 0;
  };
  std::vector<Place> of_parcel;
  std::vector<std::vector<int>> of_group;

  Places(const ShardedModel& model, const std::vector<int>& units) : of_group(model.shard_groups.size()) {
    for (std::size_t p = 0; p < units.size(); ++p) {
      const int group = model.units[units[p]].group;
      of_parcel.push_back({group, static_cast<int>(of_group[group].size())});
      of_group[group].push_back(static_cast<int>(p));
    }
  }
  /// Those of a group.
  template <class T>
  std::vector<T> pick(const std::vector<T>& all, std::size_t group) const {
    std::vector<T> picked;
    for (const int parcel : of_group[group]) picked.push_back(all[static_cast<std::size_t>(parcel)]);
    return picked;
  }
};

class GroupedWindow final : public comm::ShardWindow {
 public:
  GroupedWindow(const ShardedModel& model, const std::string& label, const std::vector<comm::Parcel>& parcels,
                const std::vector<int>& units, const std::vector<const void*>& mine)
      : places_(model, units) {
    for (std::size_t g = 0; g < model.shard_groups.size(); ++g) {
      windows_.push_back(model.shard_groups[g].transport->make_shard_window(label, places_.pick(parcels, g),
                                                                            model.param_dtype, places_.pick(mine, g)));
    }
  }

  Work fetch(int parcel, void* out, std::string_view for_what) override {
    const auto& place = places_.of_parcel[parcel];
    return windows_[place.group]->fetch(place.number, out, for_what);
  }
  void publish() override {
    for (const auto& window : windows_) window->publish();
  }
  bool one_sided() const override {
    return std::ranges::all_of(windows_, [](const auto& window) { return window->one_sided(); });
  }

 private:
  const Places places_;
  std::vector<std::shared_ptr<comm::ShardWindow>> windows_;  ///< by group
};

}  // namespace

std::shared_ptr<comm::ShardWindow> make_unit_window(const ShardedModel& model, const std::string& label,
                                                    std::vector<comm::Parcel> parcels, std::vector<const void*> mine) {
  if (model.shard_groups.size() > 1) {
    std::vector<int> units(parcels.size());
    std::iota(units.begin(), units.end(), 0);
    return std::make_shared<GroupedWindow>(model, label, parcels, units, mine);
  }
  return model.shard_groups.front().transport->make_shard_window(label, std::move(parcels), model.param_dtype,
                                                                 std::move(mine));
}

}  // namespace zero::sharding
