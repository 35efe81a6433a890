#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "sharding/late_store.h"
#include "sharding/parameter_store.h"
#include "sharding/scope_ends.h"
#include "storage/flat_buffer.h"

namespace zero::sharding {
namespace {

class NodeSharedStore : public ParameterStore {
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
  NodeSharedStore(const NodeSharedStore&) = delete;
  NodeSharedStore& operator=(const NodeSharedStore&) = delete;

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

 protected:
  void* memory_at(int index, std::int64_t element) { return memory_.data_at(offsets_[index] + element); }
  const storage::FlatBuffer& memory() const { return memory_; }

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

/// Over several hosts: what comes from the others comes while the program goes on (late_units.h). Each rank fetches for
/// all of its host, as copy_between_hosts() does, and notes in the memory of the host what has come. Where another rank
/// does not note it, because its program does something else, a rank fetches that part as well.
class OverlappedNodeSharedStore final : public LateStore<NodeSharedStore> {
 public:
  OverlappedNodeSharedStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline)
      : LateStore(model, ledger, timeline),
        places_(model.hosts->node.size()),
        works_(model.units.size()),
        is_behind_(static_cast<std::size_t>(places_), 0) {
    late_.set_units(all_units());
    find_owners();
    came_ = model.hosts->node.allocate_node_shared(
        model.units.size() * static_cast<std::size_t>(places_) * sizeof(Came), "updated parameters that have come");
    std::vector<comm::Parcel> parcels;
    std::vector<const void*> mine;
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      for (int rank = 0; rank < model.world_size(); ++rank) {
        comm::Parcel parcel{fmt::format("updated parameters of {}, rank {}'s", model.units[u].name, rank),
                            std::vector<std::int64_t>(static_cast<std::size_t>(model.world_size()), 0)};
        const Range shard = model.units[u].shard(rank);
        parcel.counts[static_cast<std::size_t>(rank)] = shard.numel();
        parcels.push_back(std::move(parcel));
        const bool is_mine = rank == model.rank() && !shard.empty();
        mine.push_back(is_mine ? memory_at(static_cast<int>(u), shard.begin) : nullptr);
      }
    }
    window_ =
        comm::make_shard_window(model.data_ranks, "updated parameters", std::move(parcels), model.param_dtype, mine);
  }
  ~OverlappedNodeSharedStore() override {
    for (auto& works : works_) {
      for (Work& work : works) wait_or_fail(work, memory(), process_);
    }
  }

  void publish(bool frozen_too) override {
    Stopwatch watch(timeline_, &StepBreakdown::publish);
    late_.complete_all();
    ++version_;
    std::ranges::fill(is_behind_, 0);
    window_->publish();
    std::vector<int> updated;
    for (const int index : late_.order()) {
      if (!(unit(index).trainable || frozen_too)) continue;
      release(index, LateUnits::why_released);
      for (const int rank : owners_[static_cast<std::size_t>(my_place())])
        counts_.published_numel += unit(index).shard(rank).numel();
      updated.push_back(index);
    }
    late_.begin(updated);
    model_.hosts->node.barrier({.label = "publish parameters"}).wait();  // what this host's ranks have written
    began_ = base::seconds_now();
    until_ = 0;
    if (!frozen_too) return;
    late_.complete_all();
    model_.data_ranks.barrier({.label = "publish all parameters"}).wait();
  }

 private:
  using Came = std::atomic<std::uint64_t>;  ///< the last publication whose values have come
  static_assert(Came::is_always_lock_free);

  std::vector<int> all_units() const {
    std::vector<int> units(model_.units.size());
    std::iota(units.begin(), units.end(), 0);
    return units;
  }
  int my_place() const { return model_.hosts->node.rank(); }

