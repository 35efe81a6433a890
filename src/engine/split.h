#pragma once
// Split: how a parameter or buffer lies over model-parallel ranks.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "checkpoint/element_order.h"
#include "zero/group.h"

namespace zero::engine {

struct Split {
  int dim = -1;                     ///< none: every rank has the whole
  std::vector<std::int64_t> sizes;  ///< of the parts along `dim`, in the order of model-parallel ranks
  int rank = 0;                     ///< this one
  std::vector<int> dim_order;       ///< of all parts in memory, as checkpoint::dim_order_of()

  bool is_split() const { return dim >= 0; }
  /// Where this rank's part begins along `dim`.
  std::int64_t begin() const { return begin_of(rank); }
  /// Of the whole tensor, from that of this rank's part.
  std::vector<std::int64_t> whole_shape(std::vector<std::int64_t> part) const;
  /// All ranks' parts as a checkpoint has them, one box each; of a tensor that is not split, none. Empty parts have no
  /// box.
  std::vector<checkpoint::Box> boxes(const std::vector<std::int64_t>& part) const;
  /// Elements of the boxes before this rank's.
  std::int64_t elements_before(const std::vector<std::int64_t>& part) const;
  /// This rank's part of a whole tensor, a view.
  at::Tensor part_of(const at::Tensor& whole) const;
  /// The whole from this rank's part, the same on every rank of `model_parallel`, contiguous. *Collective.*
  at::Tensor gather(const at::Tensor& part, Group& model_parallel, std::string_view label) const;

 private:
  std::int64_t begin_of(int other) const;
};

}  // namespace zero::engine
