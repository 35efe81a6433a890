#include "storage/block_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace zero::storage {

namespace {

constexpr std::size_t kStep = std::size_t{64} << 20;  // by which the usable part grows

}  // namespace

BlockCache::BlockCache(std::size_t nbytes) {
  // Not MAP_NORESERVE: what becomes usable shall be refused where a malloc of its size would be.
  void* range = mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (range == MAP_FAILED) return;
  madvise(range, nbytes, MADV_HUGEPAGE);  // where the system grants them: the update reads faster
  begin_ = top_ = usable_end_ = reinterpret_cast<std::uintptr_t>(range);
  reserved_nbytes_ = nbytes;
}

BlockCache::~BlockCache() {
  if (reserved_nbytes_) munmap(reinterpret_cast<void*>(begin_), reserved_nbytes_);
}

BlockCache::Allocated BlockCache::allocate(std::size_t nbytes, Place place) {
  if (nbytes > reserved_nbytes_) return {};  // also keeps sums from overflowing
  nbytes = std::max((nbytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
  const std::lock_guard lock(mutex_);
  auto block = find(nbytes, place);
  if (block == blocks_.end()) block = grow(nbytes);
  if (block == blocks_.end()) return {};
  block = take(block, nbytes, place);
  in_use_nbytes_ += nbytes;
  return {reinterpret_cast<void*>(block->first), nbytes};
}

/// A free block of at least `nbytes`, or none.
BlockCache::Blocks::iterator BlockCache::find(std::size_t nbytes, Place place) {
  auto fit = free_.lower_bound({nbytes, 0});
  if (fit == free_.end()) return blocks_.end();
  if (place == Place::kHigh) {
    fit = std::max_element(fit, free_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  }
  return blocks_.find(fit->second);
}

/// A free block of `nbytes` at the end of what was used, together with a smaller one there; or none.
BlockCache::Blocks::iterator BlockCache::grow(std::size_t nbytes) {
  std::uintptr_t at = top_;
  if (!blocks_.empty() && std::prev(blocks_.end())->second.free) at = std::prev(blocks_.end())->first;
  const std::uintptr_t end = begin_ + reserved_nbytes_;
  if (nbytes > end - at) return blocks_.end();
  if (at + nbytes > usable_end_) {
    const std::size_t missing = (at + nbytes - usable_end_ + kStep - 1) / kStep * kStep;
    const std::size_t more = std::min(missing, end - usable_end_);
    if (mprotect(reinterpret_cast<void*>(usable_end_), more, PROT_READ | PROT_WRITE) != 0) return blocks_.end();
    usable_end_ += more;
  }
  if (at != top_) make_used(std::prev(blocks_.end()));
  top_ = at + nbytes;
  const auto block = blocks_.insert_or_assign(at, Block{nbytes, false}).first;
  make_free(block);
  return block;
}

/// `nbytes` of a free block, at its end with kHigh; the rest stays free.
BlockCache::Blocks::iterator BlockCache::take(Blocks::iterator block, std::size_t nbytes, Place place) {
  make_used(block);
  const std::size_t rest = block->second.nbytes - nbytes;
  if (rest == 0) return block;
  const bool at_end = place == Place::kHigh;
  block->second.nbytes = at_end ? rest : nbytes;
  const auto second =
      blocks_.emplace_hint(std::next(block), block->first + block->second.nbytes, Block{at_end ? nbytes : rest, false});
  make_free(at_end ? block : second);
  return at_end ? second : block;
}

void BlockCache::make_free(Blocks::iterator block) {
  block->second.free = true;
  free_.insert({block->second.nbytes, block->first});
}

void BlockCache::make_used(Blocks::iterator block) {
  block->second.free = false;
  free_.erase({block->second.nbytes, block->first});
}

bool BlockCache::owns(const void* data) const {
  return reinterpret_cast<std::uintptr_t>(data) - begin_ < reserved_nbytes_;
}

std::size_t BlockCache::release(void* data) {
  const std::lock_guard lock(mutex_);
  auto block = blocks_.find(reinterpret_cast<std::uintptr_t>(data));
  ZERO_CHECK(block != blocks_.end() && !block->second.free, "{} is not a block that is out", data);
  const std::size_t nbytes = block->second.nbytes;
  in_use_nbytes_ -= nbytes;
  if (const auto next = std::next(block); next != blocks_.end() && next->second.free) {
    make_used(next);
    block->second.nbytes += next->second.nbytes;
    blocks_.erase(next);
  }
  if (block != blocks_.begin() && std::prev(block)->second.free) {
    const auto previous = std::prev(block);
    make_used(previous);
    previous->second.nbytes += block->second.nbytes;
    blocks_.erase(block);
    block = previous;
  }
  make_free(block);
  return nbytes;
}

void BlockCache::give_back() {
  const std::lock_guard lock(mutex_);
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const auto& [nbytes, at] : free_) {
    const std::uintptr_t begin = (at + page - 1) / page * page;
    const std::uintptr_t end = at + nbytes == top_ ? (top_ + page - 1) / page * page : (at + nbytes) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  if (!blocks_.empty() && std::prev(blocks_.end())->second.free) {
    const auto last = std::prev(blocks_.end());
    top_ = last->first;
    make_used(last);
    blocks_.erase(last);
  }
}

BlockCache::Use BlockCache::use() const {
  const std::lock_guard lock(mutex_);
  return {in_use_nbytes_, top_ - begin_};
}

}  // namespace zero::storage
