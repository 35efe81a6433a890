// Where inputs lie: in place, in the staging arena, and mapped at the peers.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "comm/copy.h"
#include "comm/shm/backend.h"
#include "zero/errors.h"

namespace zero::comm {

namespace {

/// Copies what the peers read of a call's input: of a scatter not this rank's own slice.
void stage(const PostedCall& call, int rank, std::byte* target, std::size_t nbytes) {
  const std::size_t begin = call.transport == Transport::kScatter ? call.slice_offset_nbytes(rank) : nbytes;
  const std::size_t end = call.transport == Transport::kScatter ? begin + call.slice_nbytes(rank) : nbytes;
  copy_bytes(target, call.input(), begin);
  copy_bytes(target + end, call.input() + end, nbytes - end);
}

}  // namespace

void ShmBackend::locate_input(ShmWork& work) {
  InputLocation location;
  if (work.in_nbytes_ > 0 && size() > 1) {
    const std::uint64_t sequence = work.call_.record.sequence;
    std::shared_ptr<Region> region;
    if (!work.call_.stage_input) region = registry_->find(work.call_.in, work.in_nbytes_);
    if (region && region->shared()) {
      location = location_of(*region, work.call_.in);
      work.input_region_ = std::move(region);
    } else {
      wait_for_staging_room(work.in_nbytes_);
      StagingArena::Block block = staging_.take(work.in_nbytes_, sequence);
      stage(work.call_, rank(), block.data, work.in_nbytes_);
      location = location_of(*block.region, block.data);
      work.input_region_ = std::move(block.region);
      work.staged_ = true;
    }
    last_input_ = std::max(last_input_, sequence + 1);
  }
  mine_.ring[work.call_.record.sequence % kRingSlots].input.store(location);
}

InputLocation ShmBackend::location_of(const Region& region, const void* address) {
  InputLocation location;
  location.offset_nbytes = static_cast<const std::byte*>(address) - region.data();
  location.region_nbytes = region.nbytes();
  location.region_owner = region.id().owner;
  location.region_number = region.id().number;
  location.fd = region.fd();
  return location;
}

const std::byte* ShmBackend::map_input(int peer, std::uint64_t sequence) {
  return map_input(peer, segment_->block(peer).ring[sequence % kRingSlots].input.load(),
                   [this, sequence] { return call_text(sequence); });
}

const std::byte* ShmBackend::map_input(int peer, const InputLocation& location,
                                       const std::function<std::string()>& what) {
  if (location.region_owner < 0) return nullptr;
  const RegionId id{location.region_owner, location.region_number};
  forget_freed_regions(id.owner);
  auto& mappings = peer_regions_[static_cast<std::size_t>(id.owner)].mappings;
  auto found = mappings.find(id.key());
  if (found == mappings.end()) {
    // A node-shared region is mapped here already, by its own name.
    if (const auto region = registry_->find(id)) return region->data() + location.offset_nbytes;
    try {
      found = mappings.emplace(id.key(), map_region_of(peer, location, what)).first;
    } catch (const IoError& error) {
      fail_group(fmt::format("rank {} (pid {}) cannot be read by rank {} in {}: {}", peer, pid_of(peer), rank(), what(),
                             error.what()));
    }
  }
  return found->second.data() + location.offset_nbytes;
}

Mapping ShmBackend::map_region_of(int peer, const InputLocation& location, const std::function<std::string()>& what) {
  try {
    const FileDescriptor fd = open_descriptor_of(pid_of(peer), location.fd);
    return Mapping(fd.get(), round_up(location.region_nbytes, kPageBytes));
  } catch (const IoError&) {
    fail_if_gone(peer, what);
    throw;
  }
}

void ShmBackend::fail_if_gone(int peer, const std::function<std::string()>& what) {
  // A process that is being killed closes its files a little before it counts as gone.
  const std::int64_t deadline_ns = base::monotonic_ns() + base::kNanosPerSecond;
  while (base::monotonic_ns() < deadline_ns) {
    const std::string problem = problem_of(peer, base::monotonic_ns(), true);
    if (!problem.empty()) {
      fail_group(fmt::format("rank {} (pid {}) {} while rank {} waited for it in {}. {}", peer, pid_of(peer), problem,
                             rank(), what(), position_of(peer)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::shared_ptr<Region> ShmBackend::share_with_all(std::size_t nbytes, std::string_view label) {
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  return share_region(all, nbytes, static_cast<std::int64_t>(nbytes), label);
}

void ShmBackend::forget_freed_regions(int peer) {
  PeerRegions& known = peer_regions_[static_cast<std::size_t>(peer)];
  const RankBlock& block = segment_->block(peer);
  const std::uint32_t count = block.freed_count.load(std::memory_order_acquire);
  if (count == known.freed_seen) return;
  for (std::uint32_t i = known.freed_seen; i != count && count - i <= kFreedEntries; ++i) {
    const std::uint32_t number = block.freed[i % kFreedEntries].load(std::memory_order_relaxed);
    known.mappings.erase(RegionId{peer, number}.key());
  }
  // Lapped, before or while reading: mappings are only a cache.
  if (block.freed_count.load(std::memory_order_acquire) - known.freed_seen > kFreedEntries) known.mappings.clear();
  known.freed_seen = count;
}

}  // namespace zero::comm
