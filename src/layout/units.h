#pragma once
// Which parameters form a unit (what is gathered and released together), and where each one lies in the
// unit's flat buffer. Depends on the model and the unit options only: never on ranks, stage, store or
// dtype, so that norms and curves are the same whatever those are. Pure integer maths.
#include <cstdint>
#include <string>
#include <vector>

#include "layout/shard.h"

namespace zero::layout {

/// A module of the user's model, without libtorch: `parameters` are indices into a list of distinct
/// parameters, in registration order; a tied parameter appears only where it was seen first.
struct ModuleNode {
  std::string name;  ///< full name from the root; "" for the root
  std::vector<int> parameters;
  std::vector<ModuleNode> children;
};

struct ParameterInfo {
  std::string name;
  std::int64_t numel = 0;
  bool trainable = true;
  bool replicated = false;  ///< the same on all model-parallel ranks, beside others that are split over them
  std::vector<std::int64_t> shape = {};  ///< empty: not known, or of no dimensions
};

struct UnitOptions {
  /// Largest unit, in elements, unless one module's own parameters are larger. 0: an eighth of the model.
  std::int64_t unit_numel = 0;
  /// Modules that become one unit each, whatever their size: named in zerotorch.unit_names, and in
  /// zero_optimization.leaf_module.names.
  std::vector<std::string> unit_names;
  std::vector<std::string> leaf_module_names;
};

/// One parameter's place in its unit.
struct Slot {
  int parameter = 0;
  std::int64_t offset_numel = 0;  ///< multiple of kAlignNumel
  std::int64_t numel = 0;         ///< may be zero
  Range range() const { return {offset_numel, offset_numel + numel}; }
};

struct Unit {
  std::string name;         ///< the module's, or "a..b" for merged neighbours
  bool trainable = true;    ///< frozen and trainable parameters never share a unit
  bool replicated = false;  ///< nor do replicated and others
  std::vector<Slot> slots;
  std::int64_t numel = 0;          ///< with padding, a multiple of kBlockNumel
  std::int64_t payload_numel = 0;  ///< without
};

/// Cuts the model into units: the largest modules of at most unit_numel elements; a module's own
/// parameters when it is larger than that; small neighbours merged. Every parameter is in exactly one
/// unit. Throws ConfigError when a name is no module's.
std::vector<Unit> make_units(const ModuleNode& root, const std::vector<ParameterInfo>& parameters,
                             const UnitOptions& options);

/// Which units stay whole on every rank although parameters are sharded: those whose parameters are all
/// smaller than `threshold_numel`, in order, as long as they are `model_numel` elements together.
struct UnitSize {
  std::int64_t numel = 0;
  std::int64_t largest_parameter_numel = 0;
};
std::vector<bool> resident_units(const std::vector<UnitSize>& units, std::int64_t threshold_numel,
                                 std::int64_t model_numel);

}  // namespace zero::layout
