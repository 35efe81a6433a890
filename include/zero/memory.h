#pragma once
// What the engine's memory is used for, by kind. Bytes of this rank.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

enum class MemoryKind : std::uint8_t {
  kParameters,   ///< what the module's parameters read: shards, resident copies, this rank's part of shared
                 ///< ones
  kGather,       ///< buffers that stage 3's copying store gathers into
  kMaster,       ///< fp32 master weights, where they are kept apart from the parameters
  kOptimizer,    ///< its states: of Adam exp_avg and exp_avg_sq
  kGradients,    ///< fp32 gradient accumulators
  kBuckets,      ///< gradients on their way from autograd to their owner
  kStaging,      ///< temporary buffers
  kOffload,      ///< buffers between memory and the disk that states or parameters live on
  kActivations,  ///< everything else libtorch allocates on the CPU: activations, temporaries, inputs
};
inline constexpr int kMemoryKinds = 9;

std::string_view memory_kind_name(MemoryKind kind);

struct MemoryUse {
  std::int64_t current_nbytes = 0;  ///< held: what the system has given for it ("reserved")
  std::int64_t peak_nbytes = 0;     ///< the most that was held
  std::int64_t in_use_nbytes = 0;   ///< of what is held: less where buffers wait in a pool for their next use
};

/// What the kernel counts for a process.
struct ProcessMemory {
  std::int64_t resident_nbytes = 0;
  std::int64_t proportional_nbytes = 0;       ///< pages that n processes share count 1/n
  std::int64_t peak_proportional_nbytes = 0;  ///< the most since reset_peak_memory(), or the start
};

/// Of this process, now. Takes some milliseconds a gigabyte, in which the process cannot fault pages in: not for every
/// step. Local.
ProcessMemory process_memory();
/// ProcessMemory::resident_nbytes alone: about 10 us. Local.
std::int64_t resident_nbytes();
/// Starts new peaks at the present values: of activations, and of the process where the system allows it. Local.
void reset_peak_memory();
/// Bytes that this host can still give without swapping or killing: what is free, or what the memory cgroup leaves,
/// whichever is less; 0 when unknown. Local.
std::int64_t available_memory_nbytes();

/// Bytes with a decimal unit, for messages: "43.8 MB", "1.20 GB". Local.
std::string human_nbytes(std::int64_t nbytes);
/// Bytes as a number of 10^6 bytes, for tables: "43.8"; "-" for none. Local.
std::string megabytes(double nbytes);

/// A snapshot of one rank's ledger.
struct MemoryReport {
  std::array<MemoryUse, kMemoryKinds> kinds;
  std::int64_t nvme_nbytes = 0;  ///< reserved on a disk for what is offloaded there; not in `kinds`

  const MemoryUse& operator[](MemoryKind kind) const { return kinds[static_cast<int>(kind)]; }
  MemoryUse& operator[](MemoryKind kind) { return kinds[static_cast<int>(kind)]; }
  std::int64_t total_nbytes() const;
  /// One line per kind, for people: "parameters      12.3 MB (peak 12.3 MB)"; with a line "on NVMe" where there is any.
  std::string to_string() const;
};

/// Gives memory that libtorch has freed and that is kept for the next step back to the system: the cache of
/// zerotorch.caching_allocator and the C library's heap. For moments when less is needed than before; the next
/// step pays with page faults. Local, thread-safe. Like torch.cuda.empty_cache().
void empty_cache();

/// What the ranks hold, as a table for people: by kind what is in use, held and was held at most, for each
/// rank (of more than four: for the one that holds most) and for all together; what was held for the model
/// before initialize(); resident and proportional memory of the processes. All vectors by rank. See
/// Engine::memory_summary().
std::string describe_memory(const std::vector<MemoryReport>& before, const std::vector<MemoryReport>& now,
                            const std::vector<ProcessMemory>& processes);

}  // namespace zero
