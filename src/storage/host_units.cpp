#include "storage/host_units.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "layout/shard.h"
#include "zero/errors.h"

namespace zero::storage {
namespace {

constexpr std::int64_t kPageNbytes = 4096;

constexpr std::int64_t whole_pages(std::int64_t nbytes) { return layout::round_up(nbytes, kPageNbytes); }

}  // namespace

// All of this is in memory of several processes, which is zero at first.
struct HostUnits::Header {
  pthread_mutex_t mutex;
  std::int64_t held_nbytes, most_held_nbytes;  ///< by units that ranks hold: now, and so far
  std::int64_t kept_nbytes;                    ///< by all buffers
  std::int64_t end;                            ///< of the last one's pages
  std::int32_t buffers;
  std::uint64_t clock;  ///< counts joins
};
struct HostUnits::Entry {
  std::int32_t buffer_plus_1;  ///< 0: none
  std::int32_t held;           ///< by so many ranks
  std::uint64_t version;
  std::uint64_t used;  ///< when it was held last
};
struct HostUnits::Buffer {
  std::int64_t offset, nbytes;
  std::int64_t kept_nbytes;  ///< that have pages, or may have
  std::int32_t unit_plus_1;  ///< 0: none
};
struct HostUnits::Fact {
  std::atomic<Part> state;
  std::atomic<bool> changing;
  std::atomic<std::uint64_t> checksum;
};

/// Robust: the death of a rank that has it is heard of by the next one.
class HostUnits::Lock {
 public:
  explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) {
    const int error = ::pthread_mutex_lock(&mutex_);
    if (error == 0) return;
    if (error == EOWNERDEAD) ::pthread_mutex_unlock(&mutex_);  // not to be used any more
    throw CommError("a rank of this host died while it looked for memory of a unit; see its own output");
  }
  ~Lock() { ::pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

HostUnits::HostUnits(Group& group, Ledger& ledger, DType dtype, std::vector<HostUnitSize> units)
    : ledger_(ledger), dtype_(dtype), ranks_(group.size()), sizes_(std::move(units)) {
  first_part_.push_back(0);
  for (std::size_t u = 0; u < sizes_.size(); ++u) {
    first_part_.push_back(first_part_.back() + sizes_[u].parts);
    largest_nbytes_ = std::max(largest_nbytes_, nbytes_of(static_cast<int>(u)));
  }
  const auto largest = static_cast<std::size_t>(whole_pages(largest_nbytes_));
  const std::size_t count = sizes_.size(), parts = static_cast<std::size_t>(first_part_.back());
  const std::size_t entries_at = sizeof(Header), buffers_at = entries_at + count * sizeof(Entry);
  const std::size_t facts_at = buffers_at + most_buffers() * sizeof(Buffer);
  control_ = group.allocate_node_shared(facts_at + parts * sizeof(Fact), "units in memory");
  // Addresses for more than ever happens; pages are taken as buffers are used.
  memory_ = group.allocate_node_shared(most_buffers() * largest, "memory of units", largest);
  auto* const begin = static_cast<std::byte*>(control_.data());
  header_ = reinterpret_cast<Header*>(begin);
  entries_ = reinterpret_cast<Entry*>(begin + entries_at);
  buffers_ = reinterpret_cast<Buffer*>(begin + buffers_at);
  facts_ = reinterpret_cast<Fact*>(begin + facts_at);
  if (group.rank() == 0) {
    pthread_mutexattr_t attributes;
    ::pthread_mutexattr_init(&attributes);
    ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    const int error = ::pthread_mutex_init(&header_->mutex, &attributes);
    ::pthread_mutexattr_destroy(&attributes);
    ZERO_CHECK(error == 0, "pthread_mutex_init: {}", error);
  }
  group.barrier({.label = "units in memory"}).wait();
}

HostUnits::~HostUnits() { ledger_.add(MemoryKind::kGather, -charged_nbytes_); }

/// Each rank its part of what all have together.
void HostUnits::charge() {
  const std::int64_t mine = (header_->kept_nbytes + ranks_ - 1) / ranks_;
  if (mine == charged_nbytes_) return;
  ledger_.add(MemoryKind::kGather, mine - charged_nbytes_);
  charged_nbytes_ = mine;
}

std::int64_t HostUnits::nbytes_of(int unit) const {
  return sizes_[static_cast<std::size_t>(unit)].numel * static_cast<std::int64_t>(element_nbytes(dtype_));
}

/// The smallest that is large enough and that nobody holds, of a size those with all pages first, and of these the one
/// used longest ago; else a new one.
int HostUnits::take_buffer(std::int64_t nbytes) {
  int best = -1;
  const auto rank_of = [&](int b) {
    const std::int32_t unit = buffers_[b].unit_plus_1;
    return std::tuple(buffers_[b].nbytes, buffers_[b].kept_nbytes < nbytes, unit == 0 ? 0 : entries_[unit - 1].used);
  };
  for (int b = 0; b < header_->buffers; ++b) {
    const Buffer& buffer = buffers_[b];
    if (buffer.nbytes < nbytes || (buffer.unit_plus_1 > 0 && entries_[buffer.unit_plus_1 - 1].held > 0)) continue;
    if (best < 0 || rank_of(b) < rank_of(best)) best = b;
  }
  if (best < 0) {
    ZERO_CHECK(header_->buffers < static_cast<int>(most_buffers()), "{} buffers", header_->buffers);
    best = header_->buffers++;
    buffers_[best] = {header_->end, nbytes, 0, 0};
    header_->end += whole_pages(nbytes);
  } else if (buffers_[best].unit_plus_1 > 0) {
    entries_[buffers_[best].unit_plus_1 - 1].buffer_plus_1 = 0;
  }
  return best;
}

/// Gives back the pages of a buffer after the first bytes.
void HostUnits::keep(Buffer& buffer, std::int64_t nbytes) {
  const std::int64_t begin = whole_pages(nbytes), end = whole_pages(buffer.kept_nbytes);
  if (begin < end)
    ::madvise(static_cast<std::byte*>(memory_.data()) + buffer.offset + begin, static_cast<std::size_t>(end - begin),
              MADV_REMOVE);
  header_->kept_nbytes -= buffer.kept_nbytes - nbytes;
  buffer.kept_nbytes = nbytes;
}

/// What lies behind smaller units first, then units that nobody holds.
void HostUnits::give_back_pages() {
  const auto too_many = [&] { return header_->kept_nbytes > header_->most_held_nbytes + largest_nbytes_; };
  for (int b = 0; b < header_->buffers && too_many(); ++b) {
    Buffer& buffer = buffers_[b];
    keep(buffer, buffer.unit_plus_1 == 0 ? 0 : std::min(buffer.kept_nbytes, nbytes_of(buffer.unit_plus_1 - 1)));
  }
  while (too_many()) {
    Buffer* oldest = nullptr;
    const auto used = [&](const Buffer& buffer) { return entries_[buffer.unit_plus_1 - 1].used; };
    for (int b = 0; b < header_->buffers; ++b) {
      Buffer& buffer = buffers_[b];
      if (buffer.unit_plus_1 == 0 || entries_[buffer.unit_plus_1 - 1].held > 0) continue;
      if (!oldest || used(buffer) < used(*oldest)) oldest = &buffer;
    }
    ZERO_CHECK(oldest, "{} bytes are kept, {} held", header_->kept_nbytes, header_->held_nbytes);
    entries_[std::exchange(oldest->unit_plus_1, 0) - 1].buffer_plus_1 = 0;
    keep(*oldest, 0);
  }
}

void* HostUnits::join(int unit, std::uint64_t version) {
  const Lock lock(header_->mutex);
  Entry& entry = entries_[unit];
  if (entry.buffer_plus_1 == 0 || entry.version != version) {
    if (entry.held > 0) {
      throw ModelError(
          "a parameter is held, by a zero::GatheredParameters of this or another rank, with values of before a step; "
          "end the scope before step()");
    }
    if (entry.buffer_plus_1 == 0) {
      const int taken = take_buffer(nbytes_of(unit));
      buffers_[taken].unit_plus_1 = unit + 1;
      entry.buffer_plus_1 = taken + 1;
    }
    entry.version = version;
    for (const int part : parts_of(unit)) facts_[part].state.store(Part::kMissing, std::memory_order_relaxed);
  }
  Buffer& buffer = buffers_[entry.buffer_plus_1 - 1];
  if (entry.held++ == 0) header_->held_nbytes += nbytes_of(unit);
  header_->most_held_nbytes = std::max(header_->most_held_nbytes, header_->held_nbytes);
  const std::int64_t more = std::max<std::int64_t>(0, nbytes_of(unit) - buffer.kept_nbytes);
  buffer.kept_nbytes += more;
  header_->kept_nbytes += more;
  entry.used = ++header_->clock;
  give_back_pages();
  charge();
  return static_cast<std::byte*>(memory_.data()) + buffer.offset;
}

void HostUnits::leave(int unit) {
  const Lock lock(header_->mutex);
  Entry& entry = entries_[unit];
  ZERO_CHECK(entry.held > 0, "unit {} is not held", unit);
  if (--entry.held == 0) header_->held_nbytes -= nbytes_of(unit);
  entry.used = ++header_->clock;
}

HostUnits::Part HostUnits::state(int part) const { return facts_[part].state.load(std::memory_order_acquire); }

bool HostUnits::claim(int part) {
  Part missing = Part::kMissing;
  return facts_[part].state.compare_exchange_strong(missing, Part::kClaimed, std::memory_order_acq_rel);
}

void HostUnits::put(int part) { facts_[part].state.store(Part::kThere, std::memory_order_release); }

std::uint64_t HostUnits::checksum(int part) const { return facts_[part].checksum.load(std::memory_order_acquire); }
void HostUnits::set_checksum(int part, std::uint64_t checksum) {
  facts_[part].checksum.store(checksum, std::memory_order_release);
}
bool HostUnits::is_changing(int part) const { return facts_[part].changing.load(std::memory_order_acquire); }
void HostUnits::set_changing(int part, bool changing) {
  facts_[part].changing.store(changing, std::memory_order_release);
}

}  // namespace zero::storage
