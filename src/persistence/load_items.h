#pragma once
// What a load reads: elements of a checkpoint's tensors, and where in this engine they go.
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/range_reader.h"
#include "engine/engine_impl.h"

namespace zero::persistence {

/// Elements [begin, begin + numel) of a tensor of the checkpoint, in the order of the file.
struct LoadItem {
  std::size_t tensor = 0;
  std::int64_t begin = 0, numel = 0;
  at::Tensor direct;  ///< fp32 memory of the engine's that can be filled as it is
  at::Tensor beside;  ///< else: read here, in the file's dtype, and given to `apply`
  std::function<void(const at::Tensor&)> apply;
};

/// Where elements of a unit go.
struct Destination {
  std::function<at::Tensor(layout::Range)> view_of;  ///< fp32 memory to fill, undefined where there is none
  std::function<void(layout::Range, const at::Tensor&)> assign = {};  ///< where that is not all
};

/// This rank's part of tensor `index`, which has the shape of parameter `p`; `mine`: the part, in the unit, not empty.
LoadItem parameter_item(const Engine::Impl& impl, int p, std::size_t index, const checkpoint::TensorInfo& info,
                        layout::Range mine, const Destination& destination);
/// All of tensor `index`, which goes into the buffer.
LoadItem buffer_item(const engine::Inventory::Named& buffer, std::size_t index, const checkpoint::TensorInfo& info);

/// To verify the items' elements without keeping them.
std::vector<checkpoint::Target> verification_targets(const std::vector<LoadItem>& items);
/// Reads into the engine's own memory, and beside it, piece by piece, what has to be converted. Throws as
/// checkpoint::RangeReader does.
void read_items(std::vector<LoadItem>& items, const checkpoint::Manifest& manifest, checkpoint::RangeReader& reader);

}  // namespace zero::persistence
