#include "persistence/load_items.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "checkpoint/element_order.h"
#include "engine/buffers.h"
#include "engine/tensor_types.h"

namespace zero::persistence {
namespace {

using checkpoint::Target;
using checkpoint::TensorInfo;
using engine::Inventory;
using engine::Split;
using engine::strides_of;
using engine::to_scalar_type;
using layout::Range;

constexpr std::size_t kMostBesideNbytes = 256 << 20;

/// Elements of a tensor in its file order before those of this rank's part, when these lie there one after the other as
/// in this rank's memory.
std::optional<std::int64_t> begin_in_file(const checkpoint::ElementOrder& order, const Split& split,
                                          const std::vector<std::int64_t>& part,
                                          const std::vector<std::int64_t>& strides) {
  const bool same_dims = checkpoint::has_one_order(part) || checkpoint::dim_order_of(part, strides) == order.dim_order;
  if (!same_dims || split.boxes(part) != order.boxes) return std::nullopt;
  return split.elements_before(part);
}

/// A view or copy of [shape], from all elements of a tensor in the order of its file.
at::Tensor whole_from_file(const at::Tensor& values, const TensorInfo& info) {
  const auto& order = info.order;
  if (order.boxes.empty()) return values.as_strided(info.shape, strides_of(info.shape, order.dim_order));
  at::Tensor whole = at::empty(info.shape, values.options());
  std::int64_t begin = 0;
  for (const auto& box : order.boxes) {
    at::Tensor place = whole;
    for (std::size_t d = 0; d < box.size(); ++d)
      place = place.narrow(static_cast<std::int64_t>(d), box[d].first, box[d].second - box[d].first);
    const auto shape = checkpoint::shape_of(box);
    const std::int64_t numel = checkpoint::numel_of(box);
    place.copy_(values.narrow(0, begin, numel).as_strided(shape, strides_of(shape, order.dim_order)));
    begin += numel;
  }
  return whole;
}

/// Memory that the item's elements are read into.
std::byte* memory_of(LoadItem& item, const TensorInfo& info) {
  if (item.direct.defined()) return static_cast<std::byte*>(item.direct.mutable_data_ptr());
  item.beside = at::empty({item.numel}, at::TensorOptions().dtype(to_scalar_type(info.dtype)));
  return static_cast<std::byte*>(item.beside.mutable_data_ptr());
}

}  // namespace

LoadItem parameter_item(const Engine::Impl& impl, int p, std::size_t index, const TensorInfo& info, Range mine,
                        const Destination& destination) {
  const auto& parameter = impl.sharded.model.parameters[p];
  const auto& split = impl.trained.inventory.parameters[static_cast<std::size_t>(p)].split;
  const auto part_shape = parameter.tensor.sizes().vec();
  const auto strides = parameter.tensor.strides().vec();
  const Range part{mine.begin - parameter.range.begin, mine.end - parameter.range.begin};
  const at::Tensor view = destination.view_of ? destination.view_of(mine) : at::Tensor();
  const auto begin = begin_in_file(info.order, split, part_shape, strides);
  if (begin && view.defined() && view.is_cpu() && info.dtype == checkpoint::ElementType::kF32)
    return {index, *begin + part.begin, part.numel(), view, {}, {}};
  const auto give = [view, assign = destination.assign, mine](const at::Tensor& values) {
    if (view.defined()) {
      view.copy_(values);
    } else {
      assign(mine, values);
    }
  };
  if (begin) return {index, *begin + part.begin, part.numel(), {}, {}, give};
  // The whole tensor, of which this rank's part is turned into the order of this model's memory.
  const auto turn_and_give = [give, part, part_shape, strides, split, info](const at::Tensor& values) {
    const at::Tensor turned = at::empty({c10::multiply_integers(part_shape)}, values.options());
    turned.as_strided(part_shape, strides).copy_(split.part_of(whole_from_file(values, info)));
    give(turned.narrow(0, part.begin, part.numel()));
  };
  return {index, 0, info.numel(), {}, {}, turn_and_give};
}

LoadItem buffer_item(const Inventory::Named& buffer, std::size_t index, const TensorInfo& info) {
  const auto give = [tensor = buffer.tensor, split = buffer.split, info](const at::Tensor& values) {
    engine::write_stored(tensor, split.part_of(whole_from_file(values, info)));
  };
  return {index, 0, info.numel(), {}, {}, give};
}

std::vector<Target> verification_targets(const std::vector<LoadItem>& items) {
  std::vector<Target> targets;
  targets.reserve(items.size());
  for (const auto& item : items) targets.push_back({item.tensor, item.begin, item.numel, nullptr});
  return targets;
}

void read_items(std::vector<LoadItem>& items, const checkpoint::Manifest& manifest, checkpoint::RangeReader& reader) {
  at::NoGradGuard no_grad;
  std::vector<Target> targets;
  std::size_t first = 0, beside_nbytes = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    LoadItem& item = items[i];
    targets.push_back({item.tensor, item.begin, item.numel, memory_of(item, manifest.tensors[item.tensor].info)});
    if (item.beside.defined()) beside_nbytes += item.beside.nbytes();
    if (beside_nbytes < kMostBesideNbytes && i + 1 < items.size()) continue;
    reader.read(targets);
    for (; first <= i; ++first) {
      if (items[first].beside.defined()) items[first].apply(items[first].beside);
      items[first].beside = at::Tensor();
    }
    targets.clear();
    beside_nbytes = 0;
  }
}

}  // namespace zero::persistence
