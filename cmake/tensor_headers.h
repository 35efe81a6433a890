// What zero_precompile() compiles once for files that know tensors and no modules.
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
