#include "intercept/gradient_hook.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace zero::intercept {
namespace {

using torch::autograd::variable_list;

/// Autograd keeps only a weak reference to a parameter's AccumulateGrad node; the hook lives on the node.
struct Hooked {
  // A shared_ptr or an intrusive_ptr, by version of libtorch.
  decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>())) node;
  std::shared_ptr<GradientSink> sink;
  ~Hooked() {
    if (sink) *sink = nullptr;  // a node kept alive by an old graph must not call into a dead engine
  }
};

}  // namespace

std::shared_ptr<void> hook_gradient(const at::Tensor& parameter, GradientSink sink) {
  auto hooked = std::make_shared<Hooked>();
  hooked->sink = std::make_shared<GradientSink>(std::move(sink));
  auto node = torch::autograd::impl::grad_accumulator(parameter);
  // A weak handle: the node owns the hook, the hook must not own the parameter.
  c10::weak_intrusive_ptr<c10::TensorImpl> weak(parameter.getIntrusivePtr());
  node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [weak, call = hooked->sink](const variable_list& outputs, const variable_list&) {
        auto impl = weak.lock();
        if (!impl || !*call) return outputs;
        at::Tensor variable(impl);
        at::Tensor gradient = variable.grad();
        if (gradient.defined()) {
          variable.mutable_grad().reset();
          (*call)(gradient);
        }
        return outputs;
      }));
  hooked->node = std::move(node);
  return hooked;
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

void bump_version(const at::Tensor& parameter) { torch::autograd::impl::bump_version(parameter); }

}  // namespace zero::intercept
