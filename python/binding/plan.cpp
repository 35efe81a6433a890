// zero::plan for Python.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "engine.h"
#include "python_model.h"
#include "zero/config.h"
#include "zero/model_view.h"
#include "zero/plan.h"

namespace zerotorch {
namespace py = pybind11;
namespace {

py::dict plan(const zero::plan::ModelShape& shape, const std::string& config, int ranks, int ranks_per_node,
              bool gpus) {
  const auto planned = zero::plan::plan_memory(shape, zero::Config::from_text(config, "config"),
                                               {.ranks = ranks, .ranks_per_node = ranks_per_node, .gpus = gpus});
  py::dict kinds;
  for (int k = 0; k < zero::kMemoryKinds; ++k) {
    const std::string name(zero::memory_kind_name(static_cast<zero::MemoryKind>(k)));
    kinds[py::str(name)] = planned.rank.kinds[k].peak_nbytes;
  }
  py::dict dict;
  dict["stage"] = planned.stage;
  dict["ranks"] = planned.ranks;
  dict["hosts"] = planned.nodes;
  dict["node_shared"] = planned.node_shared;
  dict["param_dtype"] = std::string(zero::dtype_name(planned.param_dtype));
  dict["parameters"] = planned.parameters_numel;
  dict["rank"] = kinds;
  dict["rank_start_nbytes"] = planned.start_nbytes;
  dict["rank_training_nbytes"] = planned.training_nbytes;
  dict["rank_host_nbytes"] = planned.host_nbytes;
  dict["gpus"] = gpus;
  dict["host_nbytes"] = planned.node_nbytes;
  dict["host_training_nbytes"] = planned.node_training_nbytes;
  dict["received_nbytes_per_step"] = planned.traffic.nbytes;
  return dict;
}

py::dict plan_of_module(const py::object& module, const std::string& config, int ranks, int ranks_per_node, bool gpus) {
  return plan(zero::plan::shape_of(view_of(module)), config, ranks, ranks_per_node, gpus);
}

py::dict plan_of_numel(std::int64_t numel, const std::string& config, int ranks, int ranks_per_node, bool gpus) {
  return plan(zero::plan::model_of_numel(numel), config, ranks, ranks_per_node, gpus);
}

}  // namespace

void bind_plan(py::module_& module) {
  module.def("plan_of_module", &plan_of_module, py::arg("module"), py::arg("config"), py::arg("ranks"),
             py::arg("ranks_per_node") = 0, py::arg("gpus") = false);
  module.def("plan_of_numel", &plan_of_numel, py::arg("numel"), py::arg("config"), py::arg("ranks"),
             py::arg("ranks_per_node") = 0, py::arg("gpus") = false);
}

}  // namespace zerotorch
