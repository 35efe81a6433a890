#pragma once
// The memory ledger: counts every allocation of the engine, by kind. One per engine.
#include <atomic>
#include <cstdint>

#include "zero/memory.h"

namespace zero::storage {

class Ledger {
 public:
  /// Adds `nbytes` to the bytes held; negative: bytes returned. `on_device`: of an accelerator's memory. Thread-safe.
  void add(MemoryKind kind, std::int64_t nbytes, bool on_device = false);
  /// Adds `nbytes` to the idle part of the bytes held, buffers that wait in a pool; negative: buffers taken into use
  /// again.
  void add_idle(MemoryKind kind, std::int64_t nbytes);
  /// Adds `nbytes` to the bytes reserved on disk; may be negative.
  void add_nvme(std::int64_t nbytes) { nvme_nbytes_.fetch_add(nbytes); }
  MemoryReport report() const;

 private:
  struct Count {
    std::atomic<std::int64_t> current{0};
    std::atomic<std::int64_t> peak{0};

    void add(std::int64_t nbytes);
  };
  struct Entry {
    Count all, on_device;
    std::atomic<std::int64_t> idle{0};
  };
  std::array<Entry, kMemoryKinds> entries_;
  std::atomic<std::int64_t> nvme_nbytes_{0};
};

}  // namespace zero::storage
