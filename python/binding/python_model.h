#pragma once
// A Python torch.nn.Module as the engine sees one: names and tensors, found in the module's own dictionaries.
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <vector>

#include "zero/model_view.h"

namespace zerotorch {

/// A Python object that C++ code without the GIL may keep and let go.
using Shared = std::shared_ptr<pybind11::object>;
Shared share(pybind11::object object);

/// Parameters and buffers of `module`, which the view does not keep alive: Python's engine does, and what is left of one
/// must not. Its walk() takes the GIL, and visits nothing of a module that is gone. Throws ModelError for a TorchScript
/// module and for lazy parameters without a shape. With the GIL.
zero::ModelView view_of(const pybind11::object& module);

/// Buffers that a program may replace by assignment (self.mask = ...): the engine goes by the tensor objects of
/// initialize().
class BufferWatch {
 public:
  explicit BufferWatch(const pybind11::object& module);
  /// Gives the buffers that were replaced since the values of their replacements, and the module the old tensor objects
  /// back. With the GIL. Throws ModelError for one of another dtype, or that was removed.
  void take_back();

 private:
  struct Entry {
    Shared buffers;  ///< the dictionary of a module
    std::string key, name;
    at::Tensor tensor;
  };
  std::vector<Entry> entries_;
};

}  // namespace zerotorch
