#pragma once
// ModelView: what a model is to ZeRO, names and tensors. Whatever holds these can be trained: initialize() makes one
// of a torch::nn::Module by itself, other front ends fill it in.
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace zero {

struct ModelView {
  struct Parameter {
    std::string name;  ///< "h.0.qkv.weight" is parameter "weight" of module "h.0.qkv"
    at::Tensor tensor;
  };
  struct Buffer {
    std::string name;
    at::Tensor tensor;
    /// Goes to a kernel together with parameters that must have its dtype, as a batch norm's running statistics.
    bool in_parameter_dtype = false;
    /// False: computed again by whoever makes the model; neither saved, loaded nor exported.
    bool persistent = true;
  };
  /// In order of registration: a module's own before its children's. A tied tensor is there under each of its names.
  std::vector<Parameter> parameters;
  std::vector<Buffer> buffers;

  using Visit = std::function<bool(const at::Tensor&)>;
  /// Visits the parameters that the model has now, until `visit` returns false, and returns false then: so that each
  /// call of the engine finds out whether some were added, removed or replaced. Called several times a step. Not
  /// given: they are taken to stay those above.
  std::function<bool(const Visit& visit)> walk = {};
  /// The model as it is now, for the names in the error when it has changed. Goes with `walk`.
  std::function<ModelView()> now = {};

  /// Of a module, which the view keeps alive. Throws ModelError for an empty pointer.
  static ModelView of(std::shared_ptr<torch::nn::Module> module);
};

namespace plan {
struct ModelShape;
/// For plan_memory() and suggest(): sizes of parameters and which are trainable. What activations take is not known
/// from them. Local; reads no values, so that the tensors may be on the device "meta".
ModelShape shape_of(const ModelView& model, std::string name = "the model");
}  // namespace plan

}  // namespace zero
