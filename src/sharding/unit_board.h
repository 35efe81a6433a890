#pragma once
// A board of parcels of units, each of which goes to the ranks of its unit's shard group.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "sharding/sharded_model.h"

namespace zero::sharding {

/// As comm::make_exchange_board(), where parcel p is of unit `units[p]`, and its counts and slices are by rank of that
/// unit's group. The sink runs in one thread at a time. A rank that waits moves what is under way in all groups.
/// *Collective* over ShardedModel::data_ranks. `model` outlives it. Throws CommError.
std::shared_ptr<comm::ExchangeBoard> make_unit_board(const ShardedModel& model, const std::string& label,
                                                     std::vector<comm::Parcel> parcels, std::span<const int> units,
                                                     DType dtype, comm::ExchangeBoard::Sink sink,
                                                     const comm::HostSums& sums);

}  // namespace zero::sharding
