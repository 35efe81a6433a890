#pragma once
// How an engine's 16-bit products are computed on the CPU (zero/cpu_products.h).
#include <string>
#include <vector>

#include "zero/config.h"
#include "zero/cpu_products.h"
#include "zero/group.h"

namespace zero::engine {

/// *Collective.* One way for all ranks, for as long as what is returned lives: what the configuration says, or what
/// rank 0's processor does faster. With fp32 parameters this is for products under autocast, bf16 and fp16, and there
/// is no scope for those that stay native. Adds a notice where products are computed in fp32, but for "auto" with fp32
/// parameters. Throws ConfigError.
std::vector<CpuProductsScope> choose_cpu_products(CpuProducts wanted, DType param_dtype, Group& group,
                                                  std::vector<std::string>& notices);

}  // namespace zero::engine
