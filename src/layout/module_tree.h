#pragma once
// The module tree behind parameters' names. Pure.
#include <span>
#include <string_view>

#include "layout/units.h"

namespace zero::layout {

struct ParameterName {
  std::string_view name;  ///< "a.b.weight" is a parameter of module b in a
  int parameter = 0;
};

/// Modules by name, children in the order in which they are first met. A parameter with several names belongs to the
/// module of the first; the modules of the others are there too.
ModuleNode module_tree(std::span<const ParameterName> names);

/// The outermost modules whose name ends with one of `suffixes`.
std::vector<std::string> modules_with_suffix(const ModuleNode& tree, std::span<const std::string> suffixes);

}  // namespace zero::layout
