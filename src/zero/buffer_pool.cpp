#include "zero/buffer_pool.h"

namespace zero::sharding {

storage::FlatBuffer* BufferPool::try_take(std::int64_t numel) {
  auto found = free_.lower_bound(numel);
  if (found == free_.end()) return nullptr;
  auto* buffer = found->second;
  free_.erase(found);
  return buffer;
}

storage::FlatBuffer* BufferPool::take(std::int64_t numel) {
  if (auto* buffer = try_take(numel)) return buffer;
  all_.push_back(std::make_unique<storage::FlatBuffer>(make_(numel)));
  total_numel_ += numel;
  return all_.back().get();
}

void BufferPool::give_back(storage::FlatBuffer* buffer) { free_.emplace(buffer->numel(), buffer); }

}  // namespace zero::sharding
