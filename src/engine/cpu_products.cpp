#include "engine/cpu_products.h"

#include <fmt/format.h>

namespace zero::engine {

std::vector<CpuProductsScope> choose_cpu_products(CpuProducts wanted, DType param_dtype, Group& group,
                                                  std::vector<std::string>& notices) {
  std::vector<DType> dtypes = {param_dtype};
  if (param_dtype == DType::kFloat32) {
    dtypes.clear();
    if (wanted == CpuProducts::kFp32) dtypes = {DType::kBFloat16, DType::kFloat16};
  }
  std::vector<CpuProductsScope> scopes;
  for (const DType dtype : dtypes) {
    std::int64_t way = static_cast<std::int64_t>(wanted);
    if (wanted == CpuProducts::kAuto) {
      if (group.rank() == 0) way = static_cast<std::int64_t>(CpuProductsScope(wanted, dtype).chosen());
      group.broadcast(&way, 1, DType::kInt64, 0, {.label = "cpu_products"}).wait();
    }
    scopes.emplace_back(static_cast<CpuProducts>(way), dtype);
    if (scopes.back().chosen() != CpuProducts::kFp32) continue;
    notices.push_back(fmt::format("{} products are computed in fp32 and rounded once{} (zerotorch.cpu_products)",
                                  dtype_name(dtype),
                                  wanted == CpuProducts::kAuto ? ": this CPU has no fast instructions for them" : ""));
  }
  return scopes;
}

}  // namespace zero::engine
