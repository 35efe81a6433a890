#include "zero/buffer_pool.h"

#include <algorithm>

namespace zero::sharding {
namespace {

bool smaller(const storage::FlatBuffer* buffer, std::int64_t numel) { return buffer->numel() < numel; }
bool larger(std::int64_t numel, const storage::FlatBuffer* buffer) { return numel < buffer->numel(); }

std::int64_t idle_nbytes(const storage::FlatBuffer* buffer) {
  return static_cast<std::int64_t>(buffer->nbytes());
}

}  // namespace

BufferPool::~BufferPool() {
  for (const auto* buffer : free_) ledger_.set_idle(kind_, -idle_nbytes(buffer));
}

storage::FlatBuffer* BufferPool::try_take(std::int64_t numel) {
  const auto found = std::lower_bound(free_.begin(), free_.end(), numel, smaller);
  if (found == free_.end()) return nullptr;
  auto* buffer = *found;
  free_.erase(found);
  ledger_.set_idle(kind_, -idle_nbytes(buffer));
  return buffer;
}

storage::FlatBuffer* BufferPool::take(std::int64_t numel) {
  if (auto* buffer = try_take(numel)) return buffer;
  all_.push_back(std::make_unique<storage::FlatBuffer>(make_(numel)));
  free_.reserve(all_.size());
  total_numel_ += numel;
  return all_.back().get();
}

void BufferPool::give_back(storage::FlatBuffer* buffer) {
  free_.insert(std::upper_bound(free_.begin(), free_.end(), buffer->numel(), larger), buffer);
  ledger_.set_idle(kind_, idle_nbytes(buffer));
}

}  // namespace zero::sharding
