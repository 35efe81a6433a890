// Stand-in until the backends have their own: ordered calls of the group.
#include "comm/transport.h"

#include <numeric>

namespace zero::comm {
namespace {

class OrderedBoard final : public ExchangeBoard {
 public:
  OrderedBoard(Group group, std::vector<Parcel> parcels, DType dtype, Sink sink)
      : group_(std::move(group)), parcels_(std::move(parcels)), dtype_(dtype), sink_(std::move(sink)),
        posts_(parcels_.size(), 0) {}
  Work post(int parcel, const void* in) override {
    ++posts_[parcel];
    return group_.exchange(in, parcels_[parcel].counts, dtype_,
                           [this, parcel](std::span<const void* const> slices) { sink_(parcel, slices); },
                           {.label = parcels_[parcel].label});
  }
  std::int64_t posts(int parcel) const override { return posts_[parcel]; }

 private:
  Group group_;
  std::vector<Parcel> parcels_;
  DType dtype_;
  Sink sink_;
  std::vector<std::int64_t> posts_;
};

class OrderedWindow final : public ShardWindow {
 public:
  OrderedWindow(Group group, std::vector<Parcel> parcels, DType dtype, std::vector<const void*> mine)
      : group_(std::move(group)), parcels_(std::move(parcels)), dtype_(dtype), mine_(std::move(mine)) {}
  Work fetch(int parcel, void* out, std::string_view) override {
    return group_.all_gather(mine_[parcel], out, parcels_[parcel].counts, dtype_,
                             {.label = parcels_[parcel].label, .input_stable_until_barrier = true});
  }
  void publish() override {}
  bool one_sided() const override { return false; }

 private:
  Group group_;
  std::vector<Parcel> parcels_;
  DType dtype_;
  std::vector<const void*> mine_;
};

}  // namespace

std::shared_ptr<ExchangeBoard> make_exchange_board(Group& group, std::string, std::vector<Parcel> parcels,
                                                   DType dtype, ExchangeBoard::Sink sink) {
  return std::make_shared<OrderedBoard>(group, std::move(parcels), dtype, std::move(sink));
}
std::shared_ptr<ShardWindow> make_shard_window(Group& group, std::string, std::vector<Parcel> parcels,
                                               DType dtype, std::vector<const void*> mine) {
  return std::make_shared<OrderedWindow>(group, std::move(parcels), dtype, std::move(mine));
}

}  // namespace zero::comm
namespace zero {
bool Work::wait_for(std::chrono::milliseconds) { wait(); return true; }
}
