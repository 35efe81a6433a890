#pragma once
// Which optimizer updates which parameter, and with what.
#include <memory>
#include <string>

#include "engine/inventory.h"
#include "engine/optimizers/optimizer_source.h"
#include "sharding/sharded_optimizer.h"
#include "zero/config.h"
#include "zero/engine.h"

namespace zero::engine {

struct OptimizerSetup {
  optim::Algorithm algorithm = optim::Algorithm::kAdam;
  sharding::OptimizerOptions options;  ///< without where states live
  std::unique_ptr<OptimizerSource> source;
  std::string description;  ///< for the log
};

/// From the JSON, the client's optimizer or the program's. Local. Throws ConfigError.
OptimizerSetup set_up_optimizer(const Config& config, const InitializeOptions& options, const Inventory& inventory);

}  // namespace zero::engine
