#pragma once
// A window over the shards of units, each of which goes to the ranks of its unit's shard group.
#include <memory>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "sharding/sharded_model.h"

namespace zero::sharding {

/// As comm::make_shard_window(), where parcel p is unit p, and its counts are of `dtype` and by rank of that unit's
/// group.
/// *Collective* over ShardedModel::data_ranks. `model` outlives it. Throws CommError, IoError.
std::shared_ptr<comm::ShardWindow> make_unit_window(const ShardedModel& model, const std::string& label,
                                                    std::vector<comm::Parcel> parcels,
                                                    const std::vector<const void*>& mine, DType dtype);

}  // namespace zero::sharding
