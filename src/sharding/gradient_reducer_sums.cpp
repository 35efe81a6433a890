// GradientReducer: what is done with the sums of a window.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "sharding/gradient_reducer.h"

namespace zero::sharding {

using layout::kBlockNumel;

void GradientReducer::visit_sums(int unit, Range range, GradientSums::Access access, GradientSums::Visit visit) {
  if (access == GradientSums::Access::kUpdate) {
    listener_->gradients_change(unit);
    widen_sums();
  }
  if (!range.empty()) sums_->visit(unit, range, access, visit);
}

at::Tensor GradientReducer::accumulated(int unit, Range range) const {
  const DType dtype = sums_->dtype();
  const Sums all{accumulator(unit), dtype};
  if (range.empty()) return model_.view(nullptr, dtype, 0);
  if (all.data) return model_.view(all.from(range.begin - gradient_range(unit).begin).data, dtype, range.numel());
  at::Tensor copy =
      at::empty({range.numel()}, at::TensorOptions().dtype(device::to_scalar_type(dtype)).device(model_.device));
  const Sums out{copy.mutable_data_ptr(), dtype};
  sums_->visit(unit, range, GradientSums::Access::kRead, [&](Range piece, Sums sums) {
    model_.passes->copy(out.from(piece.begin - range.begin).data, sums.data,
                        static_cast<std::size_t>(piece.numel()) * element_nbytes(dtype));
  });
  return copy;
}

void GradientReducer::replicate() {
  if (model_.sharding.optimizer_states || model_.world_size() == 1) return;
  Stopwatch watch(timeline_, &StepBreakdown::publish);
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    const Unit& unit = model_.units[u];
    if (!unit.trainable) continue;
    const Range mine = model_.shard_of(static_cast<int>(u));
    auto* const whole = static_cast<char*>(accumulator(static_cast<int>(u)));
    const std::int64_t nbytes = mine.begin * static_cast<std::int64_t>(element_nbytes(model_.sum_dtype));
    model_.group_of(static_cast<int>(u))
        .transport
        ->all_gather(whole + nbytes, whole, unit_counts_[u], model_.sum_dtype,
                     {.label = unit.name, .input_stable_until_barrier = true})
        .wait();
    published_numel_ += unit.numel - mine.numel();
  }
}

GradientSums& GradientReducer::hand_over_sums() {
  ZERO_CHECK(other_sums_, "there is one set of sums");
  std::swap(sums_, other_sums_);
  return *other_sums_;
}

std::optional<offload::DiskTraffic> GradientReducer::disk_traffic() const {
  std::optional<offload::DiskTraffic> traffic;
  for (const GradientSums* const sums : {sums_.get(), other_sums_.get()}) {
    const auto its = sums ? sums->disk_traffic() : std::nullopt;
    if (its) traffic = traffic.value_or(offload::DiskTraffic{}) + *its;
  }
  return traffic;
}

void GradientReducer::start_window() {
  follow_streams();
  for (std::size_t u = 0; u < model_.units.size(); ++u) listener_->gradients_change(static_cast<int>(u));
  if (sums_) sums_->release();
  for (Bucket& bucket : buckets_) bucket.fresh = true;
  std::fill(window_used_.begin(), window_used_.end(), 0);
  sumsq_complete_ = false;
  if (!window_is_empty_) wire_->end_window();
  window_is_empty_ = true;
  micro_batch_ = 0;
}

std::int64_t GradientReducer::reduced_nbytes() const {
  const std::int64_t rows = rows_ ? rows_->received_numel() : 0;
  return wire_->sent_numel(reduced_numel_) * static_cast<std::int64_t>(element_nbytes(wire_->dtype())) +
         rows * static_cast<std::int64_t>(element_nbytes(model_.gradient_dtype)) +
         host_sums_numel_ * static_cast<std::int64_t>(sizeof(float));
}

void GradientReducer::scale_sums(double factor) {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    if (!model_.units[u].trainable) continue;
    const int unit = static_cast<int>(u);
    visit_sums(unit, model_.shard_of(unit), GradientSums::Access::kUpdate,
               [&](Range piece, Sums sums) { model_.view(sums.data, sums.dtype, piece.numel()).mul_(factor); });
  }
  refresh_sumsq();
}

void GradientReducer::complete_sumsq() {
  if (!sumsq_complete_) refresh_sumsq();
  if (!device_sumsq_.defined()) return;
  const at::NoGradGuard no_grad;
  block_sumsq_.copy_(device_sumsq_, /*non_blocking=*/true);
  device::finish_current_stream(model_.device);
}

void GradientReducer::refresh_sumsq() {
  for (const Bucket& bucket : buckets_) {
    if (bucket.fresh) continue;
    visit_sums(bucket.unit, mine_of(bucket), GradientSums::Access::kRead, [&](Range piece, Sums sums) {
      model_.passes->block_sumsq(sums.data, sums.dtype, piece.numel(), block_sumsq_at(bucket, piece.begin));
    });
  }
  sumsq_complete_ = true;
}

std::optional<int> GradientReducer::first_not_finite() const {
  std::optional<int> first;
  const std::span<const double> sums = shard_block_sumsq();
  for (const Bucket& bucket : buckets_) {
    const Range mine = mine_of(bucket);
    if (mine.empty() || bucket.fresh || !sums_) continue;
    for (std::int64_t block = 0; block < mine.numel() / kBlockNumel; ++block) {
      if (std::isfinite(sums[static_cast<std::size_t>(bucket.block_offset + block)])) continue;
      const std::int64_t begin = mine.begin + block * kBlockNumel;
      for (const int p : model_.units[bucket.unit].parameters) {
        if (first && *first <= p) continue;
        const Range part = layout::intersect(model_.parameters[p].range, {begin, begin + kBlockNumel});
        if (part.empty() || accumulated(bucket.unit, part).isfinite().all().item<bool>()) continue;
        first = p;
      }
    }
  }
  return first;
}

void GradientReducer::hold_sums() {
  if (!sums_) return;
  if (!window_is_empty_) {
    for (Bucket& bucket : buckets_) {
      if (!std::exchange(bucket.fresh, false)) continue;
      // Unfrozen since the window began.
      const Range mine = mine_of(bucket);
      if (mine.empty()) continue;
      sums_->take(bucket.unit);
      sums_->visit(bucket.unit, mine, GradientSums::Access::kUpdate,
                   [&](Range piece, Sums sums) { model_.view(sums.data, sums.dtype, piece.numel()).zero_(); });
    }
    return;
  }
  sums_->take_zeros();
  // They may be written to: what arrives from here on adds to them.
  for (Bucket& bucket : buckets_) bucket.fresh = false;
  window_is_empty_ = false;
}

void GradientReducer::resume_window(std::int64_t micro_batches) {
  micro_batch_ = static_cast<std::size_t>(micro_batches);
  window_is_empty_ = true;
  hold_sums();
  // Which parameters the saved part had gradients of is not kept: all count as used.
  std::fill(window_used_.begin(), window_used_.end(), 1);
  sumsq_complete_ = false;
  window_is_empty_ = false;
}

}  // namespace zero::sharding
