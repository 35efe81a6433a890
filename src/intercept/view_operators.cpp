#include "intercept/view_operators.h"

#include <unordered_set>

namespace zero::intercept {

bool is_view_operator(std::string_view name) {
  // Operators whose autograd part is written by hand (detach) are recorded without their namespace. Those of
  // other libraries are no views, whatever they are called.
  for (const std::string_view ours : {"aten::", "prim::"}) {
    if (name.starts_with(ours)) name.remove_prefix(ours.size());
  }
  static const std::unordered_set<std::string_view> kViews = {"t",
                                                              "transpose",
                                                              "view",
                                                              "view_as",
                                                              "narrow",
                                                              "select",
                                                              "slice",
                                                              "permute",
                                                              "expand",
                                                              "expand_as",
                                                              "unsqueeze",
                                                              "squeeze",
                                                              "detach",
                                                              "alias",
                                                              "as_strided",
                                                              "split",
                                                              "chunk",
                                                              "unbind",
                                                              "movedim",
                                                              "numpy_T",
                                                              "mT",
                                                              "unflatten",
                                                              "split_with_sizes",
                                                              "swapaxes",
                                                              "diagonal",
                                                              "_reshape_alias",
                                                              "size",
                                                              "stride",
                                                              "sym_size",
                                                              "sym_stride",
                                                              "sym_numel",
                                                              "is_same_size",
                                                              "_version",
                                                              "output_nr",
                                                              "requires_grad_",
                                                              "retain_grad",
                                                              "retains_grad",
                                                              "is_leaf",
                                                              "device"};
  return kViews.contains(name);
}

}  // namespace zero::intercept
