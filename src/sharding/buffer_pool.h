#pragma once
// BufferPool: buffers of one dtype that are taken and given back, never returned to the system.
#include <functional>
#include <memory>
#include <vector>

#include "layout/best_fit.h"
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

  /// The smallest free buffer of at least `numel` elements; makes one when there is none. `numel` > 0.
  storage::FlatBuffer* take(std::int64_t numel);
  /// True when take() would make one beyond `limit_numel` elements in all.
  bool would_exceed(std::int64_t limit_numel, std::int64_t numel) const {
    return sizes_.would_exceed(limit_numel, numel);
  }
  /// Allocates nothing.
  void give_back(storage::FlatBuffer* buffer);

 private:
  void add_idle(const storage::FlatBuffer& buffer, int sign);

  storage::Ledger& ledger_;
  MemoryKind kind_;
  Make make_;
  std::vector<std::unique_ptr<storage::FlatBuffer>> all_;
  std::vector<bool> is_free_;  ///< of all_
  layout::BestFit sizes_;      ///< of all_
};

}  // namespace zero::sharding
