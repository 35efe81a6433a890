#include "python_model.h"

#include <torch/csrc/autograd/python_variable.h>

#include <functional>
#include <stdexcept>

#include "zero/errors.h"

namespace zerotorch {
namespace py = pybind11;
namespace {

constexpr int kDeepest = 500;  // modules in one another: more is a cycle

std::string class_of(py::handle object) { return py::str(py::type::of(object).attr("__qualname__")); }

/// One of the dictionaries in which a module keeps what it has registered.
py::dict dictionary(py::handle module, PyObject* name) {
  PyObject* const found = PyObject_GetAttr(module.ptr(), name);
  if (!found) throw py::error_already_set();
  auto object = py::reinterpret_steal<py::object>(found);
  if (!PyDict_Check(object.ptr())) {
    throw zero::ModelError("a module of class " + class_of(module) +
                           " keeps its parameters in no dictionary (TorchScript?); give the engine the Python module "
                           "that it was made from");
  }
  return py::reinterpret_borrow<py::dict>(object);
}

/// Interned once: attribute names that every walk asks for.
struct Names {
  PyObject* const parameters = PyUnicode_InternFromString("_parameters");
  PyObject* const buffers = PyUnicode_InternFromString("_buffers");
  PyObject* const modules = PyUnicode_InternFromString("_modules");
};
const Names& names() {
  static const Names the_names;
  return the_names;
}

void check_depth(int depth, py::handle module) {
  if (depth > kDeepest) throw zero::ModelError("a module of class " + class_of(module) + " contains itself");
}

const at::Tensor& unpack(py::handle object) {
  static const at::Tensor none;
  if (object.is_none()) return none;
  if (!THPVariable_Check(object.ptr())) throw zero::ModelError("a registered parameter is no tensor");
  return THPVariable_Unpack(object.ptr());
}

bool walk(py::handle module, const zero::ModelView::Visit& visit, int depth) {
  check_depth(depth, module);
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  const py::dict parameters = dictionary(module, names().parameters);
  while (PyDict_Next(parameters.ptr(), &position, &key, &value)) {
    if (!visit(unpack(value))) return false;
  }
  const py::dict children = dictionary(module, names().modules);
  position = 0;
  while (PyDict_Next(children.ptr(), &position, &key, &value)) {
    if (value != Py_None && !walk(value, visit, depth + 1)) return false;
  }
  return true;
}

void require_shape(py::handle parameter, const std::string& name) {
  static const auto* const lazy =
      new py::object(py::module_::import("torch.nn.parameter").attr("UninitializedTensorMixin"));
  if (!py::isinstance(parameter, *lazy)) return;
  throw zero::ModelError("parameter '" + name +
                         "' of a lazy module has no shape yet: run the model once on an input before initialize()");
}

/// A module, then those in it, in the order of registration.
void for_each_module(py::handle module, const std::string& prefix, int depth,
                     const std::function<void(py::handle, const std::string&)>& visit) {
  check_depth(depth, module);
  visit(module, prefix);
  for (const auto& [key, value] : dictionary(module, names().modules)) {
    if (!value.is_none()) for_each_module(value, prefix + std::string(py::str(key)) + ".", depth + 1, visit);
  }
}

/// Norms with running statistics, which their kernels take together with the weights and want in the same dtype.
bool is_norm_with_statistics(py::handle module) {
  static const auto* const norms = new py::object(py::module_::import("torch.nn.modules.batchnorm").attr("_NormBase"));
  return py::isinstance(module, *norms);
}

void add_tensors(py::handle module, const std::string& prefix, zero::ModelView& view) {
  for (const auto& [key, value] : dictionary(module, names().parameters)) {
    const std::string name = prefix + std::string(py::str(key));
    require_shape(value, name);
    view.parameters.push_back({name, unpack(value)});
  }
  const bool is_norm = is_norm_with_statistics(module);
  const py::set transient = py::getattr(module, "_non_persistent_buffers_set", py::set());
  for (const auto& [key, value] : dictionary(module, names().buffers)) {
    const at::Tensor& tensor = unpack(value);
    view.buffers.push_back({.name = prefix + std::string(py::str(key)),
                            .tensor = tensor,
                            .in_parameter_dtype = is_norm && tensor.defined() && tensor.is_floating_point(),
                            .persistent = !transient.contains(key)});
  }
}

}  // namespace

Shared share(py::object object) {
  return Shared(new py::object(std::move(object)), [](py::object* kept) {
    if (!Py_IsInitialized()) {
      (void)kept->release();  // the interpreter has gone, and its objects with it
      delete kept;
      return;
    }
    const py::gil_scoped_acquire gil;
    delete kept;
  });
}

zero::ModelView view_of(const py::object& module) {
  zero::ModelView view;
  for_each_module(module, "", 0,
                  [&view](py::handle one, const std::string& prefix) { add_tensors(one, prefix, view); });
  const Shared reference = share(py::weakref(module));
  view.walk = [reference](const zero::ModelView::Visit& visit) {
    const py::gil_scoped_acquire gil;
    const py::object kept = (*reference)();
    return kept.is_none() || walk(kept, visit, 0);
  };
  view.now = [reference] {
    const py::gil_scoped_acquire gil;
    const py::object kept = (*reference)();
    if (kept.is_none()) throw zero::ModelError("the module of this engine is gone");
    return view_of(kept);
  };
  return view;
}

BufferWatch::BufferWatch(const py::object& module) {
  for_each_module(module, "", 0, [this](py::handle owner, const std::string& prefix) {
    const py::dict buffers = dictionary(owner, names().buffers);
    for (const auto& [key, value] : buffers) {
      const std::string text = py::str(key);
      if (!value.is_none()) entries_.push_back({share(buffers), text, prefix + text, unpack(value)});
    }
  });
}

void BufferWatch::take_back() {
  for (Entry& entry : entries_) {
    const py::dict buffers = py::reinterpret_borrow<py::dict>(*entry.buffers);
    const py::str key(entry.key);
    if (!buffers.contains(key) || buffers[key].is_none())
      throw zero::ModelError("buffer '" + entry.name + "' was removed since initialize(); make a new engine");
    const at::Tensor now = unpack(buffers[key]);
    if (now.is_same(entry.tensor)) continue;
    if (now.scalar_type() != entry.tensor.scalar_type()) {
      throw zero::ModelError("buffer '" + entry.name + "' was " + c10::toString(entry.tensor.scalar_type()) +
                             " at initialize() and was replaced by a tensor that is " +
                             c10::toString(now.scalar_type()) + "; keep its dtype");
    }
    entry.tensor.set_data(now.detach());
    buffers[key] = py::reinterpret_steal<py::object>(THPVariable_Wrap(entry.tensor));
  }
}

}  // namespace zerotorch
