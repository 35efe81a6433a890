#pragma once
// Where each kind of tensor lives. Chosen once, in sharding/plan/sharding_plan.cpp; the engine makes stores by it, and
// the parts declare what they hold by it.
#include <cstdint>
#include <vector>

namespace zero::layout {

enum class Tier : std::uint8_t {
  kHost,          ///< host memory, of each rank
  kHostShared,    ///< host memory, once for all ranks of the host
  kDevice,        ///< memory of the module's accelerator, of each rank
  kDeviceShared,  ///< memory of the owners' accelerators, which all ranks of the host read in place
  kDisk,          ///< a scratch file of each rank, and buffers in host memory
};

constexpr bool is_on_device(Tier tier) { return tier == Tier::kDevice || tier == Tier::kDeviceShared; }
constexpr bool is_shared(Tier tier) { return tier == Tier::kHostShared || tier == Tier::kDeviceShared; }

struct Placement {
  Tier tier = Tier::kHost;
  /// Split by ratio: by unit, whether its elements are in the memory of the module's accelerator and not in `tier`;
  /// empty: none are.
  std::vector<bool> on_device = {};
  std::int64_t disk_buffers = 0;  ///< on a disk: slots in memory

  bool is_on_disk() const { return tier == Tier::kDisk; }
  bool is_split() const { return !on_device.empty(); }
  Tier tier_of(std::size_t unit) const { return is_split() && on_device[unit] ? Tier::kDevice : tier; }
};

struct Placements {
  Placement parameters;  ///< shards of units that are not resident
  Placement gradients;   ///< sums of an accumulation window
  Placement states;      ///< masters and optimizer states
  Placement activations;
  /// Whole units, as the module reads them: on the host, on its accelerator, or in the one copy of the host.
  Tier units = Tier::kHost;

  /// The node-shared store: the module reads the one copy of the host.
  bool reads_in_place() const { return units == Tier::kHostShared; }
  /// Whole units are copies of shards that all ranks reach, resident units too.
  bool copies_from_shared() const { return is_shared(parameters.tier) && !reads_in_place(); }
  /// Whole units are on an accelerator, and shards in host memory or on a disk.
  bool uploads() const { return units == Tier::kDevice && !is_on_device(parameters.tier); }
};

}  // namespace zero::layout
