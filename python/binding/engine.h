#pragma once
#include <torch/csrc/utils/pybind.h>

namespace zerotorch {

/// Group, and waits that see signals.
void bind_group(pybind11::module_& module);
/// Engine and Gathered.
void bind_engine(pybind11::module_& module);
void bind_cpu_products(pybind11::module_& module);
/// plan_of_module(), plan_of_numel() and Schedule.
void bind_plan(pybind11::module_& module);

}  // namespace zerotorch
