#pragma once
// NcclTransport: moves shards between GPUs by NCCL, over NVLink, PCIe and the network, a GPU to a rank.
//
// NCCL wants the same calls in the same order on all ranks; boards promise more (comm/transport.h). So a post is first
// told to all ranks over their group, in host memory, with its number: the count of rank 0's posts so far. Told by
// everybody, it is given to NCCL in the order of the numbers, beside the stream that computes. Gradients and parameters
// have an order, a communicator and a stream each, as a rank may wait for the one before it has the other.
#include <c10/core/Device.h>

#include <memory>

#include "comm/transport.h"

namespace zero::device {

/// *Collective.* Needs nccl_of(device.type()), a device of its own on each rank, and gradients that are posted round by
/// round: no rank posts a parcel again before it has posted every parcel that some rank has posted as often. Time-outs
/// are the group's, and a rank that fails, or NCCL that does, fails the group. Throws CommError on every rank.
/// Destroying the transport is collective, unless the group has failed.
std::shared_ptr<comm::ShardTransport> make_nccl_transport(Group group, c10::Device device);

}  // namespace zero::device
