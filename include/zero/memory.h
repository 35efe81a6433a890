#pragma once
// What the engine's memory is used for, by kind. Bytes of this rank.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero {

enum class MemoryKind : std::uint8_t {
  kParameters,   ///< what the module's parameters read: shards, resident copies, this rank's part of shared
                 ///< ones
  kGather,       ///< buffers that stage 3's copying store gathers into
  kMaster,       ///< fp32 master weights, where they are kept apart from the parameters
  kOptimizer,    ///< exp_avg and exp_avg_sq
  kGradients,    ///< fp32 gradient accumulators
  kBuckets,      ///< gradients on their way from autograd to their owner
  kStaging,      ///< temporary buffers
  kActivations,  ///< everything else libtorch allocates on the CPU: activations, temporaries, inputs
};
inline constexpr int kMemoryKinds = 8;

std::string_view memory_kind_name(MemoryKind kind);

struct MemoryUse {
  std::int64_t current_nbytes = 0;
  std::int64_t peak_nbytes = 0;
};

/// A snapshot of one rank's ledger.
struct MemoryReport {
  std::array<MemoryUse, kMemoryKinds> kinds;

  const MemoryUse& operator[](MemoryKind kind) const { return kinds[static_cast<int>(kind)]; }
  MemoryUse& operator[](MemoryKind kind) { return kinds[static_cast<int>(kind)]; }
  std::int64_t total_nbytes() const;
  /// One line per kind, for people: "parameters      12.3 MB (peak 12.3 MB)".
  std::string to_string() const;
};

}  // namespace zero