  /// Which ranks of other hosts have the same place on theirs. *Collective* over the host.
  void find_owners() {
    std::vector<std::int64_t> mine;
    for (const int rank : model_.hosts->across_ranks) {
      if (rank != model_.rank()) mine.push_back(rank);
    }
    const auto each = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(places_));
    Group node = model_.hosts->node;
    node.all_gather(mine.data(), all.data(), std::vector<std::int64_t>(static_cast<std::size_t>(places_), each),
                    DType::kInt64, {.label = "owners on other hosts"})
        .wait();
    for (int place = 0; place < places_; ++place) {
      const auto first = all.begin() + place * each;
      owners_.emplace_back(first, first + each);
    }
  }

  Came& came(int index, int place) { return static_cast<Came*>(came_.data())[index * places_ + place]; }

  /// Begins to fetch what the rank at a place of this host has to.
  void fetch_for(int index, int place, std::vector<Work>& works) {
    for (const int rank : owners_[static_cast<std::size_t>(place)]) {
      const Range shard = unit(index).shard(rank);
      if (shard.empty()) continue;
      works.push_back(
          window_->fetch(index * model_.world_size() + rank, memory_at(index, shard.begin), "the next forward"));
    }
  }
  void fetch(int index) override { fetch_for(index, my_place(), works_[static_cast<std::size_t>(index)]); }
  bool moved(int index) override {
    auto& works = works_[static_cast<std::size_t>(index)];
    if (!std::ranges::all_of(works, [](Work& work) { return work.test(); })) return false;
    works.clear();
    came(index, my_place()).store(version_, std::memory_order_release);
    return true;
  }
  void wait(int index) override {
    for (Work& work : works_[static_cast<std::size_t>(index)]) work.wait();
    moved(index);
    for (int place = 0; place < places_; ++place) {
      if (place != my_place() && !wait_for(index, place)) fetch_instead(index, place);
    }
  }
  void attach(int index) override { ParameterStore::attach(index, memory_at(index, 0)); }

  /// False if the rank at that place may be one that does not look at what comes.
  bool wait_for(int index, int place) {
    constexpr double kLeastSeconds = 0.2, kMostSeconds = 2;
    const auto is_there = [&] { return came(index, place).load(std::memory_order_acquire) >= version_; };
    std::uint8_t& is_behind = is_behind_[static_cast<std::size_t>(place)];
    // Ranks of a host share its network: what comes to the others comes about as fast. One time for all of them.
    const double now = base::seconds_now();
    if (until_ == 0) until_ = now + std::clamp(now - began_, kLeastSeconds, kMostSeconds);
    while (!is_there()) {
      if (is_behind || base::seconds_now() > until_ || model_.data_ranks.failed()) {
        is_behind = 1;
        return false;
      }
      for (std::size_t u = 0; u < works_.size(); ++u) {  // others may wait for this rank
        if (!works_[u].empty()) moved(static_cast<int>(u));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }

  /// The same bytes may come twice.
  void fetch_instead(int index, int place) {
    std::vector<Work> works;
    fetch_for(index, place, works);
    try {
      for (Work& work : works) work.wait();
    } catch (...) {
      for (Work& work : works) wait_or_fail(work, memory(), process_);
      throw;
    }
  }

  const int places_;                      ///< ranks on this host
  std::vector<std::vector<int>> owners_;  ///< by place: ranks of other hosts whose shards the rank there fetches
  SharedMemory came_;                     ///< [units][places]
  std::uint64_t version_ = 0;             ///< publications
  double began_ = 0;                      ///< the last one
  double until_ = 0;                      ///< so long others of this host are waited for; 0: nobody was yet
  std::shared_ptr<comm::ShardWindow> window_;
  std::vector<std::vector<Work>> works_;  ///< by unit, while it is coming
  std::vector<std::uint8_t> is_behind_;   ///< by place: in this publication
};

}  // namespace

std::unique_ptr<ParameterStore> make_node_shared_store(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline,
                                                       bool overlaps_publish) {
  if (model.hosts && overlaps_publish) return std::make_unique<OverlappedNodeSharedStore>(model, ledger, timeline);
  return std::make_unique<NodeSharedStore>(model, ledger, timeline);
}

}  // namespace zero::sharding
