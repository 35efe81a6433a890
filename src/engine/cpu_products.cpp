#include "engine/cpu_products.h"

#include <fmt/format.h>

namespace zero {

CpuProductsScope cpu_products_of_all(CpuProducts wanted, DType dtype, Group& group) {
  auto way = static_cast<std::int64_t>(wanted);
  if (wanted == CpuProducts::kAuto) {
    if (group.rank() == 0) way = static_cast<std::int64_t>(CpuProductsScope(wanted, dtype).chosen());
    group.broadcast(&way, 1, DType::kInt64, 0, {.label = "cpu_products"}).wait();
  }
  return {static_cast<CpuProducts>(way), dtype};
}

namespace engine {

std::vector<CpuProductsScope> choose_cpu_products(CpuProducts wanted, DType param_dtype, Group& group,
                                                  std::vector<std::string>& notices) {
  std::vector<CpuProductsScope> scopes;
  if (param_dtype == DType::kFloat32) {  // the program may compute under autocast
    if (wanted == CpuProducts::kNative) return scopes;
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      CpuProductsScope scope = cpu_products_of_all(wanted, dtype, group);
      if (scope.chosen() == CpuProducts::kFp32) scopes.push_back(std::move(scope));
    }
    if (wanted == CpuProducts::kAuto) return scopes;  // who computes in fp32 need not hear of it
  } else {
    scopes.push_back(cpu_products_of_all(wanted, param_dtype, group));
  }
  for (const CpuProductsScope& scope : scopes) {
    if (scope.chosen() != CpuProducts::kFp32) continue;
    notices.push_back(fmt::format("{} products are computed in fp32 and rounded once{} (zerotorch.cpu_products)",
                                  dtype_name(scope.dtype()),
                                  wanted == CpuProducts::kAuto ? ": this CPU has no fast instructions for them" : ""));
  }
  return scopes;
}

}  // namespace engine

}  // namespace zero
