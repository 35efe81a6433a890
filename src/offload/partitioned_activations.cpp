// Activations that model-parallel ranks have in common: each keeps its part.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/gather_values.h"
#include "offload/activations.h"
#include "zero/activations.h"
#include "zero/errors.h"

namespace zero {
namespace {

class Partitioned final : public ActivationHome {
 public:
  Partitioned(Group group, std::int64_t min_nbytes) : group_(std::move(group)), min_nbytes_(min_nbytes) {}

  std::shared_ptr<Kept> keep(const at::Tensor& tensor) override;
  at::Tensor take(const at::Tensor& like, const at::Tensor& part);
  std::string description() const override {
    return fmt::format("activations in {} parts, one on each model-parallel rank", group_.size());
  }

 private:
  /// Bytes of each rank.
  std::vector<std::int64_t> parts(std::int64_t nbytes) const {
    constexpr std::int64_t kUnit = 64;
    const std::int64_t ranks = group_.size(), units = (nbytes + kUnit - 1) / kUnit;
    std::vector<std::int64_t> counts;
    for (std::int64_t rank = 0, begin = 0; rank < ranks; ++rank) {
      const std::int64_t end = std::min(nbytes, units * (rank + 1) / ranks * kUnit);
      counts.push_back(end - std::exchange(begin, end));
    }
    return counts;
  }

  Group group_;
  std::int64_t min_nbytes_;
};

class KeptPart final : public ActivationHome::Kept {
 public:
  /// `like`: without memory.
  KeptPart(std::shared_ptr<Partitioned> home, at::Tensor like, at::Tensor part)
      : home_(std::move(home)), like_(std::move(like)), part_(std::move(part)) {}
  at::Tensor take() override { return home_->take(like_, part_); }

 private:
  std::shared_ptr<Partitioned> home_;
  at::Tensor like_, part_;
};

std::shared_ptr<ActivationHome::Kept> Partitioned::keep(const at::Tensor& tensor) {
  if (group_.size() == 1 || !offload::can_leave_memory(tensor, min_nbytes_)) return nullptr;
  const at::NoGradGuard no_grad;
  const auto* bytes = static_cast<const std::uint8_t*>(tensor.const_data_ptr());
  const std::uint64_t hash = XXH3_64bits(bytes, tensor.nbytes());
  const std::vector<std::uint64_t> hashes = comm::gather_values(group_, hash, "activations in parts");
  if (std::ranges::count(hashes, hash) != static_cast<std::ptrdiff_t>(hashes.size())) {
    throw ModelError(
        "partitioned activations: an input of a part is not the same on all model-parallel ranks, and cannot be kept "
        "in parts; keep it whole (activation_checkpointing.partition_activations: false), or make it the same");
  }
  const std::vector<std::int64_t> counts = parts(static_cast<std::int64_t>(tensor.nbytes()));
  std::int64_t begin = 0;
  for (int rank = 0; rank < group_.rank(); ++rank) begin += counts[static_cast<std::size_t>(rank)];
  const std::int64_t mine = counts[static_cast<std::size_t>(group_.rank())];
  at::Tensor part = at::empty({mine}, at::kByte);
  std::memcpy(part.mutable_data_ptr(), bytes + begin, static_cast<std::size_t>(mine));
  const at::Tensor like = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  return std::make_shared<KeptPart>(std::static_pointer_cast<Partitioned>(shared_from_this()), like, std::move(part));
}

at::Tensor Partitioned::take(const at::Tensor& like, const at::Tensor& part) {
  const at::NoGradGuard no_grad;
  at::Tensor whole = at::empty_strided(like.sizes(), like.strides(), like.options().device(at::kCPU));
  group_
      .all_gather(part.const_data_ptr(), whole.mutable_data_ptr(), parts(static_cast<std::int64_t>(whole.nbytes())),
                  DType::kByte, {.label = "activations in parts"})
      .wait();
  return whole;
}

}  // namespace

std::shared_ptr<ActivationHome> partitioned_activations(Group group, std::int64_t min_nbytes) {
  return std::make_shared<Partitioned>(std::move(group), min_nbytes);
}

}  // namespace zero
