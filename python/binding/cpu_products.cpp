// zero::CpuProductsScope for Python: zerotorch/cpu_products.py.
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "engine.h"
#include "zero/cpu_products.h"
#include "zero/errors.h"
#include "zero/group.h"

namespace zerotorch {
namespace py = pybind11;
namespace {

zero::CpuProducts way_of(const std::string& name) {
  if (name == "auto") return zero::CpuProducts::kAuto;
  if (name == "native") return zero::CpuProducts::kNative;
  if (name == "fp32") return zero::CpuProducts::kFp32;
  throw zero::ConfigError("cpu_products: '" + name + "'; want auto, native or fp32");
}

zero::DType dtype_of(const std::string& name) {
  for (const auto dtype : {zero::DType::kFloat32, zero::DType::kBFloat16, zero::DType::kFloat16}) {
    if (name == zero::dtype_name(dtype)) return dtype;
  }
  throw zero::ConfigError("cpu_products: dtype '" + name + "'; want fp32, bf16 or fp16");
}

const char* name_of(zero::CpuProducts way) { return way == zero::CpuProducts::kFp32 ? "fp32" : "native"; }

}  // namespace

void bind_cpu_products(py::module_& module) {
  py::class_<zero::CpuProductsScope>(module, "CpuProductsScope")
      .def(py::init([](const std::string& way, const std::string& dtype) {
             return std::make_unique<zero::CpuProductsScope>(way_of(way), dtype_of(dtype));
           }),
           py::arg("way"), py::arg("dtype"))
      .def_property_readonly("chosen", [](const zero::CpuProductsScope& scope) { return name_of(scope.chosen()); });
  module.def(
      "cpu_products_of_all",
      [](const std::string& way, const std::string& dtype, zero::Group& group) {
        const py::gil_scoped_release release;
        return zero::cpu_products_of_all(way_of(way), dtype_of(dtype), group);
      },
      py::arg("way"), py::arg("dtype"), py::arg("group"));
  module.def(
      "measure_cpu_products",
      [](const std::string& dtype, int edge) {
        const py::gil_scoped_release release;
        const auto speed = zero::measure_cpu_products(dtype_of(dtype), edge);
        return std::pair(speed.native, speed.in_fp32);
      },
      py::arg("dtype"), py::arg("edge") = 128);
}

}  // namespace zerotorch
