#pragma once
// ModelView: a model as ZeRO sees it, as named tensors. Anything that has these can be trained: initialize() makes a
// view of a torch::nn::Module itself; other front ends fill one in.
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
    /// A kernel takes it together with parameters and needs it in their dtype, like a batch norm's running statistics.
    bool in_parameter_dtype = false;
    /// False: recomputed when the model is built; neither saved, loaded nor exported.
    bool persistent = true;
  };
  /// In order of registration: a module's own before its children's. A tied tensor is listed under each of its names.
  std::vector<Parameter> parameters;
  std::vector<Buffer> buffers;

  using Visit = std::function<bool(const at::Tensor&)>;
  /// Visits the model's current parameters until `visit` returns false; then it returns false too. Each call of the
  /// engine uses it to detect parameters that were added, removed or replaced. Called several times per step. Not
  /// given: the parameters are assumed to stay those above.
  std::function<bool(const Visit& visit)> walk = {};
  /// The model's current view, to name parameters in the error when the model has changed. Set it together with `walk`.
  std::function<ModelView()> now = {};

  /// The view of a module, which it keeps alive. Throws ModelError for an empty pointer.
  static ModelView of(std::shared_ptr<torch::nn::Module> module);
};

namespace plan {
struct ModelShape;
/// Parameter sizes and trainability for plan_memory() and suggest(). They do not tell how much memory activations take.
/// Local; reads no values, so the tensors may be on the device "meta".
ModelShape shape_of(const ModelView& model, std::string name = "the model");
}  // namespace plan

}  // namespace zero
