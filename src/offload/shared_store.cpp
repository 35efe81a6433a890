#include "offload/shared_store.h"

#include <algorithm>

#include "base/check.h"
#include "device/tensor_view.h"

namespace zero::offload {
namespace {

using layout::Range;

/// What both have in common: a part is one piece of memory, and is there for as long as the store.
class ReachedStore : public SharedStore {
 public:
  ReachedStore(int rank, StoreColumn column, UnitCuts cuts, c10::Device device)
      : SharedStore({std::move(column)}), rank_(rank), cuts_(std::move(cuts)), device_(device) {}

  void add_units(std::span<const StorePart> parts) override {
    for (const StorePart& part : parts) {
      ZERO_CHECK(layout::intersect(part.range, shard(part.unit, rank_)) == part.range || part.range.empty(),
                 "unit {} in [{}, {}) is another rank's", part.unit, part.range.begin, part.range.end);
    }
  }
  void for_each(int unit, Range range, std::int64_t most_numel, Access, std::uint32_t wanted, Visit visit) override {
    visit_pieces(
        range, most_numel, wanted,
        [&](std::size_t c, std::int64_t element) {
          return in_memory(c, unit, {element, element});
        },
        visit);
  }
  void read(std::size_t column, int unit, Range range, void* out) const override {
    if (!range.empty()) view(out, range).copy_(view(in_memory(column, unit, range), range));
  }
  void write(std::size_t column, int unit, Range range, const void* in) override {
    if (!range.empty()) view(in_memory(column, unit, range), range).copy_(view(in, range));
  }
  void clear() override {
    for (std::size_t u = 0; u < cuts_.size(); ++u) {
      const Range mine = shard(static_cast<int>(u), rank_);
      if (!mine.empty()) view(in_memory(0, static_cast<int>(u), mine), mine).zero_();
    }
  }

 protected:
  Range shard(int unit, int rank) const {
    const auto& cuts = cuts_[static_cast<std::size_t>(unit)];
    return {cuts[static_cast<std::size_t>(rank)], cuts[static_cast<std::size_t>(rank) + 1]};
  }
  std::int64_t nbytes(std::int64_t numel) const { return columns_[0].nbytes(numel); }
  at::Tensor view(const void* data, Range range) const {
    return device::view_of(data, DType::kByte, nbytes(range.numel()), device_);
  }

  const int rank_;
  const UnitCuts cuts_;
  const c10::Device device_;
};

class MappedStore final : public ReachedStore {
 public:
  MappedStore(Group& group, storage::Ledger& ledger, StoreColumn column, UnitCuts cuts, c10::Device copies_by)
      : ReachedStore(group.rank(), std::move(column), std::move(cuts), c10::kCPU) {
    std::int64_t total = 0, mine = 0;
    for (std::size_t u = 0; u < cuts_.size(); ++u) {
      offsets_.push_back(nbytes(total));
      total += cuts_[u].back();
      mine += shard(static_cast<int>(u), rank_).numel();
    }
    memory_ = storage::FlatBuffer::make_node_shared(ledger, columns_[0].kind, DType::kByte, nbytes(total), nbytes(mine),
                                                    group, columns_[0].name, copies_by);
  }
  void* in_memory(std::size_t, int unit, Range range) const override {
    return memory_.data_at(offsets_[static_cast<std::size_t>(unit)] + nbytes(range.begin));
  }
  void visit_all(int unit, Range range, VisitAll visit) override {
    if (!range.empty()) visit(range, in_memory(0, unit, range));
  }
  void* all_of(int unit) const override { return in_memory(0, unit, {}); }

 private:
  std::vector<std::int64_t> offsets_;  ///< by unit, in bytes
  storage::FlatBuffer memory_;
};

class PeerStore final : public ReachedStore {
 public:
  PeerStore(Group& group, comm::ShardTransport& transport, const storage::Home& home, storage::Ledger& ledger,
            StoreColumn column, UnitCuts cuts)
      : ReachedStore(group.rank(), std::move(column), std::move(cuts), home.device()), offsets_(cuts_.size()) {
    const auto ranks = static_cast<std::size_t>(group.size());
    std::vector<std::int64_t> numel(ranks, 0);
    for (std::size_t u = 0; u < offsets_.size(); ++u) {
      offsets_[u] = numel;
      for (std::size_t rank = 0; rank < ranks; ++rank)
        numel[rank] += shard(static_cast<int>(u), static_cast<int>(rank)).numel();
    }
    // A rank of a model with fewer blocks than ranks has none, and takes part all the same.
    const std::int64_t mine = std::max<std::int64_t>(numel[static_cast<std::size_t>(rank_)], columns_[0].block_numel);
    memory_ = home.make_readable(ledger, columns_[0].kind, DType::kByte, nbytes(mine));
    everyones_ = transport.everyones(memory_.data());
    ZERO_CHECK(everyones_.size() == ranks, "shards of {} of {} ranks", everyones_.size(), ranks);
  }

  void* in_memory(std::size_t, int unit, Range range) const override { return address(unit, rank_, range.begin); }
  void visit_all(int unit, Range range, VisitAll visit) override {
    for (std::size_t rank = 0; rank < everyones_.size(); ++rank) {
      const Range piece = layout::intersect(range, shard(unit, static_cast<int>(rank)));
      if (!piece.empty()) visit(piece, address(unit, static_cast<int>(rank), piece.begin));
    }
  }
  void* all_of(int) const override { return nullptr; }

 private:
  void* address(int unit, int rank, std::int64_t element) const {
    const auto of_rank = static_cast<std::size_t>(rank);
    const std::int64_t at = offsets_[static_cast<std::size_t>(unit)][of_rank] + element - shard(unit, rank).begin;
    return static_cast<std::byte*>(everyones_[of_rank]) + nbytes(at);
  }

  std::vector<std::vector<std::int64_t>> offsets_;  ///< by unit and rank, in elements of the rank's memory
  storage::FlatBuffer memory_;
  std::vector<void*> everyones_;  ///< by rank
};

}  // namespace

std::unique_ptr<SharedStore> make_mapped_store(Group& group, storage::Ledger& ledger, StoreColumn column, UnitCuts cuts,
                                               c10::Device copies_by) {
  return std::make_unique<MappedStore>(group, ledger, std::move(column), std::move(cuts), copies_by);
}

std::unique_ptr<SharedStore> make_peer_store(Group& group, comm::ShardTransport& transport, const storage::Home& home,
                                             storage::Ledger& ledger, StoreColumn column, UnitCuts cuts) {
  return std::make_unique<PeerStore>(group, transport, home, ledger, std::move(column), std::move(cuts));
}

}  // namespace zero::offload
