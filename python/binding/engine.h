#pragma once
#include <torch/csrc/utils/pybind.h>

namespace zerotorch {

/// Group, Engine and GatheredParameters.
void bind_group(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_plan(pybind11::module_& module);

}  // namespace zerotorch
