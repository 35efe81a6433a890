#pragma once
// The memory ledger: every allocation of the engine, by kind. One per engine.
#include <atomic>
#include <cstdint>

#include "zero/memory.h"

namespace zero::storage {

class Ledger {
 public:
  /// Thread-safe; `nbytes` may be negative to give back.
  void add(MemoryKind kind, std::int64_t nbytes);
  /// Of what is held: `nbytes` more wait in a pool for their next use; negative: are taken again.
  void add_idle(MemoryKind kind, std::int64_t nbytes);
  /// Reserved on a disk; may be negative.
  void add_nvme(std::int64_t nbytes) { nvme_nbytes_.fetch_add(nbytes); }
  MemoryReport report() const;

 private:
  struct Entry {
    std::atomic<std::int64_t> current{0};
    std::atomic<std::int64_t> peak{0};
    std::atomic<std::int64_t> idle{0};
  };
  std::array<Entry, kMemoryKinds> entries_;
  std::atomic<std::int64_t> nvme_nbytes_{0};
};

}  // namespace zero::storage
