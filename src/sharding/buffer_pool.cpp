#include "sharding/buffer_pool.h"

#include <algorithm>

namespace zero::sharding {

BufferPool::~BufferPool() {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_free_[i]) add_idle(*all_[i], -1);
  }
}

void BufferPool::add_idle(const storage::FlatBuffer& buffer, int sign) {
  ledger_.add_idle(kind_, sign * static_cast<std::int64_t>(buffer.nbytes()));
}

storage::FlatBuffer* BufferPool::take(std::int64_t numel) {
  if (const auto found = sizes_.take(numel)) {
    is_free_[*found] = false;
    add_idle(*all_[*found], -1);
    return all_[*found].get();
  }
  all_.push_back(std::make_unique<storage::FlatBuffer>(make_(numel)));
  is_free_.push_back(false);
  sizes_.make(numel);
  return all_.back().get();
}

void BufferPool::give_back(storage::FlatBuffer* buffer) {
  const auto found = std::find_if(all_.begin(), all_.end(), [buffer](const auto& one) { return one.get() == buffer; });
  const auto index = static_cast<std::size_t>(found - all_.begin());
  is_free_[index] = true;
  sizes_.give_back(static_cast<int>(index));
  add_idle(*buffer, 1);
}

}  // namespace zero::sharding
