#include "layout/use_order.h"

#include "base/check.h"

namespace zero::layout {

UseOrder::UseOrder(std::vector<std::int64_t> unit_numel)
    : unit_numel_(std::move(unit_numel)),
      last_context_of_(unit_numel_.size(), -1),
      last_position_of_(unit_numel_.size(), 0) {}

void UseOrder::use(int unit, int phase) {
  if (unit == current_unit_ && phase == current_phase_) return;
  ZERO_CHECK(unit >= 0 && unit < static_cast<int>(unit_numel_.size()), "unit {}", unit);
  const auto key = std::make_tuple(current_unit_, unit, phase);
  auto [found, is_new] = index_of_.try_emplace(key, static_cast<int>(contexts_.size()));
  if (is_new) contexts_.push_back({unit, phase, -1, -1});
  const int context = found->second;
  if (current_context_ >= 0) contexts_[current_context_].next = context;
  if (const int before = last_context_of_[unit]; before >= 0) {
    contexts_[before].reuse_distance = position_ - last_position_of_[unit];
  }
  position_ += unit_numel_[unit];
  last_context_of_[unit] = context;
  last_position_of_[unit] = position_;
  current_unit_ = unit;
  current_phase_ = phase;
  current_context_ = context;
}

UseOrder::Prediction UseOrder::Walk::next() {
  if (context_ >= 0) context_ = order_.contexts_[context_].next;
  if (context_ < 0) return {};
  return {order_.contexts_[context_].unit, order_.contexts_[context_].phase};
}

UseOrder::Prediction UseOrder::predict(int ahead) const {
  Walk walk(*this);
  for (int i = 1; i < ahead; ++i) walk.next();
  return walk.next();
}

std::int64_t UseOrder::reuse_distance(int unit) const {
  const int context = last_context_of_[unit];
  return context < 0 ? -1 : contexts_[context].reuse_distance;
}

}  // namespace zero::layout
