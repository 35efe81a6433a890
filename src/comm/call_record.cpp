#include "comm/call_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/clock.h"

namespace zero::comm {
namespace {

constexpr std::string_view kDots = "...";  ///< where a label was cut

}  // namespace

std::string_view kind_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kAllocateNodeShared:
      return "allocate_node_shared";
  }
  return "?";
}

std::uint64_t hash_counts(std::span<const std::int64_t> counts) {
  std::uint64_t hash = 0x9e3779b97f4a7c15ULL ^ counts.size();
  for (const std::int64_t count : counts) {
    hash = (hash ^ static_cast<std::uint64_t>(count)) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }
  return hash;
}

std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a, then mixed: its last bytes must reach all bits
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

void set_label(CallRecord& record, std::string_view label) {
  record.label_hash = hash_text(label);
  const std::size_t length = std::min(label.size(), kLabelBytes - 1);
  if (length > 0) std::memcpy(record.label, label.data(), length);
  std::memset(record.label + length, 0, kLabelBytes - length);
  if (label.size() > length) std::memcpy(record.label + length - kDots.size(), kDots.data(), kDots.size());
}

bool same_call(const CallRecord& a, const CallRecord& b) { return std::memcmp(&a, &b, kSignatureBytes) == 0; }

std::string describe(const CallRecord& record) {
  std::string text = fmt::format("{} #{}", kind_name(record.kind), record.sequence);
  if (record.label[0] != '\0') text += fmt::format(" \"{}\"", record.label);
  if (record.kind == CollectiveKind::kAllocateNodeShared) {
    text += fmt::format(" ({} bytes)", record.numel);
  } else if (record.kind != CollectiveKind::kBarrier) {
    text += fmt::format(" ({} {}", record.numel, dtype_name(record.dtype));
    if (record.root >= 0) text += fmt::format(", root {}", record.root);
    if (record.op == 1) text += ", max";
    if (record.op == 2) text += ", min";
    text += ')';
  }
  if (record.phase > 0) text += ", second half";
  return text;
}

std::string describe_with_times(const CallRecord& record, std::int64_t now_ns) {
  const auto seconds_ago = [&](std::int64_t then_ns) {
    return static_cast<double>(std::max<std::int64_t>(now_ns - then_ns, 0)) / base::kNanosPerSecond;
  };
  std::string text = fmt::format("{}, entered {:.3f} s ago", describe(record), seconds_ago(record.entered_ns));
  text += record.left_ns == 0 ? std::string(", not finished")
                              : fmt::format(", finished {:.3f} s ago", seconds_ago(record.left_ns));
  return text;
}

std::string describe_difference(const CallRecord& a, const CallRecord& b) {
  if (a.kind != b.kind || a.phase != b.phase) return "kind of collective";
  if (std::memcmp(a.label, b.label, kLabelBytes) != 0) return "label";
  if (a.label_hash != b.label_hash) return "label, after the part shown,";
  if (a.dtype != b.dtype) return "dtype";
  if (a.numel != b.numel) return "number of elements";
  if (a.counts_hash != b.counts_hash) return "division into shards (counts)";
  if (a.root != b.root) return "root";
  if (a.op != b.op) return "reduce operation";
  return "sequence";
}

std::string mismatch_message(int rank_a, const CallRecord& a, const std::string& recent_a, int rank_b,
                             const CallRecord& b, const std::string& recent_b) {
  return fmt::format(
      "the ranks diverge at call #{} ({} differs): rank {} called {}, rank {} called {}. Every rank must "
      "make "
      "the same calls in the same order; look for control flow or sizes that depend on the rank or its "
      "data.\n"
      "  rank {}, last calls:\n{}  rank {}, last calls:\n{}",
      a.sequence, describe_difference(a, b), rank_a, describe(a), rank_b, describe(b), rank_a, recent_a, rank_b,
      recent_b);
}

}  // namespace zero::comm
