#include <algorithm>
#include <vector>

#include "base/check.h"
#include "device/device_stream.h"
#include "sharding/shard_home.h"

namespace zero::sharding {
namespace {

class PeerShards final : public ShardHome {
 public:
  PeerShards(ShardedModel& model, storage::Ledger& ledger) : model_(model), offsets_(model.units.size()) {
    const auto ranks = static_cast<std::size_t>(model.world_size());
    std::vector<std::int64_t> numel(ranks, 0);
    for (std::size_t u = 0; u < offsets_.size(); ++u) {
      offsets_[u] = numel;
      for (std::size_t rank = 0; rank < ranks; ++rank)
        numel[rank] += model.units[u].shard(static_cast<int>(rank)).numel();
    }
    // A rank of a model with fewer blocks than ranks has none, and takes part all the same.
    const std::int64_t mine = std::max<std::int64_t>(numel[static_cast<std::size_t>(model.rank())], 1);
    memory_ = model.home.make_readable(ledger, MemoryKind::kParameters, model.param_dtype, mine);
    everyones_ = model.transport->everyones(memory_.data());
    ZERO_CHECK(everyones_.size() == ranks, "shards of {} of {} ranks", everyones_.size(), ranks);
  }

  void visit(int unit, Range range, Access, c10::function_ref<void(Range, void*)> lease) override {
    lease(range, in_memory(unit, range));
  }
  void* in_memory(int unit, Range range) override { return address(unit, model_.rank(), range.begin); }

  void visit_whole(int unit, Range range, c10::function_ref<void(Range, void*)> visit) override {
    for (int rank = 0; rank < model_.world_size(); ++rank) {
      const Range piece = layout::intersect(range, model_.units[unit].shard(rank));
      if (!piece.empty()) visit(piece, address(unit, rank, piece.begin));
    }
  }
  bool in_one_piece() const override { return false; }

  void* gather(int, std::string_view) override { return nullptr; }
  double wait(int) override { return 0; }
  void drop(int) override {}

  void publish(bool) override {
    device::finish_current_stream(model_.device);
    model_.group.barrier({.label = "publish parameters"}).wait();
  }
  void publish_gathered() override {}

  bool always_whole() const override { return true; }

 private:
  void* address(int unit, int rank, std::int64_t element) const {
    const auto of_rank = static_cast<std::size_t>(rank);
    const std::int64_t at = offsets_[unit][of_rank] + element - model_.units[unit].shard(rank).begin;
    return static_cast<std::byte*>(everyones_[of_rank]) +
           at * static_cast<std::int64_t>(element_nbytes(model_.param_dtype));
  }

  ShardedModel& model_;
  std::vector<std::vector<std::int64_t>> offsets_;  ///< by unit and rank, in the rank's memory
  storage::FlatBuffer memory_;
  std::vector<void*> everyones_;  ///< by rank
};

}  // namespace

std::unique_ptr<ShardHome> make_peer_shards(ShardedModel& model, storage::Ledger& ledger) {
  return std::make_unique<PeerShards>(model, ledger);
}

}  // namespace zero::sharding
