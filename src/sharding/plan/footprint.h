#pragma once
// What the parts of an engine hold and move, declared from the sharding plan before there is any memory. Each part
// declares its own share; the room `plan` adds them up, and tests/dist/plan_agrees_test.cpp compares the sum with the
// engine's ledger. No libtorch.
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sharding/plan/sharding_plan.h"
#include "sharding/plan/transfers.h"
#include "zero/memory.h"
#include "zero/plan.h"

namespace zero::sharding {

/// What a step does with parameters, which determines how large pools of buffers grow.
struct Workload {
  std::vector<plan::Use> uses;  ///< operators of the forward pass, in order
  /// Trainable parameters in the order in which their gradients are complete. A group's order is autograd's to choose.
  std::vector<std::vector<int>> arrivals;
  std::int64_t micro_batches = 1;  ///< of an accumulation window
};

/// What a rank keeps on a disk, and what a step moves.
struct DiskUse {
  std::int64_t file_nbytes = 0;
  std::int64_t buffers_nbytes = 0;  ///< in host memory
  double read_nbytes = 0, written_nbytes = 0;
  double update_nbytes = 0;  ///< of both, what the update reads and writes

  DiskUse& operator+=(const DiskUse& more);
};

/// What a rank receives or copies in a step, mean over ranks. Elements by cause, as zero/report.h counts them.
struct StepTraffic {
  double gathered_numel = 0, reduced_numel = 0, published_numel = 0, whole_numel = 0, islands_numel = 0;
  double from_ranks_nbytes = 0;    ///< evenly from all other ranks
  double by_rings_nbytes = 0;      ///< from the rank before it: each host receives it once
  double beside_nbytes = 0;        ///< from the ranks of its host alone
  double to_hosts_nbytes = 0;      ///< from other hosts: once for each host, its ranks' shares
  double from_islands_nbytes = 0;  ///< evenly from the ranks at its place of the other islands
  double to_device_nbytes = 0, from_device_nbytes = 0;
  double host_update_nbytes = 0, device_update_nbytes = 0;  ///< that the update reads and writes in memory

  /// Counts its bytes. Returns its elements.
  double add(const Transfer& transfer);
};

/// Kinds of which ranks hold more or less than others: what is sharded.
inline constexpr MemoryKind kStates[] = {MemoryKind::kParameters, MemoryKind::kMaster, MemoryKind::kOptimizer,
                                         MemoryKind::kGradients};

class Footprint {
 public:
  using NbytesOfRange = std::function<std::int64_t(layout::Range)>;
  using NbytesOfRank = std::function<std::int64_t(int rank)>;
  using DiskOfRank = std::function<DiskUse(int rank)>;

  /// Which elements of a unit a rank holds.
  enum class Share : std::uint8_t {
    kWhole,
    kShard,
    kHostShard,  ///< of what exists once per host: its shard and those of the ranks at its place on other hosts
  };

  explicit Footprint(const ShardingPlan& shards) : shards_(shards) {}

  const ShardingPlan& shards() const { return shards_; }
  /// What a rank updates of a unit.
  Share updated() const { return shards_.sharding.optimizer_states ? Share::kShard : Share::kWhole; }

  /// Every rank holds it as long as the engine lives.
  void hold(MemoryKind kind, layout::Tier tier, std::int64_t nbytes);
  /// Every rank holds it at times.
  void reach(MemoryKind kind, layout::Tier tier, std::int64_t nbytes);
  /// Of a unit's elements.
  void hold_of_unit(MemoryKind kind, layout::Tier tier, std::size_t unit, Share share, NbytesOfRange nbytes_of);
  void hold_of_unit(MemoryKind kind, layout::Tier tier, std::size_t unit, Share share, std::int64_t element_nbytes);
  /// What is not of a unit and differs between ranks. `at_most`: what by_rank() takes in its place.
  void hold_of_rank(MemoryKind kind, layout::Tier tier, NbytesOfRank nbytes_of,
                    std::optional<std::int64_t> at_most = {});
  void hold_on_disk(DiskOfRank disk);

  /// All of it on one rank, as its ledger counts.
  MemoryReport of_rank(int rank) const;
  DiskUse disk_of_rank(int rank) const;

  /// Bytes of kStates of every rank, [world_size]. Of many ranks exact to a block of each
  /// unit: it takes milliseconds, even for 100,000.
  struct ByRank {
    std::vector<double> host, device;
    double of(std::size_t rank) const { return host[rank] + device[rank]; }
    /// So many islands of such ranks.
    void repeat(int times);
  };
  ByRank by_rank() const;

  StepTraffic traffic;

 private:
  struct OfUnit {
    MemoryKind kind;
    layout::Tier tier;
    std::size_t unit;
    Share share;
    NbytesOfRange nbytes_of;
  };
  struct OfRank {
    MemoryKind kind;
    layout::Tier tier;
    NbytesOfRank nbytes_of;
    std::optional<std::int64_t> at_most;
  };

  const ShardingPlan& shards_;
  MemoryReport everywhere_;
  std::vector<OfUnit> of_units_;
  std::vector<OfRank> of_ranks_;
  std::vector<DiskOfRank> disks_;
};

/// Of the whole engine: the parts below, and what initialize() passes through. `shards` outlives it.
Footprint footprint_of(const ShardingPlan& shards, const Workload& work, const Config& config);

// ---- The parts ----

/// ParameterStore: shards, resident units and buffers of gathers; what is gathered and published.
void declare_store(Footprint& out, const Workload& work, const Config& config);
/// GradientReducer and GradientNorm: buckets and sums; what is reduced.
void declare_reducer(Footprint& out, const Workload& work);
/// ShardedOptimizer: masters, states, what brings whole tensors together; what an update reads and writes.
void declare_optimizer(Footprint& out);
/// LocalSteps: outer values and momentum, pieces on their way; what islands exchange.
void declare_local_steps(Footprint& out, const Config& config);
/// Outer values and momentum of a rank; 0 without local steps.
std::int64_t outer_nbytes(const ShardingPlan& shards, const Config& config, int rank);

// ---- Pools, found by carrying out the schedules of `layout` over a few steps without memory ----

/// Models that are cut into more buckets get a bound instead of the figure.
inline constexpr std::int64_t kMostBuckets = 200'000;

struct GatherUse {
  std::int64_t pool_numel = 0;       ///< buffers of the pool together, at most
  std::int64_t codes_nbytes = 0;     ///< the same of those that quantised units come in
  std::int64_t gathered_numel = 0;   ///< elements of all gathers of one step, once the order is known
  std::int64_t gathered_nbytes = 0;  ///< the same as they are sent
};
/// The copying store's gather buffers.
GatherUse gather_use(const ShardingPlan& shards, const Workload& work, const Config& config);

/// Elements of the reducer's buckets: all of them where gradients are replicated, else what its pool grows to. An upper
/// bound where reductions overlap backward.
std::int64_t bucket_pool_numel(const ShardingPlan& shards, const Workload& work);

/// Elements of the largest bucket.
std::int64_t largest_bucket(const ShardingPlan& shards);

/// Most elements of one bucket that `rank` owns.
std::int64_t largest_piece(const ShardingPlan& shards, int rank);

}  // namespace zero::sharding
