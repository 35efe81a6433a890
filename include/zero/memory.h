#pragma once
// The engine's memory by kind. Bytes of this rank.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

enum class MemoryKind : std::uint8_t {
  kParameters,   ///< the module's parameters: shards, resident copies, this rank's part of node-shared memory
  kGather,       ///< gather buffers of stage 3's copying store
  kMaster,       ///< fp32 master weights, if separate from the parameters
  kOptimizer,    ///< optimizer states, e.g. Adam's exp_avg and exp_avg_sq
  kGradients,    ///< fp32 gradient accumulators
  kBuckets,      ///< gradients on their way from autograd to their owner
  kStaging,      ///< temporary buffers
  kOffload,      ///< buffers between memory and the disk that holds states or parameters
  kActivations,  ///< everything else libtorch allocates on the CPU: activations, temporaries, inputs
};
inline constexpr int kMemoryKinds = 9;

std::string_view memory_kind_name(MemoryKind kind);

struct MemoryUse {
  std::int64_t current_nbytes = 0;  ///< held: obtained from the system ("reserved")
  std::int64_t peak_nbytes = 0;     ///< the most that was held
  std::int64_t in_use_nbytes = 0;   ///< held bytes minus idle buffers in pools
  /// Of these in the memory of accelerators; all else is in the host's.
  std::int64_t device_nbytes = 0, peak_device_nbytes = 0;
};

/// The kernel's memory counters of a process.
struct ProcessMemory {
  std::int64_t resident_nbytes = 0;
  std::int64_t proportional_nbytes = 0;       ///< pages that n processes share count 1/n
  std::int64_t peak_proportional_nbytes = 0;  ///< the most since reset_peak_memory(), or the start
};

/// The counters of this process, now. Takes some milliseconds per gigabyte, during which the process cannot fault pages
/// in: do not call it in every step. Local.
ProcessMemory process_memory();
/// ProcessMemory::resident_nbytes alone: about 10 us. Local.
std::int64_t resident_nbytes();
/// Resets peaks to the current values: of activations, and of the process if the system allows it. Local.
void reset_peak_memory();
/// Bytes that this host can still provide without swapping or killing: the smaller of free memory and what the memory
/// cgroup leaves; 0 when unknown. Local.
std::int64_t available_memory_nbytes();

/// Bytes with a decimal unit, for messages: "43.8 MB", "1.20 GB". Local.
std::string human_nbytes(std::int64_t nbytes);
/// Bytes as a number of 10^6 bytes, for tables: "43.8"; "-" for none. Local.
std::string megabytes(double nbytes);

/// What libtorch's allocator of an accelerator counts in a process, as torch.cuda.memory_stats() gives it: all tensors
/// there, what the engine holds included, but for memory that its ranks share; not what drivers and other libraries
/// take. In bytes. See zero/device_memory.h.
struct DeviceMemory {
  std::int64_t allocated_nbytes = 0;       ///< of tensors that are alive
  std::int64_t peak_allocated_nbytes = 0;  ///< the most since reset_peak_device_memory(), or the start
  std::int64_t reserved_nbytes = 0;        ///< obtained from the driver, what waits in pools included
  std::int64_t peak_reserved_nbytes = 0;
};

/// A snapshot of one rank's ledger.
struct MemoryReport {
  std::array<MemoryUse, kMemoryKinds> kinds;
  std::int64_t nvme_nbytes = 0;  ///< reserved on disk for offloaded states; not in `kinds`

  const MemoryUse& operator[](MemoryKind kind) const { return kinds[static_cast<int>(kind)]; }
  MemoryUse& operator[](MemoryKind kind) { return kinds[static_cast<int>(kind)]; }
  std::int64_t total_nbytes() const;
  /// One readable line per kind: "parameters      12.3 MB (peak 12.3 MB)"; plus a line "on NVMe" if any is used.
  std::string to_string() const;
};

/// Returns freed memory that is kept for the next step to the system: the cache of zerotorch.caching_allocator and the
/// C library's heap. Use it when less memory is needed than before; the next step pays with page faults. Local,
/// thread-safe. Like torch.cuda.empty_cache().
void empty_cache();

/// The ranks' memory as a readable table: per kind the bytes in use, held and held at most, for each rank (with more
/// than four ranks, only the one that holds most) and in total; the model's memory before initialize(); resident and
/// proportional memory of the processes; what libtorch has on accelerators, where `devices` are given and count. All
/// vectors are indexed by rank. See Engine::memory_summary().
std::string describe_memory(const std::vector<MemoryReport>& before, const std::vector<MemoryReport>& now,
                            const std::vector<ProcessMemory>& processes, const std::vector<DeviceMemory>& devices = {});

}  // namespace zero
