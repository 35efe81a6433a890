#pragma once
// The terms used in this directory.
//
//   unit       parameters gathered and released together; one flat buffer [U]
//   shard      a rank's slice of a unit [S]
//   sharded    split over the ranks; replicated: whole on every rank
//   low        the parameter as the module reads it (bf16 or fp16, or fp32 without mixed precision)
//   master     fp32 weights the optimizer updates; the same memory as `low` when that is fp32 and writable
//   publish    make updated shards readable by all ranks
// Code here never tests the stage: Sharding says what is split.
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "intercept/parameter_handle.h"
#include "layout/shard.h"
#include "layout/sharding.h"
#include "layout/units.h"
#include "optim/passes.h"
#include "storage/home.h"
#include "zero/group.h"
#include "zero/report.h"

namespace zero::sharding {

using layout::Range;

using layout::Sharding;

struct Parameter {
  std::string name;
  at::Tensor tensor;  ///< the user's tensor; shares its TensorImpl
  c10::intrusive_ptr<intercept::ParameterHandle> handle;
  int unit = -1;
  Range range;                        ///< in its unit
  std::vector<std::int64_t> strides;  ///< strides of its elements in that range
};

struct Unit {
  std::string name;
  bool trainable = true;
  bool replicated = false;  ///< the same on all model-parallel ranks
  int group = 0;            ///< in ShardedModel::shard_groups
  std::int64_t numel = 0;
  std::vector<int> parameters;     ///< indices into ShardedModel::parameters
  std::vector<std::int64_t> cuts;  ///< [N+1] for the N ranks of its group, see layout::shard_cuts

  /// Of a rank of its group.
  Range shard(int rank) const { return {cuts[rank], cuts[rank + 1]}; }
  Range whole() const { return {0, numel}; }
};

/// The hosts of a group that keeps its parameters once per host, if there are several. The ranks with the same local
/// rank on their hosts together own everything that a host must receive from the others through one of its ranks.
struct Hosts {
  Group node;                     ///< the ranks of this host
  Group across;                   ///< one rank of each host
  std::vector<int> across_ranks;  ///< ranks of `across` in the whole group
};

/// Ranks that units are sharded over, in the order of their shards, and what moves these between them.
struct ShardGroup {
  Group ranks;
  std::shared_ptr<comm::ShardTransport> transport;
};

/// The model, as all classes of this directory share it. Built once by the engine; outlives them.
struct ShardedModel {
  std::vector<Parameter> parameters;
  std::vector<Unit> units;
  Sharding sharding;
  DType param_dtype = DType::kFloat32;
  DType gradient_dtype = DType::kFloat32;                       ///< in which gradients are sent
  DType sum_dtype = DType::kFloat32;                            ///< of gradient sums
  c10::Device device{c10::kCPU};                                ///< of shards, sums and states
  storage::Home home;                                           ///< where memory comes from on that device
  const optim::Passes* passes = &optim::passes_for(c10::kCPU);  ///< operations on that memory
  /// Where the module reads whole parameters and its gradients arise: `device`, or an accelerator while `device` is the
  /// CPU. Then what the module needs is copied there, and its gradients come back (sharding/device_units.h).
  c10::Device module_device{c10::kCPU};
  Group data_ranks;  ///< who trains this model on other data: control messages (flags, norms, sizes)
  std::vector<ShardGroup> shard_groups;  ///< by Unit::group; the first is over data_ranks
  std::optional<Hosts> hosts;            ///< of data_ranks: node-shared store over several hosts only

  /// [numel] elements at `data`, memory of `device`, which it does not own.
  at::Tensor view(const void* data, DType dtype, std::int64_t numel) const;
  bool module_is_elsewhere() const { return module_device != device; }

  /// In data_ranks.
  int rank() const { return data_ranks.rank(); }
  int world_size() const { return data_ranks.size(); }
  const ShardGroup& group_of(int unit) const { return shard_groups[units[unit].group]; }
  /// This rank's shard.
  Range shard_of(int unit) const { return units[unit].shard(group_of(unit).ranks.rank()); }
  /// The shards of units of a group of one are whole.
  bool is_sharded(int unit) const { return group_of(unit).ranks.size() > 1; }
  std::int64_t padded_numel() const {
    std::int64_t sum = 0;
    for (const auto& unit : units) sum += unit.numel;
    return sum;
  }
  /// Sum of the range lengths of all units for which `range_of` is not empty.
  template <class RangeOf>
  std::int64_t total(RangeOf range_of) const {
    std::int64_t sum = 0;
    for (const auto& unit : units) sum += range_of(unit).numel();
    return sum;
  }
};

/// For destructors: waits until `work`, whose data lies in `memory`, is complete. If its group has failed, messages may
/// still be under way, and the memory is leaked. Does nothing in a process other than `owner` (a forked child).
void wait_or_fail(Work& work, const storage::FlatBuffer& memory, int owner) noexcept;

}  // namespace zero::sharding
