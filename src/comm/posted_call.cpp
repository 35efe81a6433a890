#include "comm/posted_call.h"

#include <numeric>

namespace zero::comm {

void PostedCall::assign(const Call& call, const CallRecord& call_record, std::chrono::milliseconds call_timeout) {
  record = call_record;
  transport = call.transport;
  numel = call.numel;
  counts.assign(call.counts.begin(), call.counts.end());
  offsets.assign(call.offsets.begin(), call.offsets.end());
  in = call.in;
  out = call.out;
  reduction = call.reduction;
  consume = call.consume;
  timeout = call_timeout;
  input_stable = call.input_stable;
  stage_input = call.stage_input;
}

std::size_t PostedCall::input_nbytes(int rank) const {
  switch (transport) {
    case Transport::kGather:
      return slice_nbytes(rank);
    case Transport::kScatter:
    case Transport::kView:
      return static_cast<std::size_t>(numel) * element();
    case Transport::kBroadcast:
      return rank == record.root ? static_cast<std::size_t>(numel) * element() : 0;
    case Transport::kBarrier:
      return 0;
  }
  return 0;
}

std::size_t PostedCall::slice_offset_nbytes(int rank) const {
  if (!offsets.empty()) return static_cast<std::size_t>(offsets[static_cast<std::size_t>(rank)]) * element();
  return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0})) * element();
}

std::size_t PostedCall::slice_nbytes(int rank) const {
  return static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]) * element();
}

std::int64_t PostedCall::finish_numel(int rank) const {
  return transport == Transport::kScatter ? counts[static_cast<std::size_t>(rank)] : numel;
}

}  // namespace zero::comm
