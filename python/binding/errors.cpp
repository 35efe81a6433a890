#include "errors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "zero/errors.h"

namespace zerotorch {
namespace py = pybind11;
namespace {

void raise(const char* name, const std::exception& error) {
  const py::object type = py::module_::import("zerotorch.errors").attr(name);
  py::set_error(type, error.what());
}

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    std::rethrow_exception(pointer);
  } catch (const zero::ConfigError& error) {
    raise("ConfigError", error);
  } catch (const zero::IoError& error) {
    raise("ZeroIOError", error);
  } catch (const zero::CommError& error) {
    raise("CommError", error);
  } catch (const zero::CheckpointError& error) {
    raise("CheckpointError", error);
  } catch (const zero::ModelError& error) {
    raise("ModelError", error);
  } catch (const zero::InternalError& error) {
    raise("InternalError", error);
  } catch (const zero::Error& error) {
    raise("ZeroError", error);
  } catch (python_error& error) {  // of Python code that ran inside backward
    error.restore();
  } catch (const c10::Error& error) {
    py::set_error(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

}  // namespace

void register_errors() {
  py::register_local_exception_translator(&translate);
  const py::dict words = py::module_::import("zerotorch.errors").attr("IN_PYTHON");
  std::vector<std::pair<std::string, std::string>> from_to;
  for (const auto& [from, to] : words) from_to.emplace_back(py::cast<std::string>(from), py::cast<std::string>(to));
  zero::detail::set_error_words(std::move(from_to));
}

}  // namespace zerotorch
