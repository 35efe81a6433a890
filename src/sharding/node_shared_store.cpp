#include <algorithm>
#include <optional>

#include "base/check.h"
#include "sharding/parameter_store.h"
#include "sharding/scope_ends.h"
#include "storage/flat_buffer.h"

namespace zero::sharding {
namespace {

class NodeSharedStore final : public ParameterStore {
 public:
  NodeSharedStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline)
      : ParameterStore(model, ledger, timeline) {
    std::int64_t total = 0;
    for (const auto& unit : model.units) {
      offsets_.push_back(total);
      total += unit.numel;
    }
    const std::vector<int> here{model.rank()};
    std::int64_t mine = 0;  // this rank's part of what the node holds
    for (const int rank : model.hosts ? model.hosts->across_ranks : here) {
      mine += model.total([&](const Unit& unit) { return unit.shard(rank); });
    }
    memory_ = storage::FlatBuffer::make_node_shared(ledger, MemoryKind::kParameters, model.param_dtype, total, mine,
                                                    model.hosts ? model.hosts->node : model.data_ranks, "parameters");
    if (model.hosts) find_slices();
  }

  ~NodeSharedStore() override {
    for (Work& work : under_way_) wait_or_fail(work, memory_, process_);  // copy_between_hosts has thrown
  }

  Range writable_range(int index) const override { return model_.shard_of(index); }
  void visit(int index, Range range, Access, Lease lease) override {
    if (!range.empty()) lease(range, in_memory(index, range));
  }
  void* in_memory(int index, Range range) override { return memory_.data_at(offsets_[index] + range.begin); }

  void start() override {
    for (std::size_t index = 0; index < model_.units.size(); ++index) {
      attach(static_cast<int>(index), memory_.data_at(offsets_[index]));
    }
    publish(/*frozen_too=*/true);
    counts_ = {};  // the report is about training
  }
  void quiesce() override {}
  void publish(bool frozen_too) override {
    Stopwatch watch(timeline_, &StepBreakdown::publish);
    if (model_.hosts) copy_between_hosts(frozen_too);
    model_.data_ranks.barrier({.label = "publish parameters"}).wait();
  }

  void pin(std::span<const int>) override {
    // Nobody may still be writing when the pinned memory is read.
    model_.data_ranks.barrier({.label = "gather parameters"}).wait();
  }
  void unpin(std::span<const int>) override {}
  at::Tensor pinned_view(int index) override { return memory_.view(offsets_[index], unit(index).numel); }
  void broadcast(std::span<const int> parameters, int root) override {
    // root wrote into the one copy that its node has.
    if (model_.hosts) send_to_hosts(parameters, root);
    model_.data_ranks.barrier({.label = "broadcast parameters"}).wait();
  }

  void begin_modifying() override {
    if (!scope_ends_ && model_.world_size() > 1)
      scope_ends_.emplace(model_.hosts ? model_.hosts->node : model_.data_ranks, model_.rank());
  }
  void end_modifying(int modifier, bool failed) override {
    if (scope_ends_) scope_ends_->end(modifier, failed);
  }

  void reattach(int p) override { attach_parameter(p, memory_.data_at(offsets_[model_.parameters[p].unit])); }

  std::shared_ptr<void> keep_alive(int) override {
    // The module is an ordinary one then: what a rank makes of it is no longer for the others.
    if (!std::exchange(unshared_, true)) memory_.unshare();
    return memory_.keep_alive();
  }

  void before_use(intercept::ParameterHandle&) override {  // always whole, and reading costs nothing
    if (scope_ends_ && scope_ends_->waits()) scope_ends_->wait();
  }
  void after_use(intercept::ParameterHandle&) noexcept override {}

 private:
  /// Where the shards that this rank exchanges with other hosts lie in a unit.
  struct Slices {
    std::vector<std::int64_t> counts, offsets;  ///< by rank of hosts->across
    std::int64_t received_numel = 0;
  };

  void find_slices() {
    for (const Unit& the_unit : model_.units) {
      Slices& slices = slices_.emplace_back();
      for (const int rank : model_.hosts->across_ranks) {
        const Range shard = the_unit.shard(rank);
        slices.counts.push_back(shard.numel());
        slices.offsets.push_back(shard.begin);
        if (rank != model_.rank()) slices.received_numel += shard.numel();
      }
    }
    under_way_.reserve(model_.units.size());
  }

  /// Every rank fetches, for all ranks of its host, the shards of the ranks at its own place on other hosts.
  void copy_between_hosts(bool frozen_too) {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      if (!(model_.units[i].trainable || frozen_too)) continue;
      const int index = static_cast<int>(i);
      under_way_.push_back(model_.hosts->across.all_gather_at(
          in_memory(index, writable_range(index)), memory_.data_at(offsets_[i]), slices_[i].counts, slices_[i].offsets,
          model_.param_dtype, {.label = model_.units[i].name}));
      counts_.published_numel += slices_[i].received_numel;
    }
    for (Work& work : under_way_) work.wait();
    under_way_.clear();
  }

  void send_to_hosts(std::span<const int> parameters, int root) {
    const auto& ranks = model_.hosts->across_ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), root);
    if (found == ranks.end()) return;  // another rank of this host gets it
    for (const int p : parameters) {
      const auto& parameter = model_.parameters[p];
      model_.hosts->across
          .broadcast(memory_.data_at(offsets_[parameter.unit] + parameter.range.begin), parameter.range.numel(),
                     model_.param_dtype, static_cast<int>(found - ranks.begin()), {.label = parameter.name})
          .wait();
    }
  }

  std::vector<std::int64_t> offsets_;
  std::vector<Slices> slices_;   ///< by unit, with several hosts
  std::vector<Work> under_way_;  ///< empty between calls; keeps its capacity
  storage::FlatBuffer memory_;
  bool unshared_ = false;
  std::optional<ScopeEnds> scope_ends_;  ///< since the first scope with a modifier
};

}  // namespace

std::unique_ptr<ParameterStore> make_node_shared_store(ShardedModel& model, storage::Ledger& ledger,
                                                       Timeline& timeline) {
  return std::make_unique<NodeSharedStore>(model, ledger, timeline);
}

}  // namespace zero::sharding
