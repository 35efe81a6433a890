#include "layout/best_fit.h"

#include <algorithm>

namespace zero::layout {

bool BestFit::would_exceed(std::int64_t limit_numel, std::int64_t numel) const {
  const bool has_free = !free_.empty() && numel_[free_.back()] >= numel;
  return !has_free && total_numel_ + numel > limit_numel;
}

std::optional<int> BestFit::take(std::int64_t numel) {
  const auto found = std::lower_bound(free_.begin(), free_.end(), numel,
                                      [this](int index, std::int64_t wanted) { return numel_[index] < wanted; });
  if (found == free_.end()) return std::nullopt;
  const int index = *found;
  free_.erase(found);
  return index;
}

int BestFit::make(std::int64_t numel) {
  numel_.push_back(numel);
  free_.reserve(numel_.size());
  total_numel_ += numel;
  return static_cast<int>(numel_.size()) - 1;
}

int BestFit::take_or_make(std::int64_t numel) {
  const auto free = take(numel);
  return free ? *free : make(numel);
}

void BestFit::give_back(int index) {
  const auto place = std::upper_bound(free_.begin(), free_.end(), numel_[index],
                                      [this](std::int64_t numel, int other) { return numel < numel_[other]; });
  free_.insert(place, index);
}

}  // namespace zero::layout
