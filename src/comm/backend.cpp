#include "comm/backend.h"

#include <cstdlib>
#include <string>

#include "base/check.h"
#include "comm/reduce_kernels.h"

namespace zero::comm {
namespace {

constexpr std::chrono::minutes kDefaultTimeout{30};

std::chrono::milliseconds timeout_from_environment() {
  const char* text = std::getenv("ZERO_TIMEOUT_S");
  if (!text || *text == '\0') return kDefaultTimeout;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !(seconds > 0) || seconds > 1e9) {
    throw ConfigError(
        fmt::format("environment variable ZERO_TIMEOUT_S: got \"{}\", wanted a number of seconds above 0 "
                    "(timeout of collectives).",
                    text));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace

Backend::Backend(int rank, int size)
    : rank_(rank), size_(size), default_timeout_(timeout_from_environment()) {}

CollectiveCounter* Backend::counter_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return &counters_.all_gather;
    case CollectiveKind::kReduceScatter:
      return &counters_.reduce_scatter;
    case CollectiveKind::kAllReduce:
      return &counters_.all_reduce;
    case CollectiveKind::kBroadcast:
      return &counters_.broadcast;
    case CollectiveKind::kBarrier:
      return &counters_.barrier;
    case CollectiveKind::kAllocateNodeShared:
      return nullptr;
  }
  return nullptr;
}

CallRecord make_record(const Call& call, std::uint64_t sequence) {
  CallRecord record;
  record.sequence = sequence;
  record.numel = call.recorded_numel >= 0 ? call.recorded_numel : call.numel;
  record.counts_hash = call.counts.empty() ? 0 : hash_counts(call.counts);
  record.root = call.root;
  record.kind = call.kind;
  record.phase = call.phase;
  record.dtype = call.dtype;
  record.op = static_cast<std::uint8_t>(call.op);
  set_label(record, call.label);
  return record;
}

void run_finish_step(const Reduction& reduction, const ConsumeSlices& consume, DType dtype,
                     std::span<const void* const> slices, std::int64_t numel) {
  if (consume) {
    consume(slices);
  } else {
    reduce_ordered(slices, numel, dtype, reduction);
  }
}

}  // namespace zero::comm
