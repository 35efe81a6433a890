#pragma once
// The options of `zero compare`, as the user gives them.
#include <string>

#include "train/train_options.h"

namespace zero::app {

struct CompareOptions {
  TrainOptions train;  ///< data, model, ranks, config, steps, seed, force, quiet: as for `zero train`
  std::string modes = "compute,stage0,stage1,stage2,stage3,stage3-copying";
  std::int64_t warmup = 2;
  std::int64_t rounds = 2;
  std::string out;  ///< folder; empty: comparisons/<date-time>-<preset>
  bool no_plot = false;
  bool json = false;
  // Others.
  bool peers = false;
  std::string peer_modes = "compute,ddp,fsdp2,zero1,zero2,zero3";
  std::string peer_settings = "users";
  std::string python;  ///< of the peers' environment and the picture; empty: see find_python()
  std::int64_t peer_timeout_s = 600;
  bool as_rank = false;  ///< internal: this process is a rank that `zero compare` has started
};

inline constexpr std::int64_t kCompareSteps = 12;

/// Adds the options to `command`. Their values are in `options` once it is parsed.
void add_compare_options(CLI::App& command, CompareOptions& options);

}  // namespace zero::app
