#pragma once
// BufferPool: buffers of one dtype that are taken and given back, never returned to the system.
#include <functional>
#include <map>
#include <vector>

#include "storage/flat_buffer.h"

namespace zero::sharding {

class BufferPool {
 public:
  using Make = std::function<storage::FlatBuffer(std::int64_t numel)>;
  explicit BufferPool(Make make) : make_(std::move(make)) {}

  /// The smallest free buffer of at least `numel` elements; makes one when there is none and returns its
  /// data. `numel` > 0.
  storage::FlatBuffer* take(std::int64_t numel);
  /// As take(), but null instead of making one.
  storage::FlatBuffer* try_take(std::int64_t numel);
  void give_back(storage::FlatBuffer* buffer);
  std::int64_t total_numel() const { return total_numel_; }

 private:
  Make make_;
  std::vector<std::unique_ptr<storage::FlatBuffer>> all_;
  std::multimap<std::int64_t, storage::FlatBuffer*> free_;
  std::int64_t total_numel_ = 0;
};

}  // namespace zero::sharding
