#include <vector>

#include "sharding/shard_home.h"

namespace zero::sharding {
namespace {

class NodeSharedShards final : public ShardHome {
 public:
  NodeSharedShards(ShardedModel& model, storage::Ledger& ledger) : model_(model) {
    std::int64_t total = 0;
    for (const Unit& unit : model.units) {
      offsets_.push_back(total);
      total += unit.numel;
    }
    const std::int64_t mine = model.total([&](const Unit& unit) { return unit.shard(model.rank()); });
    memory_ = storage::FlatBuffer::make_node_shared(ledger, MemoryKind::kParameters, model.param_dtype, total, mine,
                                                    model.group, "parameters", model.module_device);
  }

  void visit(int unit, Range range, Access, c10::function_ref<void(Range, void*)> lease) override {
    lease(range, in_memory(unit, range));
  }
  void* in_memory(int unit, Range range) override { return memory_.data_at(offsets_[unit] + range.begin); }

  void* gather(int unit, std::string_view) override { return memory_.data_at(offsets_[unit]); }
  double wait(int) override { return 0; }
  void drop(int) override {}

  void publish(bool) override { model_.group.barrier({.label = "publish parameters"}).wait(); }
  void publish_gathered() override {}

  bool always_whole() const override { return true; }
  bool moves_between_ranks() const override { return false; }

 private:
  ShardedModel& model_;
  std::vector<std::int64_t> offsets_;  ///< by unit
  storage::FlatBuffer memory_;
};

}  // namespace

std::unique_ptr<ShardHome> make_node_shared_shards(ShardedModel& model, storage::Ledger& ledger) {
  return std::make_unique<NodeSharedShards>(model, ledger);
}

}  // namespace zero::sharding
