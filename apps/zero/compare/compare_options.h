#pragma once
// The options of `zero compare`, as the user gives them.
#include <string>

#include "train/train_options.h"

namespace zero::app {

struct CompareOptions {
  TrainOptions train;  ///< rows of `zero train`
  std::string modes = "compute,stage0,stage1,stage2,stage3,stage3-copying";
  std::int64_t warmup = 2;
  std::int64_t rounds = 2;
  std::string out;  ///< folder; empty: comparisons/<date-time>-<preset>
  bool no_plot = false;
  bool json = false;
  std::string python;  ///< of the picture; empty: see find_python()
};

inline constexpr std::int64_t kCompareSteps = 12;

/// Adds the options to `command`. Their values are in `options` once it is parsed.
void add_compare_options(CLI::App& command, CompareOptions& options);

}  // namespace zero::app
