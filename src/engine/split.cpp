#include "engine/split.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <numeric>

namespace zero::engine {

std::int64_t Split::begin_of(int other) const {
  return std::accumulate(sizes.begin(), sizes.begin() + other, std::int64_t{0});
}

std::vector<std::int64_t> Split::whole_shape(std::vector<std::int64_t> part) const {
  if (is_split()) part[static_cast<std::size_t>(dim)] = begin_of(static_cast<int>(sizes.size()));
  return part;
}

std::vector<checkpoint::Box> Split::boxes(const std::vector<std::int64_t>& part) const {
  std::vector<checkpoint::Box> boxes;
  for (std::size_t other = 0; is_split() && other < sizes.size(); ++other) {
    checkpoint::Box box;
    for (const std::int64_t size : part) box.emplace_back(0, size);
    const std::int64_t begin = begin_of(static_cast<int>(other));
    box[static_cast<std::size_t>(dim)] = {begin, begin + sizes[other]};
    if (checkpoint::numel_of(box) > 0) boxes.push_back(std::move(box));
  }
  return boxes;
}

std::int64_t Split::elements_before(const std::vector<std::int64_t>& part) const {
  if (!is_split()) return 0;
  std::int64_t slice = 1;  // elements of one place along `dim`
  for (std::size_t d = 0; d < part.size(); ++d) slice *= static_cast<int>(d) == dim ? 1 : part[d];
  return begin() * slice;
}

at::Tensor Split::part_of(const at::Tensor& whole) const {
  return is_split() ? whole.narrow(dim, begin(), sizes[static_cast<std::size_t>(rank)]) : whole;
}

at::Tensor Split::gather(const at::Tensor& part, Group& model_parallel, std::string_view label) const {
  if (!is_split()) return part;
  const at::Tensor mine = part.contiguous();
  std::vector<at::Tensor> parts;
  std::vector<std::int64_t> counts;
  auto shape = part.sizes().vec();
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    shape[static_cast<std::size_t>(dim)] = size;
    counts.push_back(c10::multiply_integers(shape) * static_cast<std::int64_t>(mine.element_size()));
    total += counts.back();
  }
  const at::Tensor bytes = at::empty({total}, at::TensorOptions().dtype(at::kByte));
  model_parallel.all_gather(mine.const_data_ptr(), bytes.mutable_data_ptr(), counts, DType::kByte, {.label = label})
      .wait();
  std::int64_t at = 0;
  for (std::size_t other = 0; other < sizes.size(); at += counts[other++]) {
    shape[static_cast<std::size_t>(dim)] = sizes[other];
    parts.push_back(bytes.narrow(0, at, counts[other]).view(mine.scalar_type()).view(shape));
  }
  return at::cat(parts, dim);
}

}  // namespace zero::engine
