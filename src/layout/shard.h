#pragma once
// Where a rank's shard of a unit begins and ends. Pure integer maths.
//
//   unit    a flat buffer of `numel` elements, a multiple of kBlockNumel
//   shard   a rank's contiguous slice of a unit, a multiple of kBlockNumel, possibly empty
// The layout of the flat buffer never depends on the number of ranks; only the cuts do.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace zero::layout {

/// Shards, buckets and norm sums are made of whole blocks of this many elements.
inline constexpr std::int64_t kBlockNumel = 1024;
/// Parameters start at multiples of this many elements (at least 64 bytes in every dtype).
inline constexpr std::int64_t kAlignNumel = 64;

/// Half-open range of elements of a unit.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t numel() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const Range&) const = default;
};

constexpr Range intersect(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The cuts of one unit over `world_size` ranks: shard r is [cut[r], cut[r+1]). When the blocks do not
/// divide evenly the extra ones go to ranks unit_index, unit_index+1, ... (modulo world_size), so that
/// many small units load all ranks alike. Blocks are of `step` elements, a multiple of kBlockNumel; the last one of a
/// unit may be smaller.
std::vector<std::int64_t> shard_cuts(std::int64_t unit_numel, int world_size, int unit_index,
                                     std::int64_t step = kBlockNumel);

/// Shard `rank` of shard_cuts(unit_numel, world_size, unit_index, step) alone, without the others.
Range shard_range(std::int64_t unit_numel, int world_size, int unit_index, int rank, std::int64_t step = kBlockNumel);

/// counts[r] = elements of shard r that lie inside `range`.
std::vector<std::int64_t> shard_counts(const std::vector<std::int64_t>& cuts, Range range);

/// Most elements of a gradient bucket where the configuration allows `configured`: no more than it takes to
/// send at full speed (kMostBucketNumel, and kBucketSliceNumel for each rank), since three of them are held; on a
/// device, which wants more at a time, kMostDeviceBucketNumel.
std::int64_t bucket_numel(std::int64_t configured, int world_size, bool in_host_memory);
inline constexpr std::int64_t kMostBucketNumel = 4 << 20;
inline constexpr std::int64_t kMostDeviceBucketNumel = 32 << 20;
inline constexpr std::int64_t kBucketSliceNumel = 512 << 10;

/// Cuts [0, unit_numel) into ranges of at most max(bucket_numel, kBlockNumel) elements, whole blocks each: multiples of
/// bucket_step() and what is left.
std::vector<Range> bucket_ranges(std::int64_t unit_numel, std::int64_t bucket_numel);
std::int64_t bucket_step(std::int64_t unit_numel, std::int64_t bucket_numel);

}  // namespace zero::layout
