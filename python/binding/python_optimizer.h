#pragma once
// A Python torch.optim.Optimizer over the engine's fp32 shards.
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "zero/engine.h"

namespace zerotorch {

/// `make(shards)` gets a list of lists of tensors, one list for each group (see zero::OptimizerFactory), and returns a
/// torch.optim.Optimizer over them. With the GIL.
zero::OptimizerFactory python_optimizer_factory(pybind11::function make);

}  // namespace zerotorch
