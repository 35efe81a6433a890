#pragma once
// What a rank says about the collective it enters: the signature that must agree on all ranks, and
// the line of the flight recorder.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "zero/dtype.h"

namespace zero::comm {

enum class CollectiveKind : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kBarrier,
  kAllocateNodeShared,
};

/// "all_gather", "reduce_scatter", ...
std::string_view kind_name(CollectiveKind kind);

inline constexpr std::size_t kLabelBytes = 48;  ///< shown of a label, with the closing zero

/// Plain words, so that it can lie in shared memory or in a message. The first part is the signature.
struct CallRecord {
  std::uint64_t sequence = 0;  ///< index of the call in its group, from 0
  std::int64_t numel = 0;      ///< of the whole collective (all ranks' slices)
  std::uint64_t counts_hash = 0;
  std::uint64_t label_hash = 0;  ///< of the whole label
  std::int32_t root = -1;        ///< broadcast only
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::uint8_t phase = 0;  ///< 1: the second half of a large all_reduce
  DType dtype = DType::kByte;
  std::uint8_t op = 0;
  char label[kLabelBytes] = {};

  std::int64_t entered_ns = 0;
  std::int64_t left_ns = 0;  ///< 0: this rank has not finished its part
};
static_assert(std::is_trivially_copyable_v<CallRecord>);
static_assert(sizeof(CallRecord) == 104);
inline constexpr std::size_t kSignatureBytes = 88;
static_assert(offsetof(CallRecord, entered_ns) == kSignatureBytes);

/// A hash of the shard sizes. Local.
std::uint64_t hash_counts(std::span<const std::int64_t> counts);

/// A hash of all of `text`. Local.
std::uint64_t hash_text(std::string_view text);

/// Keeps what the ranks compare of `label`, its hash, and what they show: up to 47 characters, a longer one's
/// last three as dots. Local.
void set_label(CallRecord& record, std::string_view label);

/// True when both ranks mean the same call. Local.
bool same_call(const CallRecord& a, const CallRecord& b);

/// `all_gather #12 "layer.3" (4096 bf16)`. Local.
std::string describe(const CallRecord& record);

/// describe() and when the rank entered it and left it, seen from `now_ns`. Local.
std::string describe_with_times(const CallRecord& record, std::int64_t now_ns);

/// `first` names what differs, for a mismatch message: "kind", "label", "element counts", ... Local.
std::string describe_difference(const CallRecord& a, const CallRecord& b);

/// The message of a divergence, with the recent calls (one a line) of both ranks. Local.
std::string mismatch_message(int rank_a, const CallRecord& a, const std::string& recent_a, int rank_b,
                             const CallRecord& b, const std::string& recent_b);

}  // namespace zero::comm
