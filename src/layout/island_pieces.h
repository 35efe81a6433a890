#pragma once
// How the ranks at one place of all islands share out the exchange of their shard. Pure integer maths.
//
//   piece   elements that are exchanged at a time, of all shards of a rank one after the other
//   slice   what one island updates of a piece
#include <algorithm>
#include <cstdint>

#include "layout/shard.h"

namespace zero::layout {

/// Pieces on their way at a time: one is sent, one gathered, one filled or written back.
inline constexpr int kIslandSlots = 3;

/// Elements of a piece; slices of it have a multiple of 16.
inline std::int64_t island_piece_numel(int islands) {
  constexpr std::int64_t kPieceNumel = 1 << 20, kSliceStep = 16;
  return round_up(kPieceNumel, kSliceStep * islands);
}

/// The island's slice of `piece`, which is whole or the last one.
inline Range island_slice(Range piece, int islands, int island) {
  const std::int64_t step = (piece.numel() + islands - 1) / islands;
  return {std::min(piece.begin + island * step, piece.end), std::min(piece.begin + (island + 1) * step, piece.end)};
}

/// Elements of its slices of all pieces of a shard.
inline std::int64_t island_numel(std::int64_t shard_numel, int islands, int island) {
  const std::int64_t piece = island_piece_numel(islands), whole = shard_numel / piece;
  return whole * (piece / islands) + island_slice({0, shard_numel % piece}, islands, island).numel();
}

/// Elements of the buffers for pieces.
inline std::int64_t island_buffers_numel(std::int64_t shard_numel, int islands) {
  const std::int64_t piece = island_piece_numel(islands), pieces = (shard_numel + piece - 1) / piece;
  return std::min<std::int64_t>(kIslandSlots, pieces) * std::min(piece, shard_numel);
}

}  // namespace zero::layout
