#include "intercept/view_operators.h"

#include <unordered_set>

namespace zero::intercept {

bool is_view_operator(std::string_view name) {
  static const std::unordered_set<std::string_view> kViews = {"aten::t",
                                                              "aten::transpose",
                                                              "aten::view",
                                                              "aten::view_as",
                                                              "aten::narrow",
                                                              "aten::select",
                                                              "aten::slice",
                                                              "aten::permute",
                                                              "aten::expand",
                                                              "aten::expand_as",
                                                              "aten::unsqueeze",
                                                              "aten::squeeze",
                                                              "aten::detach",
                                                              "aten::alias",
                                                              "aten::as_strided",
                                                              "aten::split",
                                                              "aten::chunk",
                                                              "aten::unbind",
                                                              "aten::movedim",
                                                              "aten::numpy_T",
                                                              "aten::mT",
                                                              "aten::unflatten",
                                                              "aten::split_with_sizes",
                                                              "aten::swapaxes",
                                                              "aten::diagonal",
                                                              "aten::_reshape_alias",
                                                              "aten::size",
                                                              "aten::stride",
                                                              "aten::sym_size",
                                                              "aten::sym_stride",
                                                              "aten::sym_numel",
                                                              "aten::is_same_size",
                                                              "aten::_version",
                                                              "aten::output_nr",
                                                              "aten::requires_grad_",
                                                              "aten::retain_grad",
                                                              "aten::retains_grad",
                                                              "aten::is_leaf",
                                                              "prim::device"};
  return kViews.contains(name);
}

}  // namespace zero::intercept
