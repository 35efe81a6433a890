// zerotorch._C: what the Python package needs of libzerotorch.
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <memory>

#include "engine.h"
#include "errors.h"
#include "zero/config.h"
#include "zero/init.h"
#include "zero/launch.h"
#include "zero/memory.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, module) {
  module.attr("torch_version") = TORCH_VERSION;
  module.attr("version") = ZERO_VERSION;
  zerotorch::register_errors();
  zerotorch::bind_group(module);
  zerotorch::bind_engine(module);
  zerotorch::bind_plan(module);
  zerotorch::bind_cpu_products(module);
  module.def(
      "resolve_config",
      [](const std::string& text, const std::string& source) {
        return zero::Config::from_text(text, source).to_json();
      },
      py::arg("text"), py::arg("source") = "config");
  module.def("launched_rank", []() -> py::object {
    const auto rank = zero::launched_rank();
    if (!rank) return py::none();
    return py::make_tuple(rank->launcher, rank->rank, rank->size);
  });
  py::class_<zero::DeferredInit, std::unique_ptr<zero::DeferredInit>>(module, "DeferredInit");
  module.def(
      "open_deferred_init",
      [](bool without_values) {
        return std::make_unique<zero::DeferredInit>(zero::DeferredInitOptions{.without_values = without_values});
      },
      py::arg("without_values"));
  module.def("empty_cache", &zero::empty_cache);
  module.def("resident_nbytes", &zero::resident_nbytes);
}
