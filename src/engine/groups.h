#pragma once
// The groups of ranks that an engine is over.
#include <chrono>
#include <optional>
#include <string_view>

#include "engine/inventory.h"
#include "zero/config.h"
#include "zero/engine.h"
#include "zero/group.h"

namespace zero::engine {

struct Groups {
  Group all;                            ///< who trains this model
  Group data_parallel;                  ///< who has the same part of it; in `all` when nothing is split
  std::optional<Group> model_parallel;  ///< who has one copy together, where that are several
  Group island;                         ///< of data_parallel, who step together: all, unless there are local steps
  std::optional<Group> across_islands;  ///< with local steps, who is at this rank's place of each island

  /// Micro-batch j of a rank is micro-batch j N + data_rank() of all N data-parallel ranks. Neighbours are of different
  /// islands, so that these see the same data however many ranks each has.
  int data_rank() const {
    return across_islands ? island.rank() * across_islands->size() + across_islands->rank() : data_parallel.rank();
  }

  int model_parallel_rank() const { return model_parallel ? model_parallel->rank() : 0; }
  int model_parallel_size() const { return model_parallel ? model_parallel->size() : 1; }
  /// True on the one rank that speaks for all.
  bool is_first() const { return all.rank() == 0; }
  void set_timeout(std::chrono::milliseconds timeout);
  /// Every rank of every group learns that this one leaves. Local.
  void abort(std::string_view reason) noexcept;
};

/// *Collective* where there are several groups. Throws ConfigError: groups that are not rows and columns of one table
/// of ranks, or several model-parallel ranks without a placement.
Groups find_groups(const InitializeOptions& options);

/// Makes islands, if there are local steps. *Collective* then. Throws ConfigError on every rank: islands of different
/// sizes.
void find_islands(const Config& config, Groups& groups);

/// Asks `options.placement` what is split. Local. Throws ConfigError: no such dimension.
void place_parts(const InitializeOptions& options, const Groups& groups, Inventory& inventory);
/// Makes the sizes of all parts known. *Collective.* Throws ModelError on every rank: model-parallel ranks with other
/// names or placements or, of what is not split, other shapes.
void agree_on_parts(Groups& groups, Inventory& inventory);

/// What is not split takes the values of the first of each group's model-parallel ranks; `verify`: throws ModelError on
/// all of them, naming a parameter, when one has others. *Collective.*
void make_replicated_alike(Groups& groups, const Inventory& inventory, bool verify);

}  // namespace zero::engine
