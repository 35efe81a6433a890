#pragma once
// The parameters that a module has registered, visited without a name, a copy or an allocation: so that every
// step can afford to look whether the module is still the one that was handed over.
#include <torch/nn/module.h>

namespace zero::intercept {
namespace detail {

struct ParametersAccess : torch::nn::Module {
  using Parameters = torch::OrderedDict<std::string, at::Tensor>;
  static Parameters torch::nn::Module::*member() { return &ParametersAccess::parameters_; }
};

/// The children are private, and their accessor copies. An explicit instantiation may name a private member.
using Children = torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>;
Children torch::nn::Module::*children_member();
template <Children torch::nn::Module::*kMember>
struct ChildrenAccess {
  friend Children torch::nn::Module::*children_member() { return kMember; }
};
template struct ChildrenAccess<&torch::nn::Module::children_>;

}  // namespace detail

/// Calls `visit(tensor)` for every registered parameter, a tied one each time, undefined ones too: those of a
/// module, then those of its children, in the order of registration. `visit` returns false to stop.
template <class Visit>
bool walk_parameters(torch::nn::Module& module, Visit&& visit) {
  for (const auto& item : module.*detail::ParametersAccess::member()) {
    if (!visit(item.value())) return false;
  }
  for (const auto& child : module.*detail::children_member()) {
    if (child.value() && !walk_parameters(*child.value(), visit)) return false;
  }
  return true;
}

}  // namespace zero::intercept
