#include "sharding/unit_board.h"

#include <chrono>
#include <mutex>
#include <utility>

namespace zero::sharding {
namespace {

class UnitBoard final : public comm::ExchangeBoard {
 public:
  UnitBoard(const ShardedModel& model, const std::string& label, std::vector<comm::Parcel> parcels,
            std::span<const int> units, DType dtype, Sink sink, const comm::HostSums& sums)
      : sink_(std::move(sink)), of_groups_(model.shard_groups.size()) {
    std::vector<std::vector<comm::Parcel>> parcels_of(of_groups_.size());
    for (std::size_t p = 0; p < parcels.size(); ++p) {
      const auto group = static_cast<std::size_t>(model.units[units[p]].group);
      places_.push_back({group, static_cast<int>(parcels_of[group].size())});
      of_groups_[group].parcels.push_back(static_cast<int>(p));
      parcels_of[group].push_back(std::move(parcels[p]));
    }
    std::vector<Group> groups;
    for (std::size_t g = 0; g < of_groups_.size(); ++g) {
      const ShardGroup& shards = model.shard_groups[g];
      groups.push_back(shards.ranks);
      if (parcels_of[g].empty()) continue;
      const auto take = [this, &numbers = of_groups_[g].parcels](int number, std::span<const void* const> slices) {
        const std::lock_guard lock(sinking_);
        sink_(numbers[static_cast<std::size_t>(number)], slices);
      };
      // One answer for all: sums_on_hosts().
      of_groups_[g].board = shards.transport->make_summing_board(label, std::move(parcels_of[g]), dtype, take,
                                                                 of_groups_.size() == 1 ? sums : comm::HostSums{});
    }
    comm::move_together(groups);
  }

  Work post(int parcel, const void* in) override {
    const auto& [group, number] = places_[static_cast<std::size_t>(parcel)];
    return of_groups_[group].board->post(number, in);
  }
  bool wait_while_others_run(int parcel, Work& post, std::chrono::milliseconds limit) override {
    const auto& [group, number] = places_[static_cast<std::size_t>(parcel)];
    return of_groups_[group].board->wait_while_others_run(number, post, limit);
  }
  /// Who waits in one group is not seen in another.
  bool sees_waits() const override {
    return of_groups_.size() == 1 && of_groups_.front().board && of_groups_.front().board->sees_waits();
  }
  bool sums_on_hosts() const override {
    return of_groups_.size() == 1 && of_groups_.front().board && of_groups_.front().board->sums_on_hosts();
  }
  std::int64_t posts(int parcel) const override {
    const auto& [group, number] = places_[static_cast<std::size_t>(parcel)];
    return of_groups_[group].board->posts(number);
  }
  bool abandon() override {
    bool done = true;
    for (const OfGroup& group : of_groups_) done = (!group.board || group.board->abandon()) && done;
    return done;
  }

 private:
  struct Place {
    std::size_t group;
    int number;  ///< in its board
  };
  struct OfGroup {
    std::vector<int> parcels;                    ///< by their numbers
    std::shared_ptr<comm::ExchangeBoard> board;  ///< null: no parcels
  };

  const Sink sink_;
  std::mutex sinking_;         ///< each group may have a progress thread
  std::vector<Place> places_;  ///< by parcel
  std::vector<OfGroup> of_groups_;
};

}  // namespace

std::shared_ptr<comm::ExchangeBoard> make_unit_board(const ShardedModel& model, const std::string& label,
                                                     std::vector<comm::Parcel> parcels, std::span<const int> units,
                                                     DType dtype, comm::ExchangeBoard::Sink sink,
                                                     const comm::HostSums& sums) {
  return std::make_shared<UnitBoard>(model, label, std::move(parcels), units, dtype, std::move(sink), sums);
}

}  // namespace zero::sharding
