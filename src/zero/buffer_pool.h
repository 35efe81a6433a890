#pragma once
// BufferPool: buffers of one dtype that are taken and given back, never returned to the system.
#include <functional>
#include <memory>
#include <vector>

#include "storage/flat_buffer.h"
#include "storage/ledger.h"

namespace zero::sharding {

class BufferPool {
 public:
  using Make = std::function<storage::FlatBuffer(std::int64_t numel)>;
  /// `make` charges the ledger with `kind`; the pool tells it what is idle.
  BufferPool(storage::Ledger& ledger, MemoryKind kind, Make make)
      : ledger_(ledger), kind_(kind), make_(std::move(make)) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// The smallest free buffer of at least `numel` elements; makes one when there is none and returns its
  /// data. `numel` > 0.
  storage::FlatBuffer* take(std::int64_t numel);
  /// As take(), but null instead of making one. Allocates nothing.
  storage::FlatBuffer* try_take(std::int64_t numel);
  /// Allocates nothing.
  void give_back(storage::FlatBuffer* buffer);
  std::int64_t total_numel() const { return total_numel_; }

 private:
  storage::Ledger& ledger_;
  MemoryKind kind_;
  Make make_;
  std::vector<std::unique_ptr<storage::FlatBuffer>> all_;
  std::vector<storage::FlatBuffer*> free_;  ///< ascending sizes, the oldest of a size first; room for all
  std::int64_t total_numel_ = 0;
};

}  // namespace zero::sharding
