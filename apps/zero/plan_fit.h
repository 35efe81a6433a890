#pragma once
// The plan of a run of zero::GPT, for `zero plan` and before `zero train` starts its ranks.
#include <string>

#include "zero/plan.h"

namespace zero {
struct GPTOptions;
}

namespace zero::app {

/// The parameters of zero::GPT in its order, without building it.
plan::ModelShape shape_of(const GPTOptions& options, const std::string& name);

/// Compares what training `model` takes on this host with the memory that is free here. Returns a line of
/// warning (with its line end) when less than a tenth would be left, or, with `force`, when it cannot fit;
/// else nothing. `ranks_per_node`: ranks on this host, 0: all. `config` needs its batch sizes. Local. Throws
/// ConfigError with both numbers and the smallest change that fits when it cannot, unless `force`.
std::string check_fits(const GPTOptions& model, const Config& config, int ranks, int ranks_per_node,
                       bool force);

/// The same against `available_nbytes`.
std::string check_fits(const GPTOptions& model, const Config& config, const plan::Cluster& cluster,
                       bool force);

/// "zero_optimization.stage 2, then a host needs 3.10 GB"; empty when nothing helps.
std::string describe_suggestion(const plan::ModelShape& model, const Config& config,
                                const plan::Cluster& cluster);

}  // namespace zero::app
