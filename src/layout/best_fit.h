#pragma once
// BestFit: which buffer of a pool to take, by sizes alone. A pool's buffers are made when none fits and kept.
#include <cstdint>
#include <optional>
#include <vector>

namespace zero::layout {

class BestFit {
 public:
  /// Buffer `index` of those made so far: the smallest free one of at least `numel` elements, of a size the one
  /// longest free. Nothing when there is none. Allocates nothing.
  std::optional<int> take(std::int64_t numel);
  /// A new buffer of `numel` elements, taken. Its index is the number of those before it.
  int make(std::int64_t numel);
  int take_or_make(std::int64_t numel);
  /// Allocates nothing.
  void give_back(int index);

  /// True when take_or_make() would make one beyond `limit_numel` elements in all.
  bool would_exceed(std::int64_t limit_numel, std::int64_t numel) const;
  std::int64_t numel(int index) const { return numel_[index]; }
  std::int64_t total_numel() const { return total_numel_; }

 private:
  std::vector<std::int64_t> numel_;  ///< by index
  std::vector<int> free_;            ///< ascending sizes, the longest free of a size first; room for all
  std::int64_t total_numel_ = 0;
};

}  // namespace zero::layout
