#include "storage/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "storage/block_cache.h"

namespace zero::storage {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif
#else
constexpr bool kAddressSanitizer = false;
#endif

/// Smaller ones are glibc's: it is faster, and their gaps are small.
constexpr std::size_t kSmallestCached = 64 << 10;

std::atomic<std::int64_t> g_current{0};
std::atomic<std::int64_t> g_peak{0};
c10::DeleterFnPtr g_inner_deleter = nullptr;
std::atomic<BlockCache*> g_cache{nullptr};

void count(std::int64_t nbytes) {
  const std::int64_t now = g_current.fetch_add(nbytes, std::memory_order_relaxed) + nbytes;
  std::int64_t peak = g_peak.load(std::memory_order_relaxed);
  while (now > peak && !g_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

/// The deleters are handed no size: the cache and the C library know it.
void delete_counted(void* pointer) {
  if (pointer) count(-static_cast<std::int64_t>(malloc_usable_size(pointer)));
  g_inner_deleter(pointer);
}

void delete_cached(void* pointer) {
  c10::profiledCPUMemoryReporter().Delete(pointer);
  count(-static_cast<std::int64_t>(g_cache.load(std::memory_order_relaxed)->release(pointer)));
}

void delete_either(void* pointer) {
  const BlockCache* cache = g_cache.load(std::memory_order_acquire);
  cache && cache->owns(pointer) ? delete_cached(pointer) : delete_counted(pointer);
}

class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(std::size_t nbytes) override {
    BlockCache* cache = nbytes < kSmallestCached ? nullptr : g_cache.load(std::memory_order_acquire);
    if (cache) {
      if (const auto block = cache->allocate(nbytes); block.data) {
        count(static_cast<std::int64_t>(block.nbytes));
        c10::profiledCPUMemoryReporter().New(block.data, nbytes);
        return {block.data, block.data, &delete_cached, c10::kCPU};
      }
    }
    c10::DataPtr data = inner_->allocate(nbytes);
    if (data.get() && data.get() == data.get_context() &&
        data.compare_exchange_deleter(g_inner_deleter, &delete_counted)) {
      count(static_cast<std::int64_t>(malloc_usable_size(data.get())));
    }
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_either; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override { inner_->copy_data(to, from, nbytes); }

 private:
  c10::Allocator* inner_;
};

/// False when another allocator is in its place.
bool install_layer() {
  static const bool installed = [] {
    c10::Allocator* inner = c10::GetAllocator(c10::kCPU);
    g_inner_deleter = inner->raw_deleter();
    if (!g_inner_deleter) return false;
    // Leaked on purpose: tensors in static storage are freed after any destructor of ours.
    auto* layer = new CpuAllocator(inner);
    c10::SetAllocator(c10::kCPU, layer, /*priority=*/1);
    return c10::GetAllocator(c10::kCPU) == layer;
  }();
  return installed;
}

bool may_cache() {
  rlimit limit{};
  return !kAddressSanitizer && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

void start_cache() {
  const auto memory_nbytes =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto cache = std::make_unique<BlockCache>(4 * memory_nbytes);  // addresses cost nothing, gaps take some
  if (!cache->has_addresses()) return;
  g_cache = cache.release();  // leaked like the layer
  pthread_atfork([] { g_cache.load()->lock(); }, [] { g_cache.load()->unlock(); }, [] { g_cache.load()->unlock(); });
}

}  // namespace

void install_cpu_allocator(bool keep_blocks) {
  if (!install_layer() || !keep_blocks) return;
  static std::once_flag once;
  std::call_once(once, [] {
    if (may_cache()) start_cache();
  });
}

bool keeps_blocks() { return g_cache.load() != nullptr; }

void* take_block(std::size_t nbytes) {
  BlockCache* cache = g_cache.load();
  void* block = cache ? cache->allocate(nbytes, BlockCache::Place::kHigh).data : nullptr;
  return block ? block : memalign(BlockCache::kAlignment, nbytes);
}

void return_block(void* block) {
  BlockCache* cache = g_cache.load();
  if (cache && cache->owns(block)) {
    cache->release(block);
  } else {
    free(block);
  }
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

void give_back_freed_memory() {
  malloc_trim(0);
  if (BlockCache* cache = g_cache.load()) cache->give_back();
}

}  // namespace zero::storage

void zero::empty_cache() { storage::give_back_freed_memory(); }
