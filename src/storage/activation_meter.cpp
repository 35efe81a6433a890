#include "storage/activation_meter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <mutex>

namespace zero::storage {
namespace {

std::atomic<std::int64_t> g_current{0};
std::atomic<std::int64_t> g_peak{0};
c10::DeleterFnPtr g_inner_deleter = nullptr;

void count(std::int64_t nbytes) {
  const std::int64_t now = g_current.fetch_add(nbytes, std::memory_order_relaxed) + nbytes;
  std::int64_t peak = g_peak.load(std::memory_order_relaxed);
  while (now > peak && !g_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void counted_delete(void* pointer) {
  // The deleter is handed no size; the C library knows it.
  if (pointer) count(-static_cast<std::int64_t>(malloc_usable_size(pointer)));
  g_inner_deleter(pointer);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(std::size_t nbytes) override {
    c10::DataPtr data = inner_->allocate(nbytes);
    if (data.get() && data.get() == data.get_context() &&
        data.compare_exchange_deleter(g_inner_deleter, &counted_delete)) {
      count(static_cast<std::int64_t>(malloc_usable_size(data.get())));
    }
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &counted_delete; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    inner_->copy_data(to, from, nbytes);
  }

 private:
  c10::Allocator* inner_;
};

}  // namespace

void install_activation_meter() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::Allocator* inner = c10::GetAllocator(c10::kCPU);
    g_inner_deleter = inner->raw_deleter();
    if (!g_inner_deleter) return;
    // Leaked on purpose: tensors in static storage are freed after any destructor of ours.
    c10::SetAllocator(c10::kCPU, new CountingAllocator(inner), /*priority=*/1);
  });
}

MemoryUse activation_use() {
  const std::int64_t now = g_current.load();
  return {now, g_peak.load(), now};
}

void reset_activation_peak() { g_peak = g_current.load(); }

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 2047 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
}

void give_back_freed_memory() { malloc_trim(0); }

}  // namespace zero::storage
