#pragma once
// BlockCache: large blocks of memory that come and go in the same sizes at every step, out of one range of
// addresses. What is freed stays with the process and is used again, without page faults.
//
// Best fit; free neighbours become one. What lives longer than its neighbours is better placed at the other
// end. A training step frees its activations in about the order in which the next one wants them, so that
// hardly any gaps remain. (glibc takes more than was asked for to align a block, and then does not fit the
// same block into the gap it left.)
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <mutex>
#include <set>
#include <utility>

namespace zero::storage {

/// Thread-safe.
class BlockCache {
 public:
  static constexpr std::size_t kAlignment = 64;

  /// Reserves addresses for `nbytes`, no memory: neither now nor in what the system counts as promised.
  explicit BlockCache(std::size_t nbytes);
  /// False when the system has refused them: then nothing can be allocated.
  bool has_addresses() const { return reserved_nbytes_ > 0; }
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  struct Allocated {
    void* data = nullptr;
    std::size_t nbytes = 0;  ///< at least what was asked for
  };
  enum class Place : std::uint8_t {
    kBestFit,  ///< in the smallest gap, of these the one with the lowest address
    kHigh,     ///< at the highest address that is free
  };
  /// A block aligned to kAlignment, of undefined content; data is null when the addresses are used up, or the
  /// system promises no more memory.
  Allocated allocate(std::size_t nbytes, Place place = Place::kBestFit);
  /// Whether `data` is a block of this cache. Takes no lock.
  bool owns(const void* data) const;
  /// Takes a block back; returns its Allocated::nbytes. `data` must be one.
  std::size_t release(void* data);

  /// Gives the memory of free blocks back to the system. They stay usable, at the price of new page faults.
  void give_back();

  struct Use {
    std::size_t in_use_nbytes = 0;  ///< in blocks that are out
    std::size_t extent_nbytes = 0;  ///< from the first to the last that is or was out since give_back()
  };
  Use use() const;

  /// Around fork(): a child must not find the lock taken by a thread that it has not.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Block {
    std::size_t nbytes = 0;
    bool free = false;
  };
  using Blocks = std::pmr::map<std::uintptr_t, Block>;  // by address, without gaps from begin_ to top_

  Blocks::iterator find(std::size_t nbytes, Place place);
  Blocks::iterator grow(std::size_t nbytes);
  Blocks::iterator take(Blocks::iterator block, std::size_t nbytes, Place place);
  void make_free(Blocks::iterator block);
  void make_used(Blocks::iterator block);

  mutable std::mutex mutex_;
  std::uintptr_t begin_ = 0;
  std::size_t reserved_nbytes_ = 0;
  std::uintptr_t top_ = 0;         ///< the end of all blocks
  std::uintptr_t usable_end_ = 0;  ///< of what may be written to
  std::size_t in_use_nbytes_ = 0;
  std::pmr::unsynchronized_pool_resource nodes_;  // so that steps with the same blocks allocate nothing here
  Blocks blocks_{&nodes_};
  std::pmr::set<std::pair<std::size_t, std::uintptr_t>> free_{&nodes_};  // by size, then address
};

}  // namespace zero::storage
