#pragma once
// A model as the engine lays it out: units, what is sharded, which store.
#include <vector>

#include "layout/sharding.h"
#include "layout/units.h"
#include "zero/dtype.h"
#include "zero/plan.h"

namespace zero::plan {

/// Models that are cut into more buckets get a bound instead of the figure.
inline constexpr std::int64_t kMostBuckets = 200'000;

struct LaidOut {
  std::vector<layout::Unit> units;
  layout::Sharding sharding;
  bool node_shared = false;
  std::vector<bool> resident;  ///< copying store: whole on every rank; node-shared: all false
  DType low_dtype = DType::kFloat32;
  int world_size = 1;
  int hosts = 1;
  bool overlap = false;
  bool step_in_backward = false;  ///< gradient sums are used up bucket by bucket
  std::int64_t bucket_numel = 0;  ///< most elements of a bucket

  std::int64_t low_nbytes() const { return static_cast<std::int64_t>(element_nbytes(low_dtype)); }
  /// Elements of all units, of the trainable ones only if so wanted.
  std::int64_t padded_numel(bool trainable_only = false) const;
  std::int64_t largest_unit() const;
  int ranks_per_node() const { return world_size / hosts; }  ///< with the node-shared store, as many on each
};

/// Throws ConfigError as initialize() does: unknown unit names, 'node_shared' over hosts with different
/// numbers of ranks.
LaidOut lay_out(const ModelShape& model, const Config& config, int world_size, int ranks_per_node);

/// The module tree behind the names: "a.b.weight" is a parameter of module b in a.
layout::ModuleNode module_tree(const std::vector<ParameterShape>& parameters);

}  // namespace zero::plan
