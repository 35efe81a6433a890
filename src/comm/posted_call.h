#pragma once
// What a backend keeps of a Call while it is under way.
#include <chrono>
#include <cstdint>
#include <vector>

#include "comm/backend.h"

namespace zero::comm {

struct PostedCall {
  CallRecord record;
  Transport transport = Transport::kBarrier;
  std::int64_t numel = 0;
  std::vector<std::int64_t> counts;   ///< keeps its capacity from call to call, as the next
  std::vector<std::int64_t> offsets;  ///< of the slices in `out` of a gather; empty: one after the other
  const void* in = nullptr;
  void* out = nullptr;
  Reduction reduction;
  ConsumeSlices consume;
  std::chrono::milliseconds timeout{0};
  bool input_stable = false;
  bool stage_input = false;

  void assign(const Call& call, const CallRecord& call_record, std::chrono::milliseconds call_timeout);

  std::size_t element() const { return element_nbytes(record.dtype); }
  /// Bytes of `in` that other ranks read. Local.
  std::size_t input_nbytes(int rank) const;
  /// Where the slice of `rank` begins, in `out` of a gather and in `in` of a scatter. Local.
  std::size_t slice_offset_nbytes(int rank) const;
  std::size_t slice_nbytes(int rank) const;
  /// Elements of each slice that the finish step of a scatter or view on `rank` sees. Local.
  std::int64_t finish_numel(int rank) const;
  std::byte* out_slice(int rank) const { return static_cast<std::byte*>(out) + slice_offset_nbytes(rank); }
  const std::byte* input() const { return static_cast<const std::byte*>(in); }
};

}  // namespace zero::comm
