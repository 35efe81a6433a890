// zero::Group, waits that see signals.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include "engine.h"
#include "zero/errors.h"
#include "zero/group.h"

namespace zerotorch {
namespace py = pybind11;
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

/// Python runs signal handlers in its main thread only, between two of its instructions: a wait is none.
void check_signals() {
  if (::gettid() != ::getpid() || !Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void broadcast(zero::Group& group, at::Tensor tensor, int root) {
  if (!tensor.is_contiguous() || !tensor.device().is_cpu())
    throw zero::ConfigError("broadcast: wanted a contiguous tensor on the CPU");
  group
      .broadcast(tensor.mutable_data_ptr(), static_cast<std::int64_t>(tensor.nbytes()), zero::DType::kByte, root,
                 {.label = "broadcast"})
      .wait();
}

}  // namespace

void bind_group(py::module_& module) {
  zero::set_interrupt_check(&check_signals);
  py::class_<zero::Group>(module, "Group")
      .def_property_readonly("rank", &zero::Group::rank)
      .def_property_readonly("size", &zero::Group::size)
      .def_property_readonly("local_rank", &zero::Group::local_rank)
      .def_property_readonly("local_size", &zero::Group::local_size)
      .def_property_readonly("backend", &zero::Group::backend)
      .def_property_readonly("single_node", &zero::Group::single_node)
      .def_property_readonly("failed", &zero::Group::failed)
      .def("split", &zero::Group::split, py::arg("color"), NoGil())
      .def("split_by_host", &zero::Group::split_by_host, NoGil())
      .def(
          "barrier", [](zero::Group& group) { group.barrier({.label = "barrier"}).wait(); }, NoGil())
      .def("broadcast", &broadcast, py::arg("tensor"), py::arg("root"), NoGil())
      .def("abort", &zero::Group::abort, py::arg("reason"));
  module.def(
      "init_distributed", [] { return zero::init_distributed(); }, NoGil());
}

}  // namespace zerotorch
