#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "storage/flat_buffer.h"
#include "zero/parameter_store.h"

namespace zero::sharding {
namespace {

class NodeSharedStore final : public ParameterStore {
 public:
  NodeSharedStore(ShardedModel& model, storage::Ledger& ledger, StepBreakdown& times)
      : ParameterStore(model, times) {
    std::int64_t total = 0;
    for (const auto& unit : model.units) {
      offsets_.push_back(total);
      total += unit.numel;
    }
    const std::int64_t mine = model.total([&](const Unit& unit) { return unit.shard(model.rank()); });
    memory_ = storage::FlatBuffer::make_node_shared(ledger, MemoryKind::kParameters, model.low_dtype, total,
                                                    mine, model.group, "parameters");
  }

  Range writable_range(int index) const override { return unit(index).shard(model_.rank()); }
  void* writable(int index) override {
    const Range range = writable_range(index);
    return range.empty() ? nullptr : memory_.data_at(offsets_[index] + range.begin);
  }
  at::Tensor writable_view(int index) override {
    const Range range = writable_range(index);
    return memory_.view(offsets_[index] + range.begin, range.numel());
  }

  void start() override {
    for (std::size_t index = 0; index < model_.units.size(); ++index) {
      attach(static_cast<int>(index), memory_.data_at(offsets_[index]));
    }
    publish(/*frozen_too=*/true);
  }
  void quiesce() override {}
  void publish(bool) override {
    Stopwatch watch(times_.publish);
    model_.group.barrier({.label = "publish parameters"}).wait();
  }

  void pin(std::span<const int>) override {
    // Nobody may still be writing when the pinned memory is read.
    model_.group.barrier({.label = "gather parameters"}).wait();
  }
  void unpin(std::span<const int>) override {}
  at::Tensor pinned_view(int index) override { return memory_.view(offsets_[index], unit(index).numel); }
  void spread(std::span<const int>, int) override {
    // root wrote into the one copy there is.
    model_.group.barrier({.label = "spread parameters"}).wait();
  }

  std::shared_ptr<void> keep_alive(int) override { return memory_.keep_alive(); }

  void before_use(intercept::ParameterHandle& handle) override {
    // Reading costs no collective here, so a rank may evaluate on its own: only training must be in step.
    if (at::GradMode::is_enabled() || phase() == 1) order_.use(handle.unit(), phase());
  }
  void after_use(intercept::ParameterHandle&) noexcept override {}

 private:
  std::vector<std::int64_t> offsets_;
  storage::FlatBuffer memory_;
};

}  // namespace

std::unique_ptr<ParameterStore> make_node_shared_store(ShardedModel& model, storage::Ledger& ledger,
                                                       StepBreakdown& times) {
  return std::make_unique<NodeSharedStore>(model, ledger, times);
}

}  // namespace zero::sharding
