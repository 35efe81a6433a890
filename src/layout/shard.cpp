#include "layout/shard.h"

#include "base/check.h"

namespace zero::layout {

std::vector<std::int64_t> shard_cuts(std::int64_t unit_numel, int world_size, int unit_index, std::int64_t step) {
  ZERO_CHECK(unit_numel >= 0 && unit_numel % kBlockNumel == 0, "unit of {} elements", unit_numel);
  ZERO_CHECK(world_size > 0 && unit_index >= 0 && step > 0 && step % kBlockNumel == 0);
  const std::int64_t blocks = (unit_numel + step - 1) / step;
  const std::int64_t each = blocks / world_size;
  const std::int64_t extra = blocks % world_size;
  std::vector<std::int64_t> cuts(world_size + 1, 0);
  for (int rank = 0; rank < world_size; ++rank) {
    const int turn = ((rank - unit_index) % world_size + world_size) % world_size;
    cuts[rank + 1] = std::min(unit_numel, cuts[rank] + (each + (turn < extra ? 1 : 0)) * step);
  }
  return cuts;
}

Range shard_range(std::int64_t unit_numel, int world_size, int unit_index, int rank, std::int64_t step) {
  ZERO_CHECK(unit_numel >= 0 && unit_numel % kBlockNumel == 0 && step > 0, "unit of {} elements", unit_numel);
  ZERO_CHECK(world_size > 0 && unit_index >= 0 && rank >= 0 && rank < world_size);
  const std::int64_t blocks = (unit_numel + step - 1) / step;
  const std::int64_t each = blocks / world_size;
  const std::int64_t extra = blocks % world_size;
  // Extra blocks go to ranks [first, first + extra), modulo world_size: how many of them lie before `rank`.
  const std::int64_t first = unit_index % world_size;
  const auto extras_before = [&](std::int64_t end) {
    return intersect({0, end}, {first, first + extra}).numel() +
           intersect({0, end}, {0, first + extra - world_size}).numel();
  };
  const auto cut = [&](std::int64_t r) { return std::min(unit_numel, (each * r + extras_before(r)) * step); };
  return {cut(rank), cut(rank + 1)};
}

std::vector<std::int64_t> shard_counts(const std::vector<std::int64_t>& cuts, Range range) {
  std::vector<std::int64_t> counts(cuts.size() - 1);
  for (std::size_t rank = 0; rank + 1 < cuts.size(); ++rank) {
    counts[rank] = intersect(range, {cuts[rank], cuts[rank + 1]}).numel();
  }
  return counts;
}

std::int64_t bucket_numel(std::int64_t configured, int world_size, bool in_host_memory) {
  const std::int64_t most = in_host_memory ? kMostBucketNumel : kMostDeviceBucketNumel;
  return std::clamp(configured, kBlockNumel, std::max(most, world_size * kBucketSliceNumel));
}

std::int64_t bucket_step(std::int64_t unit_numel, std::int64_t bucket_numel) {
  const std::int64_t most = std::max(bucket_numel / kBlockNumel, std::int64_t{1}) * kBlockNumel;
  const std::int64_t pieces = std::max<std::int64_t>(1, (unit_numel + most - 1) / most);
  // Pieces of equal size: a small rest would cost a collective of its own.
  return round_up((unit_numel + pieces - 1) / pieces, kBlockNumel);
}

std::vector<Range> bucket_ranges(std::int64_t unit_numel, std::int64_t bucket_numel) {
  const std::int64_t each = bucket_step(unit_numel, bucket_numel);
  std::vector<Range> ranges;
  for (std::int64_t begin = 0; begin < unit_numel; begin += each) {
    ranges.push_back({begin, std::min(begin + each, unit_numel)});
  }
  return ranges;
}

}  // namespace zero::layout
