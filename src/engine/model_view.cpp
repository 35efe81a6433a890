// ModelView of a torch::nn::Module, and its shape for the plan.
#include "zero/model_view.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <set>

#include "engine/inventory.h"
#include "intercept/module_walk.h"
#include "zero/errors.h"
#include "zero/plan.h"

namespace zero {
namespace {

/// The tensors that a libtorch norm hands to a kernel together with its weights.
std::set<const void*> statistics_of(const torch::nn::Module& module) {
  std::set<const void*> statistics;
  const auto add = [&]<class Norm>(const Norm* norm) {
    if (!norm || !norm->weight.defined()) return;
    for (const at::Tensor& tensor : {norm->running_mean, norm->running_var}) {
      if (tensor.defined()) statistics.insert(tensor.unsafeGetTensorImpl());
    }
  };
  using namespace torch::nn;
  add(dynamic_cast<const BatchNorm1dImpl*>(&module));
  add(dynamic_cast<const BatchNorm2dImpl*>(&module));
  add(dynamic_cast<const BatchNorm3dImpl*>(&module));
  add(dynamic_cast<const InstanceNorm1dImpl*>(&module));
  add(dynamic_cast<const InstanceNorm2dImpl*>(&module));
  add(dynamic_cast<const InstanceNorm3dImpl*>(&module));
  return statistics;
}

void add_module(const torch::nn::Module& module, const std::string& prefix, ModelView& view) {
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    view.parameters.push_back({prefix + item.key(), item.value()});
  const auto statistics = statistics_of(module);
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    const at::Tensor& tensor = item.value();
    view.buffers.push_back(
        {prefix + item.key(), tensor, tensor.defined() && statistics.contains(tensor.unsafeGetTensorImpl())});
  }
  for (const auto& child : module.named_children()) {
    if (child.value()) add_module(*child.value(), prefix + child.key() + ".", view);
  }
}

}  // namespace

ModelView ModelView::of(std::shared_ptr<torch::nn::Module> module) {
  if (!module) throw ModelError("initialize: the module is empty (a default-constructed module holder?)");
  ModelView view;
  add_module(*module, "", view);
  view.walk = [module](const Visit& visit) { return intercept::walk_parameters(*module, visit); };
  view.now = [module] { return of(module); };
  return view;
}

namespace plan {

ModelShape shape_of(const ModelView& model, std::string name) {
  ModelShape shape;
  shape.name = std::move(name);
  for (const auto& item : engine::take_inventory(model).parameters)
    shape.parameters.push_back(
        {item.name, item.tensor.numel(), item.tensor.requires_grad(), item.tensor.sizes().vec()});
  return shape;
}

}  // namespace plan
}  // namespace zero
